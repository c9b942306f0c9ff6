// SPDX-License-Identifier: MIT

// Walks commands, puts their kernels on a timeline and adds up a step.

#include "runtime/Predict/StepPrediction.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "runtime/Device/PreparedLaunches.h"
#include "runtime/Predict/CommandPrice.h"

namespace qlora {

Work StepPrediction::work() const {
  Work sum;
  for (const PartTotal &part : parts)
    sum += part.work;
  return sum;
}

double StepPrediction::busySeconds() const {
  double seconds = launchSeconds;
  for (const PartTotal &part : parts)
    seconds += part.seconds;
  return seconds;
}

std::vector<std::string> StepPrediction::rows() const {
  std::vector<std::string> names;
  for (const KernelRow &row : kernelRows())
    if (categoryOf(*row.op) != WorkCategory::kRows &&
        std::any_of(groups.begin(), groups.end(), [&](const auto &group) {
          return group.kernel == row.fullName();
        }))
      names.push_back(row.fullName());
  return names;
}

PredictionRequest lowRequest(PredictionRequest request) {
  request.device = lowRates(std::move(request.device));
  request.sharing = QueueSharing::kTakeTurns;
  return request;
}

namespace {

/// Walks the entries of one step of a stage and adds them to a prediction.
class StepWalk {
public:
  StepWalk(LoadedModule stage, const PredictionRequest &request,
           StepPrediction step)
      : module(std::move(stage)), request(request), step(std::move(step)) {
    this->step.stage = module.stage();
  }

  /// Adds the work of `runs` runs of an entry; returns the items of one run.
  StatusOr<std::vector<TimelineItem>> collect(const qlora_entry &entry,
                                              int64_t runs);
  /// Adds the time of collect()'s runs. `timeline`: of this stage; `seconds`:
  /// of the slowest stage.
  void finish(const Timeline &timeline, double seconds);
  StepPrediction take();

private:
  StatusOr<const KernelRow *> rowOf(const qlora_command &command) const;
  Status addCommand(const qlora_command &command, const PriceList &prices);
  void addKernel(const qlora_command &command, const KernelRow *row,
                 const CommandKernel &kernel);
  void addToGroup(const qlora_command &command, const KernelRow *row,
                  const CommandKernel &kernel);
  void addTransfer(const Transfer &transfer, double seconds);

  const LoadedModule module;
  const PredictionRequest &request;
  StepPrediction step;
  bool isUpdate = false;
  double times = 0; ///< how often the entry runs
  std::vector<TimelineItem> items;
  /// Position in step.groups by kernel, part, FLOPs and bytes.
  std::map<std::tuple<std::string, StepPart, double, double>, size_t> groupOf;
};

} // namespace

/// Returns the row of Kernels.def that runs a library launch: the module's row,
/// or the next enabled row. Returns nullptr for other commands.
StatusOr<const KernelRow *>
StepWalk::rowOf(const qlora_command &command) const {
  if (command.kind != QLORA_COMMAND_LAUNCH)
    return nullptr;
  const qlora_launch &launch = module.launches()[command.target];
  const KernelRow *planned = findLaunchRow(module, launch);
  if (!planned)
    return nullptr;
  const KernelRequest launched = makeRequest(module, command, *planned->op);
  Status status = Status::ok();
  for (const KernelRow *row : candidateRows(*planned)) {
    status = checkEnabled(*row, request.disabledKernels);
    if (status.isOk())
      status = checkLaunchRow(module, command, *row, launched);
    if (status.isOk())
      return row;
  }
  return status.withContext(fmt::format("launch '{}'", launch.label));
}

void StepWalk::addKernel(const qlora_command &command, const KernelRow *row,
                         const CommandKernel &kernel) {
  const auto &[part, work, demand] = kernel;
  PartTotal &total = step.parts[size_t(part)];
  Work all = work;
  all *= times;
  total.work += all;
  total.seconds += times * demand.busy();
  step.launchSeconds += times * demand.launch;
  addToGroup(command, row, kernel);
}

void StepWalk::addToGroup(const qlora_command &command, const KernelRow *row,
                          const CommandKernel &added) {
  const auto &[part, work, demand] = added;
  std::string kernel(commandName(command)), label;
  if (command.kind == QLORA_COMMAND_LAUNCH) {
    const qlora_launch &launch = module.launches()[command.target];
    kernel = row ? row->fullName() : module.kernels()[launch.kernel].name;
    label = launch.label;
  }
  const auto [found, isNew] = groupOf.try_emplace(
      {kernel, part, work.gemmFlops() + work.attentionFlops(), work.bytes},
      step.groups.size());
  if (isNew)
    step.groups.push_back({kernel, label, part, work, demand});
  step.groups[found->second].count += times;
}

/// Adds what uses a link and nothing else of the device.
void StepWalk::addTransfer(const Transfer &transfer, double seconds) {
  auto known = std::find_if(step.collectives.begin(), step.collectives.end(),
                            [&](const PredictedCollective &other) {
                              return other.kind == transfer.kind &&
                                     other.group == transfer.group;
                            });
  if (known == step.collectives.end())
    known = step.collectives.insert(known, {transfer.kind, transfer.group});
  known->count += times;
  known->bytes += times * transfer.bytes;
  known->seconds += times * seconds;
}

Status StepWalk::addCommand(const qlora_command &command,
                            const PriceList &prices) {
  QLORA_ASSIGN_OR_RETURN(const KernelRow *row, rowOf(command));
  const CommandPrice price = prices.of(command, isUpdate, row);
  items.insert(items.end(), price.items.begin(), price.items.end());
  for (const CommandKernel &kernel : price.kernels)
    addKernel(command, row, kernel);
  if (price.transfer)
    addTransfer(*price.transfer, price.items.front().demand.seconds());
  return Status::ok();
}

StatusOr<std::vector<TimelineItem>> StepWalk::collect(const qlora_entry &entry,
                                                      int64_t runs) {
  isUpdate = entry.kind == QLORA_ENTRY_UPDATE;
  times = double(runs);
  items.clear();
  const PriceList prices(module, request.device, request.ranks);
  for (const qlora_command &command : module.commands(entry))
    QLORA_RETURN_IF_ERROR(addCommand(command, prices));
  return std::exchange(items, {});
}

void StepWalk::finish(const Timeline &timeline, double seconds) {
  step.seconds += times * seconds;
  step.overlapped += times * timeline.overlapped;
  step.exposedCommunication +=
      times * (timeline.exposedCommunication + seconds - timeline.seconds);
}

StepPrediction StepWalk::take() {
  std::stable_sort(step.groups.begin(), step.groups.end(),
                   [](const KernelGroup &a, const KernelGroup &b) {
                     return a.count * a.demand.seconds() >
                            b.count * b.demand.seconds();
                   });
  return std::move(step);
}

/// Runs an entry, which has the same index in all stages, `times` times.
static Status addEntry(std::vector<StepWalk> &stages,
                       const LoadedModule &module, const qlora_entry &entry,
                       int64_t times, QueueSharing sharing) {
  if (times == 0)
    return Status::ok();
  const auto place = static_cast<size_t>(&entry - module.entries().data());
  std::vector<std::vector<TimelineItem>> items;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    QLORA_ASSIGN_OR_RETURN(
        auto own,
        stages[stage].collect(
            module.ofStage(static_cast<int>(stage)).entries()[place], times));
    items.push_back(std::move(own));
  }
  auto timelines = simulateStages(items, sharing);
  QLORA_RETURN_IF_ERROR(timelines.status().withContext(
      fmt::format("'{}', {}", module.path(), entryKindName(entry.kind))));
  double seconds = 0;
  for (const Timeline &timeline : *timelines)
    seconds = std::max(seconds, timeline.seconds);
  for (size_t stage = 0; stage < stages.size(); ++stage)
    stages[stage].finish((*timelines)[stage], seconds);
  return Status::ok();
}

static Status checkRequest(const LoadedModule &module,
                           const PredictionRequest &request) {
  const bool isCuda = module.table().target == QLORA_TARGET_CUDA;
  if (isCuda != request.device.gpu.has_value())
    return Status::invalid(
        "'{}' was compiled for {}, but {} is a {}; compile it with --target {}",
        module.path(), isCuda ? "cuda" : "cpu", request.device.cpu,
        isCuda ? "CPU" : "GPU", isCuda ? "cpu" : "cuda");
  return Status::ok();
}

namespace {
/// An entry, and how often it runs in a step.
struct EntryRuns {
  const qlora_entry *entry;
  int64_t times;
};
} // namespace

/// Completes `step`, in which the entries run one after another.
static StatusOr<StepPrediction> predictEntries(const LoadedModule &module,
                                               const PredictionRequest &request,
                                               std::span<const EntryRuns> runs,
                                               StepPrediction step) {
  step.ranks = request.ranks;
  step.dataRanks = request.ranks / module.rowRanks();
  step.stages = module.stages();
  std::vector<StepWalk> walks;
  for (int stage = 0; stage < module.stages(); ++stage)
    walks.emplace_back(module.ofStage(stage), request, step);
  for (const auto &[entry, times] : runs)
    QLORA_RETURN_IF_ERROR(
        addEntry(walks, module, *entry, times, request.sharing));
  for (StepWalk &walk : walks)
    if (StepPrediction of = walk.take();
        of.stage == 0 || of.busySeconds() > step.busySeconds())
      step = std::move(of);
  return step;
}

static StatusOr<StepPrediction> predictStep(const LoadedModule &module,
                                            const PredictionRequest &request,
                                            const qlora_entry &last) {
  const qlora_entry *update = module.entry(QLORA_ENTRY_UPDATE);
  const qlora_entry *accumulate =
      request.microBatches > 1
          ? module.entry(QLORA_ENTRY_ACCUMULATE, last.batch, last.length)
          : &last;
  if (!accumulate || !update)
    return Status::dataLoss("'{}' has no entry {}: there is no step to predict",
                            module.path(), update ? "accumulate" : "update");
  StepPrediction step;
  step.microBatches = request.microBatches;
  step.batch = last.batch;
  step.length = last.length;
  const EntryRuns runs[] = {
      {accumulate, request.microBatches - 1}, {&last, 1}, {update, 1}};
  return predictEntries(module, request, runs, std::move(step));
}

StatusOr<std::vector<StepPrediction>>
predictSteps(const LoadedModule &module, const PredictionRequest &request) {
  QLORA_RETURN_IF_ERROR(checkRequest(module, request));
  std::vector<StepPrediction> steps;
  for (const qlora_entry &entry : module.entries()) {
    if (entry.kind != QLORA_ENTRY_ACCUMULATE_LAST)
      continue;
    QLORA_ASSIGN_OR_RETURN(StepPrediction step,
                           predictStep(module, request, entry));
    steps.push_back(std::move(step));
  }
  std::sort(steps.begin(), steps.end(),
            [](const StepPrediction &a, const StepPrediction &b) {
              return a.length < b.length;
            });
  return steps;
}

StatusOr<std::vector<StepPrediction>>
predictGeneration(const LoadedModule &module,
                  const PredictionRequest &request) {
  QLORA_RETURN_IF_ERROR(checkRequest(module, request));
  std::vector<StepPrediction> steps;
  for (const qlora_entry &entry : module.entries()) {
    if (entry.kind != QLORA_ENTRY_PREFILL && entry.kind != QLORA_ENTRY_DECODE)
      continue;
    StepPrediction step;
    step.entry = static_cast<qlora_entry_kind>(entry.kind);
    step.batch = entry.batch;
    step.length = entry.length;
    const EntryRuns once[] = {{&entry, 1}};
    QLORA_ASSIGN_OR_RETURN(
        step, predictEntries(module, request, once, std::move(step)));
    steps.push_back(std::move(step));
  }
  return steps;
}

StatusOr<std::vector<StepPrediction>>
predictScaling(const LoadedModule &module, PredictionRequest request) {
  const int64_t all = request.ranks;
  std::vector<StepPrediction> curve;
  // Only multiples of a mesh can be started.
  for (int64_t ranks = module.meshSize();; ranks = std::min(2 * ranks, all)) {
    request.ranks = ranks;
    QLORA_ASSIGN_OR_RETURN(auto steps, predictSteps(module, request));
    if (!steps.empty())
      curve.push_back(std::move(steps.back()));
    if (ranks == all)
      return curve;
  }
}

} // namespace qlora
