// SPDX-License-Identifier: MIT

// A plan for each candidate, then the choice.

#include "tools/qloracc/BatchSearch.h"

#include <optional>

#include "compiler/Driver.h"
#include "compiler/Report/CommandTimes.h"
#include "compiler/Schedule/EntryBuffers.h"
#include "runtime/Base/Amounts.h"
#include "runtime/Base/StepRows.h"
#include "tools/qloracc/Remarks.h"

using namespace mlir;

namespace qlora {

namespace {
struct Candidate {
  int64_t batch = 0;
  int64_t bytes = 0;
  double rowSeconds = 0; ///< predicted, of a micro-batch
};
} // namespace

/// Of the largest micro-batch.
static FailureOr<double> rowSeconds(ModuleOp program,
                                    const DeviceProfile &device) {
  FailureOr<CommandTimes> times = CommandTimes::create(program, device);
  if (failed(times))
    return failure();
  program::EntryOp largest;
  for (auto entry : program.getOps<program::EntryOp>())
    if (entry.getKind() == program::EntryKind::AccumulateLast &&
        (!largest || entry.getBatch() * entry.getLength() >
                         largest.getBatch() * largest.getLength()))
      largest = entry;
  return times->secondsOf(largest, QueueSharing::kSideBySide);
}

/// No value: no plan of this batch fits.
static FailureOr<std::optional<Candidate>>
planOf(ModuleOp model, const CompilerSettings &settings,
       const DeviceProfile &device) {
  CompileOptions options = settings.compile;
  options.remarks = false;
  OwningOpRef<ModuleOp> program = model.clone();
  Driver driver(*model.getContext(), options);
  FailureOr<bool> fits = driver.plan(program);
  if (failed(fits))
    return failure();
  if (!*fits)
    return std::optional<Candidate>();
  FailureOr<double> seconds = rowSeconds(*program, device);
  if (failed(seconds))
    return failure();
  return std::optional<Candidate>({options.batch, plannedBytes(*program),
                                   *seconds / double(options.batch)});
}

/// How much slower than the least a row may be.
static constexpr double kAsGood = 1.01, kWorthMore = 1.05;

static double leastSeconds(ArrayRef<Candidate> candidates) {
  double least = candidates.front().rowSeconds;
  for (const Candidate &candidate : candidates)
    least = std::min(least, candidate.rowSeconds);
  return least;
}

static const Candidate &bestOf(ArrayRef<Candidate> candidates) {
  const double least = leastSeconds(candidates);
  const Candidate *best = nullptr;
  for (const Candidate &candidate : candidates)
    if (candidate.rowSeconds <= least * kAsGood)
      best = &candidate;
  return *best;
}

/// "batch 4 x 8 accumulation steps x 2 ranks = 64 rows a step; plan 7.9 of 8.0
/// GiB; batch 8 does not fit".
static std::string reasonOf(const Candidate &best,
                            ArrayRef<Candidate> candidates, int64_t refused,
                            const CompilerSettings &settings) {
  std::string text = fmt::format("batch {}", best.batch);
  if (const int64_t rows = settings.options.integer("global_batch_size"))
    text += fmt::format(" x {} x {} = {} a step",
                        formatCounted(rows / (best.batch * settings.ranks),
                                      "accumulation step"),
                        formatCounted(settings.ranks, "rank"),
                        formatCounted(rows, "row"));
  text += "; plan " + planText(best.bytes, settings.compile.memoryLimit);
  if (&best != &candidates.back())
    return text + fmt::format("; with batch {} a row would take {:.0f} % more "
                              "time",
                              candidates.back().batch,
                              100 * (candidates.back().rowSeconds /
                                         best.rowSeconds -
                                     1));
  if (refused)
    return text + fmt::format("; batch {} does not fit", refused);
  return best.batch == kMostFound
             ? text + "; a larger --per-device-train-batch-size tries more"
             : text;
}

/// Plans in order, to the first that does not fit, which becomes `refused`, or
/// that is so slow that larger ones would only compute more again.
static FailureOr<std::vector<Candidate>>
planAll(ModuleOp model, CompilerSettings &settings, const DeviceProfile &device,
        int64_t &refused) {
  std::vector<Candidate> candidates;
  for (int64_t batch : settings.batches) {
    if (Status status = setBatch(settings, batch); !status.isOk())
      return emitError(model.getLoc(), status.message());
    FailureOr<std::optional<Candidate>> plan = planOf(model, settings, device);
    if (failed(plan))
      return failure();
    if (!*plan) {
      refused = batch;
      break;
    }
    candidates.push_back(**plan);
    if ((*plan)->rowSeconds > kWorthMore * leastSeconds(candidates))
      break;
  }
  return candidates;
}

LogicalResult findBatch(ModuleOp model, CompilerSettings &settings) {
  if (settings.batches.empty())
    return success();
  StatusOr<DeviceProfile> device = deviceProfileOrDefault(
      settings.compile.deviceProfile, settings.compile.target);
  if (!device.isOk())
    return emitError(model.getLoc(), device.status().message());
  int64_t refused = 0;
  FailureOr<std::vector<Candidate>> planned =
      planAll(model, settings, *device, refused);
  if (failed(planned))
    return failure();
  const std::vector<Candidate> &candidates = *planned;
  const bool isAny = !candidates.empty();
  const int64_t batch =
      isAny ? bestOf(candidates).batch : settings.batches.front();
  if (Status status = setBatch(settings, batch); !status.isOk())
    return emitError(model.getLoc(), status.message());
  if (isAny)
    llvm::errs() << "qloracc: note: "
                 << reasonOf(bestOf(candidates), candidates, refused, settings)
                 << "\n";
  return success();
}

} // namespace qlora
