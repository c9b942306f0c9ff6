// SPDX-License-Identifier: MIT

// Assigns rows to micro-batches and micro-batches to ranks, costliest first.

#include "runtime/Data/StepPacking.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <optional>
#include <set>

namespace qlora {

/// Fixed cost of a micro-batch, in tokens, for decoding weights and starting
/// kernels. The value is a rough estimate for CPUs. It matters only between
/// plans of about equal cost.
static constexpr int64_t kTokensPerMicroBatch = 32;

int64_t bucketFor(int64_t tokens, std::span<const int64_t> buckets) {
  const auto bucket = std::lower_bound(buckets.begin(), buckets.end(), tokens);
  assert(bucket != buckets.end());
  return *bucket;
}

namespace {

struct Bin {
  std::vector<int64_t> rows;
  int64_t tokens = 0;
  double cost = 0; ///< cost of the bin's rows, without padding
};

class Packer {
public:
  Packer(std::span<const int64_t> lengths, const PackingShape &shape);
  StepPlan run() const;

private:
  std::vector<double> sharesOf(int64_t count) const;
  std::optional<std::vector<Bin>> fill(int64_t count) const;
  std::vector<Bin> asGiven() const;
  StepPlan deal(std::vector<Bin> bins, double &cost) const;
  StepPlan assignByIndex(std::vector<Bin> bins, double &cost) const;
  double cost(const Bin &bin) const;
  void add(Bin &bin, int64_t row) const;

  const std::span<const int64_t> lengths;
  const PackingShape &shape;
  std::vector<int64_t> dearestFirst; ///< row indices
};

} // namespace

Packer::Packer(std::span<const int64_t> lengths, const PackingShape &shape)
    : lengths(lengths), shape(shape), dearestFirst(lengths.size()) {
  std::iota(dearestFirst.begin(), dearestFirst.end(), 0);
  std::stable_sort(dearestFirst.begin(), dearestFirst.end(),
                   [&](int64_t left, int64_t right) {
                     return lengths[left] > lengths[right];
                   });
}

void Packer::add(Bin &bin, int64_t row) const {
  bin.rows.push_back(row);
  bin.tokens += lengths[row];
  bin.cost += shape.costs.ofRow(lengths[row]);
}

/// Returns the cost of a bin, including padding up to its bucket.
double Packer::cost(const Bin &bin) const {
  const int64_t bucket = bucketFor(bin.tokens, shape.buckets);
  return bin.cost + shape.costs.token *
                        static_cast<double>(bucket - bin.tokens +
                                            kTokensPerMicroBatch);
}

/// Returns relative loads of `count` bins with which all ranks finish together.
std::vector<double> Packer::sharesOf(int64_t count) const {
  std::vector<double> shares(static_cast<size_t>(count), 1);
  const MicroBatchAssignment deal(count, shape.ranks, shape.speeds);
  for (size_t rank = 0; rank < shape.speeds.size(); ++rank) {
    const int64_t own = deal.size(static_cast<int64_t>(rank));
    for (int64_t k = 0; k < own; ++k)
      shares[deal.number(static_cast<int64_t>(rank), k)] =
          shape.speeds[rank] / static_cast<double>(own);
  }
  return shares;
}

/// Distributes the rows over `count` bins; nullopt if a row does not fit.
std::optional<std::vector<Bin>> Packer::fill(int64_t count) const {
  const std::vector<double> shares = sharesOf(count);
  std::vector<Bin> bins(static_cast<size_t>(count));
  std::set<std::pair<double, int64_t>> cheapest; ///< (cost / load, bin)
  for (int64_t i = 0; i < count; ++i)
    cheapest.insert({0, i});
  for (int64_t row : dearestFirst) {
    const auto place =
        std::find_if(cheapest.begin(), cheapest.end(), [&](const auto &entry) {
          return bins[entry.second].tokens + lengths[row] <=
                 shape.buckets.back();
        });
    if (place == cheapest.end())
      return std::nullopt;
    const int64_t index = place->second;
    cheapest.erase(place);
    add(bins[index], row);
    cheapest.insert({bins[index].cost / shares[index], index});
  }
  return bins;
}

/// Puts B consecutive rows into each bin. These always fit.
std::vector<Bin> Packer::asGiven() const {
  std::vector<Bin> bins(static_cast<size_t>(shape.accumulation * shape.ranks));
  for (size_t row = 0; row < lengths.size(); ++row)
    add(bins[row / static_cast<size_t>(shape.rows)], static_cast<int64_t>(row));
  return bins;
}

/// Assigns bin i to the rank that runs micro-batch i, since fill() sized the
/// bin for that rank's speed. `dearest` receives the time of the slowest rank.
StepPlan Packer::assignByIndex(std::vector<Bin> bins, double &dearest) const {
  StepPlan plan(bins.size());
  const MicroBatchAssignment deal(static_cast<int64_t>(bins.size()),
                                  shape.ranks, shape.speeds);
  dearest = 0;
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    double costs = 0;
    for (int64_t k = 0; k < deal.size(rank); ++k) {
      Bin &bin = bins[deal.number(rank, k)];
      costs += cost(bin);
      std::sort(bin.rows.begin(), bin.rows.end());
      plan[deal.number(rank, k)] = std::move(bin.rows);
    }
    dearest = std::max(dearest, costs / shape.speeds[rank]);
  }
  return plan;
}

/// Assigns bins to ranks: by index if ranks have different speeds, else equally
/// many per rank. `dearest` receives the highest cost of a rank.
StepPlan Packer::deal(std::vector<Bin> bins, double &dearest) const {
  if (!shape.speeds.empty())
    return assignByIndex(std::move(bins), dearest);
  const int64_t each = static_cast<int64_t>(bins.size()) / shape.ranks;
  std::stable_sort(bins.begin(), bins.end(),
                   [&](const Bin &left, const Bin &right) {
                     return cost(left) > cost(right);
                   });
  StepPlan plan(bins.size());
  std::vector<double> costs(static_cast<size_t>(shape.ranks));
  std::vector<int64_t> counts(costs.size());
  std::set<std::pair<double, int64_t>> cheapest; ///< cost, rank
  for (int64_t rank = 0; rank < shape.ranks; ++rank)
    cheapest.insert({0, rank});
  for (Bin &bin : bins) {
    const int64_t rank = cheapest.extract(cheapest.begin()).value().second;
    std::sort(bin.rows.begin(), bin.rows.end());
    plan[counts[rank]++ * shape.ranks + rank] = std::move(bin.rows);
    costs[rank] += cost(bin);
    if (counts[rank] < each)
      cheapest.insert({costs[rank], rank});
  }
  dearest = *std::max_element(costs.begin(), costs.end());
  return plan;
}

StepPlan Packer::run() const {
  const int64_t tokens =
      std::accumulate(lengths.begin(), lengths.end(), int64_t(0));
  const int64_t room = shape.buckets.back() * shape.ranks;
  const int64_t least = std::max<int64_t>(1, (tokens + room - 1) / room);
  // More than twice the fewest possible micro-batches is never the cheapest.
  const int64_t most = std::min(shape.accumulation, 2 * least);
  StepPlan best;
  double bestCost = 0;
  for (int64_t each = least; each <= most; ++each) {
    std::optional<std::vector<Bin>> bins = fill(each * shape.ranks);
    if (!bins)
      continue;
    double cost = 0;
    StepPlan plan = deal(*std::move(bins), cost);
    if (best.empty() || cost < bestCost) {
      best = std::move(plan);
      bestCost = cost;
    }
  }
  return best.empty() ? deal(asGiven(), bestCost) : best;
}

StepPlan packStep(std::span<const int64_t> lengths, const PackingShape &shape) {
  assert(static_cast<int64_t>(lengths.size()) <=
         shape.rows * shape.accumulation * shape.ranks);
  return Packer(lengths, shape).run();
}

} // namespace qlora
