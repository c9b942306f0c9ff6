// SPDX-License-Identifier: MIT

// Plans each candidate batch size, then chooses one.

#include "tools/qloracc/BatchSearch.h"

#include <optional>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/StepRows.h"
#include "tools/qloracc/Remarks.h"

using namespace mlir;

namespace qlora {

/// Multiples of the smallest time per row. The largest batch within kAsGood is
/// chosen; a batch above kWorthMore ends the search.
static constexpr double kAsGood = 1.01, kWorthMore = 1.05;

static double leastSeconds(ArrayRef<FoundBatch> candidates) {
  double least = candidates.front().plan.rowSeconds;
  for (const FoundBatch &candidate : candidates)
    least = std::min(least, candidate.plan.rowSeconds);
  return least;
}

static const FoundBatch &bestOf(ArrayRef<FoundBatch> candidates) {
  const double least = leastSeconds(candidates);
  const FoundBatch *best = nullptr;
  for (const FoundBatch &candidate : candidates)
    if (candidate.plan.rowSeconds <= least * kAsGood)
      best = &candidate;
  return *best;
}

/// Returns "batch 4 x 8 accumulation steps x 2 ranks = 64 rows a step; plan 7.9
/// of 8.0 GiB; batch 8 does not fit".
static std::string reasonOf(const FoundBatch &best,
                            ArrayRef<FoundBatch> candidates, int64_t refused,
                            const CompilerSettings &settings) {
  std::string text = fmt::format("batch {}", best.batch);
  if (const int64_t rows = settings.options.integer("global_batch_size"))
    text += fmt::format(" x {} x {} = {} a step",
                        formatCounted(rows / (best.batch * settings.rowRanks()),
                                      "accumulation step"),
                        formatCounted(settings.rowRanks(), "rank"),
                        formatCounted(rows, "row"));
  text += "; plan " + planText(best.plan.bytes, settings.compile.memoryLimit);
  if (&best != &candidates.back())
    return text +
           fmt::format(
               "; with batch {} a row would take {:.0f} % longer",
               candidates.back().batch,
               100 * (candidates.back().plan.rowSeconds / best.plan.rowSeconds -
                      1));
  if (refused)
    return text + fmt::format("; batch {} does not fit", refused);
  return best.batch == kMostFound
             ? text + "; a larger --per-device-train-batch-size tries more"
             : text;
}

/// Plans candidates in ascending order. Stops at the first batch that does not
/// fit; it becomes `refused`. Stops after a batch whose time per row exceeds
/// kWorthMore, because larger batches would only recompute more.
static FailureOr<std::vector<FoundBatch>>
planAll(ModuleOp model, CompilerSettings &settings, const DeviceProfile &device,
        std::optional<FoundBatch> &refused) {
  std::vector<FoundBatch> candidates;
  for (int64_t batch : settings.batches) {
    if (Status status = setBatch(settings, batch); !status.isOk())
      return emitError(model.getLoc(), status.message());
    FailureOr<StepPlan> plan = planStep(model, settings, device);
    if (failed(plan))
      return failure();
    if (!plan->fits) {
      refused = {batch, *plan, ""};
      break;
    }
    candidates.push_back({batch, *plan, ""});
    if (plan->rowSeconds > kWorthMore * leastSeconds(candidates))
      break;
  }
  return candidates;
}

FailureOr<FoundBatch> findBatch(ModuleOp model, CompilerSettings &settings,
                                const DeviceProfile &device) {
  std::optional<FoundBatch> refused;
  FailureOr<std::vector<FoundBatch>> planned =
      planAll(model, settings, device, refused);
  if (failed(planned))
    return failure();
  const FoundBatch &best = planned->empty() ? *refused : bestOf(*planned);
  if (Status status = setBatch(settings, best.batch); !status.isOk())
    return emitError(model.getLoc(), status.message());
  FoundBatch found = best;
  if (!planned->empty())
    found.reason =
        reasonOf(best, *planned, refused ? refused->batch : 0, settings);
  return found;
}

} // namespace qlora
