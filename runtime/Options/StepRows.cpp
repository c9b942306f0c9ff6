// SPDX-License-Identifier: MIT

// Divides a step's rows among ranks and micro-batches; explains remainders.

#include "runtime/Options/StepRows.h"

#include "runtime/Base/Amounts.h"

namespace qlora {

static constexpr const char *kGlobal = "global_batch_size";
static constexpr const char *kBatch = "per_device_train_batch_size";
static constexpr const char *kAccumulation = "gradient_accumulation_steps";

std::string stepRowsText(int64_t batch, int64_t ranks, int64_t accumulation) {
  return fmt::format("{} x {} x {} accumulated = {} a step",
                     formatCounted(batch, "row"), formatCounted(ranks, "rank"),
                     accumulation,
                     formatCounted(batch * ranks * accumulation, "row"));
}

/// Returns the error for a global batch size that is not a multiple of `batch`
/// rows on each rank.
static Status cannotShare(const Options &options, int64_t batch,
                          int64_t ranks) {
  const int64_t rows = options.integer(kGlobal), once = batch * ranks;
  const int64_t below = rows / once * once;
  return Status::invalid(
      "{} {} is not a multiple of {} x {}; use {}", options.spelling(kGlobal),
      rows, formatCounted(ranks, "rank"), formatCounted(batch, "row"),
      below == 0 ? fmt::format("{}", once)
                 : fmt::format("{} or {}", below, below + once));
}

bool isAccumulationGiven(const Options &options) {
  using enum Options::Source;
  const Options::Source source = options.source(kAccumulation);
  if (options.value(kAccumulation) == "auto" ||
      source < options.source(kGlobal))
    return false;
  return source > kRecorded ||
         (source == kRecorded && options.value(kAccumulation) != 1);
}

StatusOr<int64_t> accumulationSteps(const Options &options, int64_t ranks) {
  const int64_t rows = options.integer(kGlobal);
  if (rows == 0)
    return options.integer(kAccumulation);
  const int64_t batch = options.integer(kBatch);
  if (rows % (batch * ranks) != 0)
    return cannotShare(options, batch, ranks);
  const int64_t steps = rows / (batch * ranks);
  if (isAccumulationGiven(options) && options.integer(kAccumulation) != steps)
    return Status::invalid(
        "{} {} is {}, but {} is {}; remove one", options.spelling(kGlobal),
        rows, stepRowsText(batch, ranks, steps),
        options.spelling(kAccumulation), options.integer(kAccumulation));
  return steps;
}

StatusOr<std::vector<int64_t>> batchCandidates(const Options &options,
                                               int64_t ranks) {
  const bool isBounded = options.isGiven(kBatch);
  const int64_t most = isBounded ? options.integer(kBatch) : kMostFound;
  std::vector<int64_t> batches;
  const int64_t rows = options.integer(kGlobal);
  if (rows == 0) {
    for (int64_t batch = most; batch > 0; batch /= 2)
      batches.insert(batches.begin(), batch);
    return batches;
  }
  if (isAccumulationGiven(options))
    return Status::invalid(
        "{} is computed from {} and the batch size of {}; remove it",
        options.spelling(kAccumulation), options.spelling(kGlobal),
        options.spelling("auto_find_batch_size"));
  if (rows % ranks != 0)
    return cannotShare(options, 1, ranks);
  for (int64_t batch = 1; batch <= std::min(most, rows / ranks); ++batch)
    if (rows / ranks % batch == 0)
      batches.push_back(batch);
  return batches;
}

} // namespace qlora
