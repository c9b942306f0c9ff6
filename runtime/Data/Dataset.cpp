// SPDX-License-Identifier: MIT

// What token files and rows files have in common.

#include "runtime/Data/Dataset.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "runtime/Data/RowsFile.h"
#include "runtime/Data/TokenFile.h"

namespace qlora {

int64_t Dataset::stepsPerEpoch(int64_t perStep) const {
  return (count() + perStep - 1) / perStep;
}

double Dataset::epochAfter(int64_t steps, int64_t perStep) const {
  double whole = static_cast<double>(count());
  if (!endsEpochs())
    return static_cast<double>(steps * perStep) / whole;
  int64_t stepsInEpoch = stepsPerEpoch(perStep);
  int64_t inEpoch = std::min(steps % stepsInEpoch * perStep, count());
  return static_cast<double>(steps / stepsInEpoch) +
         static_cast<double>(inEpoch) / whole;
}

Dataset::Place Dataset::placeOf(int64_t step, int64_t index,
                                const StepShape &shape) const {
  const int64_t perStep = shape.count();
  if (!endsEpochs())
    return {-1, (step * perStep + index) % count()};
  const int64_t stepsInEpoch = stepsPerEpoch(perStep);
  return {step / stepsInEpoch, step % stepsInEpoch * perStep + index};
}

void Dataset::read(int64_t step, int64_t index, const StepShape &shape,
                   MicroBatch &out) {
  const Place place = placeOf(step, index, shape);
  if (place.number < count())
    fill(place.epoch, place.number, out);
  else
    out.clear(smallestShape());
}

void Dataset::readInOrder(int64_t number, MicroBatch &out) {
  if (number < count())
    fill(-1, number, out);
  else
    out.clear(smallestShape());
}

BatchShape Dataset::shapeOf(int64_t step, int64_t index,
                            const StepShape &shape) {
  const Place place = placeOf(step, index, shape);
  return place.number < count() ? shapeAt(place.epoch, place.number)
                                : smallestShape();
}

int64_t Dataset::labelsOf(int64_t step, int64_t index,
                          const StepShape &shape) {
  const Place place = placeOf(step, index, shape);
  return place.number < count() ? labelsAt(place.epoch, place.number) : 0;
}

std::optional<int64_t> Dataset::mostLabels(int64_t step, int64_t k,
                                           const StepShape &shape) {
  const int64_t first = k * shape.ranks;
  int64_t most = 0;
  for (int64_t index = first; index < first + shape.ranks; ++index) {
    if (shapeOf(step, index, shape) != shapeOf(step, first, shape))
      return std::nullopt;
    most = std::max(most, labelsOf(step, index, shape));
  }
  return most;
}

BatchShape Dataset::shapeInOrder(int64_t number) {
  return number < count() ? shapeAt(-1, number) : smallestShape();
}

StatusOr<std::unique_ptr<Dataset>> openDataset(const std::string &path,
                                               const CompiledVariants &shape,
                                               const DatasetOptions &options) {
  QLORA_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  if (file.find("row_offsets"))
    return RowsFile::open(std::move(file), shape, options);
  return TokenFile::open(std::move(file), shape);
}

void placeRow(const TokenRow &row, int64_t b, int64_t offset, int32_t segment,
              MicroBatch &out) {
  int64_t size = static_cast<int64_t>(row.ids.size());
  assert(offset + size <= out.length);
  int64_t first = b * out.length + offset;
  for (int64_t t = 0; t < size; ++t) {
    out.ids[first + t] = row.ids[t];
    out.targets[first + t] = t + 1 < size ? row.labels[t + 1] : kNoLabel;
    out.positions[first + t] = static_cast<int32_t>(t);
    out.segments[first + t] = segment;
  }
}

/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
/// 2014. A standard library's shuffle differs between implementations.
static uint64_t splitMix(uint64_t &state) {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// Uniform in [0, bound), without bias (Lemire, 2019).
static uint64_t randomBelow(uint64_t bound, uint64_t &state) {
  while (true) {
    unsigned __int128 product =
        static_cast<unsigned __int128>(splitMix(state)) * bound;
    if (static_cast<uint64_t>(product) >= -bound % bound)
      return static_cast<uint64_t>(product >> 64);
  }
}

std::vector<int64_t> shuffledOrder(int64_t count, uint64_t seed,
                                   int64_t epoch) {
  uint64_t state = seed;
  state = splitMix(state) + static_cast<uint64_t>(epoch);
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = count - 1; i > 0; --i)
    std::swap(order[i],
              order[randomBelow(static_cast<uint64_t>(i) + 1, state)]);
  return order;
}

std::vector<int64_t> packFirstFit(std::span<const int64_t> lengths,
                                  int64_t capacity) {
  // A tournament tree over the free space of all bins that could be needed;
  // tree[1] is the largest. The leftmost bin with room is found top down.
  size_t leaves = 1;
  while (leaves < lengths.size())
    leaves *= 2;
  std::vector<int64_t> tree(2 * leaves, capacity);
  std::vector<int64_t> bins;
  bins.reserve(lengths.size());
  for (int64_t length : lengths) {
    assert(length <= capacity);
    size_t node = 1;
    while (node < leaves)
      node = tree[2 * node] >= length ? 2 * node : 2 * node + 1;
    bins.push_back(static_cast<int64_t>(node - leaves));
    tree[node] -= length;
    while (node /= 2)
      tree[node] = std::max(tree[2 * node], tree[2 * node + 1]);
  }
  return bins;
}

RowMatches countRowMatches(const MicroBatch &batch,
                           std::span<const int32_t> correct) {
  RowMatches matches;
  for (int64_t b = 0; b < batch.batch; ++b) {
    int64_t begin = b * batch.length, end = begin + batch.length;
    for (int64_t t = begin; t < end;) {
      int64_t labelled = 0, right = 0, next = t;
      for (; next < end && batch.segments[next] == batch.segments[t]; ++next) {
        bool hasTarget = batch.targets[next] != kNoLabel;
        labelled += hasTarget;
        right += hasTarget && correct[next] != 0;
      }
      matches.rows += labelled > 0;
      matches.matched += labelled > 0 && right == labelled;
      t = next;
    }
  }
  return matches;
}

} // namespace qlora
