// SPDX-License-Identifier: MIT

// Selects rows with seeded shuffles.

#include "runtime/Data/RowSelection.h"

#include <algorithm>
#include <cmath>
#include <ranges>

#include "runtime/Data/Schedule.h"

namespace qlora {

// A seed's shuffles are numbered: draws use -1, -2, ...; epochs use 0, 1, ...
static constexpr int64_t kValidationDraw = -1;
static constexpr int64_t kFirstWeightDraw = -2;

/// Draws `count` of the numbers below `size` at random, ascending.
static std::vector<uint32_t> draw(int64_t size, int64_t count, uint64_t seed,
                                  int64_t number) {
  std::vector<uint32_t> drawn = shuffledOrder(size, seed, number);
  drawn.resize(static_cast<size_t>(count));
  drawn.shrink_to_fit();
  std::ranges::sort(drawn);
  return drawn;
}

Status checkRowNumbers(std::span<const RowSource> sources) {
  constexpr double kMost = 4e9; // below 2^32 also if weights are rounded up
  double rows = 0;
  for (const RowSource &source : sources) {
    rows += static_cast<double>(source.rows) * std::max(1.0, source.weight);
    if (rows > kMost)
      return Status::invalid("'{}': with its {} rows times {}, the data has "
                             "more than {:.0f} rows. "
                             "Fix: give a smaller weight or fewer files",
                             source.name, source.rows, source.weight, kMost);
  }
  return Status::ok();
}

static StatusOr<std::vector<uint32_t>> validationRows(int64_t rows, double size,
                                                      uint64_t seed) {
  if (size == 0)
    return std::vector<uint32_t>();
  const double count =
      size < 1 ? std::ceil(size * static_cast<double>(rows)) : size;
  if (count >= static_cast<double>(rows))
    return Status::invalid(
        "--val-set-size {} takes {:.0f} rows for validation, but the data has "
        "{}. Fix: give a smaller value, which leaves rows for training",
        size, count, rows);
  return draw(rows, static_cast<int64_t>(count), seed, kValidationDraw);
}

/// Appends `rows` to `chosen`, repeated according to the source's weight.
static Status addWeighted(const std::vector<uint32_t> &rows,
                          const RowSource &source, uint64_t seed,
                          int64_t number, std::vector<uint32_t> &chosen) {
  const double whole = std::floor(source.weight);
  const auto part = static_cast<int64_t>(std::llround(
      (source.weight - whole) * static_cast<double>(rows.size())));
  const size_t before = chosen.size();
  chosen.reserve(before + static_cast<size_t>(whole) * rows.size() +
                 static_cast<size_t>(part));
  for (int copy = 0; copy < static_cast<int>(whole); ++copy)
    chosen.insert(chosen.end(), rows.begin(), rows.end());
  if (part > 0)
    for (uint32_t drawn : draw(std::ssize(rows), part, seed, number))
      chosen.push_back(rows[drawn]);
  if (chosen.size() == before)
    return Status::invalid("'{}': the weight {} keeps none of its {} rows. "
                           "Fix: give a larger weight",
                           source.name, source.weight, rows.size());
  return Status::ok();
}

StatusOr<RowSelection> selectRows(std::span<const RowSource> sources,
                                  double validationSize, uint64_t seed) {
  int64_t total = 0;
  for (const RowSource &source : sources)
    total += source.rows;
  RowSelection selection;
  QLORA_ASSIGN_OR_RETURN(selection.validation,
                         validationRows(total, validationSize, seed));
  uint32_t first = 0;
  int64_t number = kFirstWeightDraw;
  for (const RowSource &source : sources) {
    const auto end = first + static_cast<uint32_t>(source.rows);
    std::vector<uint32_t> rest;
    rest.reserve(static_cast<size_t>(source.rows));
    std::ranges::set_difference(std::views::iota(first, end),
                                selection.validation, std::back_inserter(rest));
    QLORA_RETURN_IF_ERROR(
        addWeighted(rest, source, seed, number--, selection.training));
    first = end;
  }
  return selection;
}

} // namespace qlora
