// SPDX-License-Identifier: MIT

// Selects rows with seeded shuffles.

#include "runtime/Data/RowSelection.h"

#include <algorithm>
#include <cmath>

#include "runtime/Data/Schedule.h"

namespace qlora {

// A seed's shuffles are numbered: draws use -1, -2, ...; epochs use 0, 1, ...
static constexpr int64_t kValidationDraw = -1;
static constexpr int64_t kFirstWeightDraw = -2;

/// Draws `count` of `rows` at random; keeps their order.
static std::vector<int64_t> draw(const std::vector<int64_t> &rows,
                                 int64_t count, uint64_t seed, int64_t number) {
  std::vector<int64_t> order =
      shuffledOrder(static_cast<int64_t>(rows.size()), seed, number);
  order.resize(static_cast<size_t>(count));
  std::ranges::sort(order);
  for (int64_t &row : order)
    row = rows[static_cast<size_t>(row)];
  return order;
}

static std::vector<int64_t> numbers(int64_t first, int64_t last) {
  std::vector<int64_t> rows;
  for (int64_t row = first; row < last; ++row)
    rows.push_back(row);
  return rows;
}

static StatusOr<std::vector<int64_t>>
validationRows(int64_t rows, double size, uint64_t seed) {
  if (size == 0)
    return std::vector<int64_t>();
  const double count =
      size < 1 ? std::ceil(size * static_cast<double>(rows)) : size;
  if (count >= static_cast<double>(rows))
    return Status::invalid(
        "--val-set-size {} takes {:.0f} rows for validation, but the data has "
        "{}. Fix: give a smaller value, which leaves rows for training",
        size, count, rows);
  return draw(numbers(0, rows), static_cast<int64_t>(count), seed,
              kValidationDraw);
}

/// Repeats `rows` according to the source's weight.
static StatusOr<std::vector<int64_t>>
weighted(const std::vector<int64_t> &rows, const RowSource &source,
         uint64_t seed, int64_t number) {
  const double whole = std::floor(source.weight);
  const auto part = static_cast<int64_t>(std::llround(
      (source.weight - whole) * static_cast<double>(rows.size())));
  std::vector<int64_t> chosen;
  for (int copy = 0; copy < static_cast<int>(whole); ++copy)
    chosen.insert(chosen.end(), rows.begin(), rows.end());
  for (int64_t row : draw(rows, part, seed, number))
    chosen.push_back(row);
  if (chosen.empty())
    return Status::invalid("'{}': the weight {} keeps none of its {} rows. "
                           "Fix: give a larger weight",
                           source.name, source.weight, rows.size());
  return chosen;
}

StatusOr<RowSelection> selectRows(std::span<const RowSource> sources,
                                  double validationSize, uint64_t seed) {
  int64_t total = 0;
  for (const RowSource &source : sources)
    total += source.rows;
  RowSelection selection;
  QLORA_ASSIGN_OR_RETURN(selection.validation,
                         validationRows(total, validationSize, seed));
  int64_t first = 0, number = kFirstWeightDraw;
  for (const RowSource &source : sources) {
    std::vector<int64_t> rest;
    std::ranges::set_difference(numbers(first, first + source.rows),
                                selection.validation, std::back_inserter(rest));
    QLORA_ASSIGN_OR_RETURN(const std::vector<int64_t> chosen,
                           weighted(rest, source, seed, number--));
    selection.training.insert(selection.training.end(), chosen.begin(),
                              chosen.end());
    first += source.rows;
  }
  return selection;
}

} // namespace qlora
