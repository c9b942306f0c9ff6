// SPDX-License-Identifier: MIT

// Plans candidate batch sizes in ascending order, then chooses one.

#include "compiler/Search/BatchSearch.h"

#include <limits>

#include "runtime/Base/Amounts.h"
#include "runtime/Options/StepRows.h"

using namespace mlir;

namespace qlora {

/// Multiples of the smallest time per row. The largest batch within kAsGood is
/// chosen; a batch above kWorthMore ends the search.
static constexpr double kAsGood = 1.01, kWorthMore = 1.05;

/// Returns "batch 4 x 8 accumulation steps x 2 ranks = 64 rows a step; plan 7.9
/// of 8.0 GiB; batch 8 does not fit".
static std::string reasonOf(const FoundBatch &best, const FoundBatch &largest,
                            int64_t refused, const PlanSettings &settings) {
  std::string text = fmt::format("batch {}", best.batch);
  if (const int64_t rows = settings.options.integer("global_batch_size"))
    text += fmt::format(" x {} x {} = {} a step",
                        formatCounted(rows / (best.batch * settings.rowRanks()),
                                      "accumulation step"),
                        formatCounted(settings.rowRanks(), "rank"),
                        formatCounted(rows, "row"));
  text += "; plan " + planText(best.plan.bytes, settings.compile.memoryLimit);
  if (best.batch != largest.batch)
    return text +
           fmt::format(
               "; with batch {} a row would take {:.0f} % longer",
               largest.batch,
               100 * (largest.plan.rowSeconds / best.plan.rowSeconds - 1));
  if (refused)
    return text + fmt::format("; batch {} does not fit", refused);
  return best.batch == kMostFound
             ? text + "; a larger --per-device-train-batch-size tries more"
             : text;
}

static FailureOr<FoundBatch> planBatch(const PlanSettings &settings,
                                       StepPlanner plan) {
  FailureOr<StepPlan> planned = plan(settings);
  if (failed(planned))
    return failure();
  return FoundBatch{settings.compile.batch, *planned, ""};
}

FailureOr<FoundBatch> findBatch(Location location, PlanSettings &settings,
                                StepPlanner plan) {
  if (settings.batches.empty())
    return planBatch(settings, plan);
  std::vector<FoundBatch> candidates; // that fit
  double least = std::numeric_limits<double>::infinity();
  int64_t refused = 0;
  for (int64_t batch : settings.batches) {
    if (Status status = setBatch(settings, batch); !status.isOk())
      return emitError(location, status.message());
    FailureOr<FoundBatch> found = planBatch(settings, plan);
    if (failed(found) || (!found->plan.fits && candidates.empty()))
      return found;
    if (!found->plan.fits) {
      refused = batch;
      break;
    }
    candidates.push_back(*found);
    least = std::min(least, found->plan.rowSeconds);
    // Larger batches would only recompute more.
    if (found->plan.rowSeconds > kWorthMore * least)
      break;
  }
  FoundBatch best = *llvm::find_if(
      llvm::reverse(candidates), [&](const FoundBatch &candidate) {
        return candidate.plan.rowSeconds <= least * kAsGood;
      });
  if (Status status = setBatch(settings, best.batch); !status.isOk())
    return emitError(location, status.message());
  best.reason = reasonOf(best, candidates.back(), refused, settings);
  return best;
}

} // namespace qlora
