// SPDX-License-Identifier: MIT

// The phases in order, and the search for a plan within the memory limit.

#include "compiler/Driver.h"

#include "mlir/IR/Remarks.h"
#include "mlir/Pass/PassManager.h"

#include "compiler/Decisions.h"
#include "compiler/Passes.h"
#include "compiler/Schedule/Commands.h"
#include "compiler/Schedule/EntryBuffers.h"

#include "runtime/ABI/module.h"
#include "runtime/Base/Amounts.h"
#include "runtime/Module/ModuleLoader.h"

using namespace mlir;
using namespace qlora;

/// Attempts to fit a plan: each lowers the last peak by the last overshoot.
static constexpr int kMaxAttempts = 8;
/// The part of what weights may fill that their places take beside them.
static constexpr int64_t kLostToPacking = 64;
/// A budget that no choice meets: asks for the lowest peak.
static constexpr int64_t kLeastBudget = 1;
/// A plan that gives up everything is within a few percent of the smallest:
/// where it is above so much of the limit, none fits.
static constexpr double kHopeless = 1.1;

/// Bytes alive at the peak, as rematerialize counts them: what the arena has
/// without workspaces, joined weights and what the packing loses.
static int64_t estimatedPeak(ModuleOp module) {
  int64_t peak = 0;
  for (auto entry : module.getOps<program::EntryOp>())
    if (auto decision = decisionOf<DictionaryAttr>(entry, "rematerialize"))
      peak = std::max(
          peak, decision.getAs<IntegerAttr>("estimated_peak").getInt());
  return peak;
}

/// Chunks of a batch whose activations are there at the same time: what is saved
/// of one is saved of all.
static int64_t chunksInFlight(ModuleOp module) {
  int64_t chunks = 1;
  for (auto entry : module.getOps<program::EntryOp>())
    if (auto decision =
            decisionOf<DictionaryAttr>(entry, "unroll-micro-batches"))
      chunks = std::max(chunks,
                        decision.getAs<IntegerAttr>("in_flight").getInt());
  return chunks;
}

/// What a plan may save at most by running everything in order: the largest
/// buffer that is written beside the compute queue, and what waits there of
/// gathered weights.
static int64_t mostBytesAhead(ModuleOp module) {
  int64_t bytes = 0, gathered = 0;
  for (auto entry : module.getOps<program::EntryOp>())
    if (auto decision = decisionOf<DictionaryAttr>(entry, "schedule-gathers"))
      gathered = std::max(
          gathered, decision.getAs<IntegerAttr>("room_bytes").getInt());
  module.walk([&](program::LaunchOp launch) {
    if (launch.getQueue() == program::Queue::Compute)
      return;
    for (Value buffer : buffersWritten(launch))
      bytes = std::max<int64_t>(bytes, rootOf(buffer).getBytes());
  });
  return bytes + gathered;
}

LogicalResult Driver::runPhase(const Phase &phase, ModuleOp module,
                               const MemoryBudget &budget) {
  PassManager pm(&context, ModuleOp::getOperationName());
  if (failed(applyPassManagerCLOptions(pm)))
    return failure();
  applyDefaultTimingPassManagerCLOptions(pm);
  phase.build(pm, options, budget);
  VerifyPhaseOptions verify;
  verify.phase = phase.name;
  pm.addPass(createVerifyPhase(verify));
  // verify-phase does it once for all of them; qlora-opt after each pass.
  pm.enableVerifier(false);
  return pm.run(module);
}

LogicalResult Driver::optimizeAndPlan(ModuleOp module,
                                      const MemoryBudget &budget) {
  for (const Phase &phase : phases().drop_front(2))
    if (failed(runPhase(phase, module, budget)))
      return failure();
  return success();
}

/// "frozen base 1.3 MiB, adapters 0.2 MiB, ...".
static std::string arenasInWords(ModuleOp program) {
  std::string text;
  for (auto arena : program.getOps<program::ArenaOp>())
    if (arena.getBytes() > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : "; ",
                          arenaTitle(static_cast<unsigned>(arena.getKind())),
                          formatBytes(arena.getBytes()));
  return text;
}

static int64_t frozenBytes(ModuleOp program) {
  int64_t bytes = 0;
  for (auto arena : program.getOps<program::ArenaOp>())
    if (arena.getKind() == program::Arena::Frozen)
      bytes += arena.getBytes();
  return bytes;
}

/// The first few of a step's largest tensors, "4.0 MiB of MODULE, ...".
static std::string largestTensors(ModuleOp program) {
  constexpr size_t kShown = 3;
  std::vector<std::string> tensors;
  for (auto entry : program.getOps<program::EntryOp>())
    if (entry.getKind() == program::EntryKind::AccumulateLast &&
        tensors.empty())
      for (program::BufferOp buffer : largestBuffers(entry, kShown))
        tensors.push_back(fmt::format("{} of {}",
                                      formatBytes(buffer.getBytes()),
                                      buffer.getLabel().value_or("").str()));
  return fmt::format("{}", fmt::join(tensors, ", "));
}

/// A plan that gives up everything.
MemoryBudget Driver::leastBudget() const {
  MemoryBudget least = concessions().back();
  least.activationBytes = kLeastBudget;
  least.inOrder = least.siblingsApart = true;
  return least;
}

/// What a base in host memory would leave, where that fits; else nothing.
std::string Driver::curedByOffload(ModuleOp step) {
  if (!traits.offloadsTables || chosen.offloadBase || options.trainsAll)
    return "";
  MemoryBudget budget = leastBudget();
  budget.offloadBase = true;
  OwningOpRef<ModuleOp> plan = step.clone();
  if (failed(optimizeAndPlan(*plan, budget)) ||
      plannedBytes(*plan) > options.memoryLimit || isAboveHostLimit(*plan))
    return "";
  return fmt::format("--offload base leaves {} on the card, and takes {} of "
                     "pinned host memory",
                     formatBytes(plannedBytes(*plan)),
                     formatBytes(plannedHostBytes(*plan)));
}

bool Driver::isAboveHostLimit(ModuleOp program) const {
  return options.hostMemoryLimit > 0 &&
         plannedHostBytes(program) > options.hostMemoryLimit;
}

/// What is there is what was asked for, or the only plan within --memory-limit.
LogicalResult Driver::checkHostLimit(ModuleOp program) const {
  if (!isAboveHostLimit(program))
    return success();
  std::string parts;
  for (auto arena : program.getOps<program::ArenaOp>())
    if (arena.isOnHost())
      parts += fmt::format("{}{} {}", parts.empty() ? "" : "; ",
                           arenaTitle(static_cast<unsigned>(arena.getKind())),
                           formatBytes(arena.getBytes()));
  InFlightDiagnostic error =
      emitError(program.getLoc())
      << "--host-memory-limit: the smallest plan needs "
      << formatBytes(plannedHostBytes(program)) << " ("
      << plannedHostBytes(program) << " bytes) of pinned host memory, but the "
      << "limit is " << formatBytes(options.hostMemoryLimit)
      << "; raise it to at least that, or ask for less with --offload";
  error.attachNote(program.getLoc()) << "of it: " << parts;
  return error;
}

LogicalResult Driver::refuseLimit(ModuleOp step, ModuleOp program) {
  smallest = plannedBytes(program);
  if (!explainsLimit)
    return failure();
  const std::string cure = curedByOffload(step);
  const StoredFormat *stored =
      storedFormat(std::string_view(options.quantizedFormat));
  InFlightDiagnostic error = emitError(program.getLoc())
      << "--memory-limit: the smallest plan needs " << formatBytes(smallest)
      << " (" << smallest << " bytes), but the limit is "
      << formatBytes(options.memoryLimit)
      << "; raise it to at least that, or lower --max-length, "
         "--per-device-train-batch-size or --lora-r"
      << (stored && stored->bits == 4 ? "" : ", or use --load-in-4bit");
  error.attachNote(program.getLoc())
      << "of it: " << arenasInWords(program);
  if (options.stages > 1)
    error.attachNote(program.getLoc())
        << "that is stage " << options.stage << " of the " << options.stages
        << " of a pipeline; --num-micro-batches makes chunks of a micro-batch "
           "smaller";
  if (const int64_t base = frozenBytes(program); base > options.memoryLimit)
    error.attachNote(program.getLoc())
        << "the frozen base alone has " << formatBytes(base)
        << (options.shards > 1 || options.tensorRanks > 1 ||
                    options.expertRanks > 1
                ? ", divided as it is: --parallel with more ranks makes its "
                  "parts smaller"
                : ", which each rank holds whole: --parallel fsdp=N divides it "
                  "among N ranks");
  if (std::string tensors = largestTensors(program); !tensors.empty())
    error.attachNote(program.getLoc()) << "large tensors: " << tensors;
  if (!cure.empty())
    error.attachNote(program.getLoc()) << cure;
  return error;
}

/// Optimises and plans copies of `step` with smaller and smaller budgets
/// until the plan fits; the smallest one is left in `best`. Where none fits,
/// the lowest peak of all is tried last, so that what a refusal names as the
/// smallest plan is found when it is asked for.
LogicalResult Driver::shrink(ModuleOp step, OwningOpRef<ModuleOp> &best) {
  for (int attempt = 0; attempt <= kMaxAttempts; ++attempt) {
    OwningOpRef<ModuleOp> plan = step.clone();
    if (failed(optimizeAndPlan(*plan, chosen)))
      return failure();
    int64_t bytes = plannedBytes(*plan);
    int64_t overshoot = bytes - options.memoryLimit;
    bool isEnd = overshoot <= 0 || chosen.activationBytes == kLeastBudget ||
                 !options.isEnabled("rematerialize");
    int64_t peak = isEnd ? 0 : estimatedPeak(*plan);
    overshoot = llvm::divideCeil(overshoot, chunksInFlight(*plan));
    if (!best || bytes < plannedBytes(*best))
      best = std::move(plan);
    if (isEnd)
      break;
    // A peak above its budget is the lowest that this budget leads to.
    bool isMet = !chosen.activationBytes || peak <= chosen.activationBytes;
    chosen.activationBytes =
        isMet && attempt + 1 < kMaxAttempts
            ? std::max<int64_t>(peak - overshoot, kLeastBudget)
            : kLeastBudget;
  }
  return success();
}

/// What a plan may give up, the cheapest first: large workspaces are faster,
/// and so are whole decoded weights, of which the largest is scratch; tables on
/// the card are, and copies to the host that hide behind what is computed.
SmallVector<MemoryBudget> Driver::concessions() const {
  SmallVector<MemoryBudget> list;
  bool mayOffload =
      traits.offloadsTables && options.offloadEmbedding == "auto";
  bool mayPanel = options.dequantForm == "auto";
  for (bool offloadTables : {false, true})
    for (int given : {0, 1, 2}) {
      MemoryBudget budget = chosen;
      budget.offloadTables |= offloadTables;
      if (given > 0)
        budget.workspaces = WorkspaceSize::kSmall;
      budget.onlyPanels = given > 1 && mayPanel;
      bool isOther = given == 0 || (given == 1 && traits.hasRoomyKernels) ||
                     (given == 2 && mayPanel);
      if ((!offloadTables || mayOffload) && isOther)
        list.push_back(budget);
    }
  if (chosen.copiedValues == "hidden") {
    list.push_back(list.back());
    list.back().copiedValues = "crossing";
  }
  return list;
}

/// Where nothing but the answer is wanted: by one plan what a search would say.
LogicalResult Driver::refuseHopeless(ModuleOp step) {
  if (explainsLimit)
    return success();
  OwningOpRef<ModuleOp> plan = step.clone();
  if (failed(optimizeAndPlan(*plan, leastBudget())))
    return failure();
  if (double(plannedBytes(*plan)) <= kHopeless * double(options.memoryLimit))
    return success();
  return refuseLimit(step, *plan);
}

/// Plans with `budget`, which becomes the chosen one where that fits.
LogicalResult Driver::tryBudget(ModuleOp step, const MemoryBudget &budget,
                                OwningOpRef<ModuleOp> &best) {
  OwningOpRef<ModuleOp> plan = step.clone();
  if (failed(optimizeAndPlan(*plan, budget)))
    return failure();
  if (plannedBytes(*plan) <= options.memoryLimit) {
    chosen = budget;
    best = std::move(plan);
  }
  return success();
}

/// Joined siblings are for who has the memory: if they do not fit beside all
/// that is kept without a limit, they are apart, and `best` stays empty.
LogicalResult Driver::joinIfRoomy(ModuleOp step, OwningOpRef<ModuleOp> &best) {
  if (!traits.prefersWideGemms || !options.isEnabled("concat-siblings"))
    return success();
  if (failed(tryBudget(step, chosen, best)))
    return failure();
  chosen.siblingsApart = !best;
  return success();
}

/// What is left of the limit goes to weights that are there decoded, or, where they
/// would come from other ranks or the host, as they are stored: what is gathered
/// would travel as numbers.
LogicalResult Driver::keepWeights(ModuleOp step, OwningOpRef<ModuleOp> &best) {
  MemoryBudget roomy = chosen;
  const int64_t left = options.memoryLimit - plannedBytes(*best);
  if (options.shards > 1 || chosen.offloadBase)
    roomy.stayingBytes = left - left / kLostToPacking;
  else if (!chosen.onlyPanels && options.dequantForm == "auto")
    roomy.residentBytes = left;
  return roomy.stayingBytes > 0 || roomy.residentBytes > 0
             ? tryBudget(step, roomy, best)
             : success();
}

/// Chooses a budget within the limit; what is left of it goes to large
/// workspaces, then to weights.
LogicalResult Driver::fitMemory(ModuleOp step) {
  OwningOpRef<ModuleOp> best;
  chosen.workspaces = WorkspaceSize::kModest;
  if (failed(refuseHopeless(step)) || failed(joinIfRoomy(step, best)))
    return failure();
  for (const MemoryBudget &budget : concessions()) {
    if (best && plannedBytes(*best) <= options.memoryLimit)
      break;
    chosen = budget;
    if (failed(shrink(step, best)))
      return failure();
    // The smallest budget so far is near the one that fits in order.
    int64_t overshoot = plannedBytes(*best) - options.memoryLimit;
    if (overshoot <= 0 || overshoot > mostBytesAhead(*best))
      continue;
    chosen.inOrder = true;
    if (failed(shrink(step, best)))
      return failure();
  }
  // What is named as the smallest plan is found when it is asked for.
  if (plannedBytes(*best) > options.memoryLimit && !chosen.inOrder) {
    chosen.inOrder = true;
    if (failed(shrink(step, best)))
      return failure();
  }
  if (plannedBytes(*best) > options.memoryLimit)
    return refuseLimit(step, *best);
  MemoryBudget roomy = chosen;
  roomy.workspaces = WorkspaceSize::kLarge;
  if (traits.hasRoomyKernels && chosen.workspaces == WorkspaceSize::kModest &&
      failed(tryBudget(step, roomy, best)))
    return failure();
  return keepWeights(step, best);
}

/// Erases steps that are smaller than others; true where there were some.
static bool keepLargestSteps(ModuleOp module) {
  auto tokensOf = [](train::StepOp step) {
    return step.getBatch() * step.getLength();
  };
  uint64_t most = 0;
  for (auto step : module.getOps<train::StepOp>())
    most = std::max(most, tokensOf(step));
  bool isAnySmaller = false;
  for (auto step : llvm::make_early_inc_range(module.getOps<train::StepOp>()))
    if (step.getBatch() > 0 && tokensOf(step) < most) {
      step.erase();
      isAnySmaller = true;
    }
  return isAnySmaller;
}

/// Decides for the largest steps, which arenas are as large as, and of a pipeline
/// for as many chunks as there are at a time and one more: what fits them fits
/// all, or nearly so. Where it does not, all are looked at from the start.
LogicalResult Driver::chooseBudget(ModuleOp module) {
  const MemoryBudget asked = chosen;
  OwningOpRef<ModuleOp> largest = module.clone(), all;
  const bool isAnySmaller = keepLargestSteps(*largest);
  const int64_t enough = options.stageParts == 1
                             ? options.stages - options.stage + 1
                             : 2 * options.stages;
  const bool hasMore = options.chunks > enough && !options.allForwardsFirst;
  chosen.chunks = hasMore ? enough : 0;
  const bool explains =
      std::exchange(explainsLimit, explainsLimit && !hasMore);
  const bool isFitted = succeeded(fitMemory(*largest));
  explainsLimit = explains;
  if (!isFitted && (!hasMore || smallest == 0))
    return failure();
  chosen.chunks = 0;
  if (isFitted) {
    if (!isAnySmaller && !hasMore)
      return success();
    if (failed(shrink(module, all)))
      return failure();
    if (plannedBytes(*all) <= options.memoryLimit)
      return success();
  }
  chosen = asked; // what is named as the smallest plan is that of all chunks
  return fitMemory(module);
}

LogicalResult Driver::enableRemarks() {
  const std::string any = ".*";
  const remark::RemarkCategories categories{any, any, any, any, any};
  return remark::enableOptimizationRemarks(
      context, /*streamer=*/nullptr,
      std::make_unique<remark::RemarkEmittingPolicyAll>(), categories,
      /*printAsEmitRemarks=*/true);
}

LogicalResult Driver::run(OwningOpRef<ModuleOp> &module,
                          PhaseHook afterPhase) {
  for (const Phase &phase : phases().take_front(2)) {
    if (failed(runPhase(phase, *module, chosen)))
      return failure();
    if (!afterPhase(phase.name, *module))
      return success();
  }
  chosen.offloadTables = options.offloadEmbedding == "true";
  chosen.offloadBase = options.offloadBase;
  if (options.offloadActivations)
    chosen.copiedValues = options.copiedActivations == "all" ? "all" : "hidden";
  if (options.memoryLimit > 0 && failed(chooseBudget(*module)))
    return failure();
  if (options.remarks && failed(enableRemarks()))
    return failure();
  // Once more with the budget that was chosen, to show both phases.
  for (const Phase &phase : phases().drop_front(2)) {
    if (failed(runPhase(phase, *module, chosen)))
      return failure();
    if (!afterPhase(phase.name, *module))
      return success();
  }
  return checkHostLimit(*module);
}

FailureOr<bool> Driver::plan(OwningOpRef<ModuleOp> &module) {
  explainsLimit = false;
  const bool isPlanned =
      succeeded(run(module, [](StringRef, ModuleOp) { return true; }));
  if (!isPlanned && smallest == 0)
    return failure();
  return isPlanned;
}
