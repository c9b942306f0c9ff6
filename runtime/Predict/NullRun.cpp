// SPDX-License-Identifier: MIT

// Counts a program's commands and formats the result.

#include "runtime/Predict/NullRun.h"

#include <algorithm>
#include <span>

#include <nlohmann/json.hpp>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Device/Device.h"
#include "runtime/Device/Program.h"
#include "runtime/Module/CompiledVariants.h"
#include "runtime/Module/LaunchRequest.h"
#include "runtime/Options/ObjectiveOptions.h"
#include "runtime/Options/StepRows.h"
#include "runtime/Predict/CheckpointInterval.h"
#include "runtime/Predict/MemoryPlan.h"
#include "runtime/Predict/PredictionText.h"
#include "runtime/Predict/Transfers.h"

namespace qlora {

using json = nlohmann::ordered_json;

static DeviceCounters operator-(const DeviceCounters &a,
                                const DeviceCounters &b) {
  DeviceCounters difference = a;
  for (size_t kind = 0; kind < QLORA_COMMAND_KIND_COUNT; ++kind)
    difference.commands[kind] -= b.commands[kind];
  difference.bytesRead -= b.bytesRead;
  difference.bytesWritten -= b.bytesWritten;
  for (size_t group = 0; group < QLORA_GROUP_COUNT; ++group)
    for (size_t kind = 0; kind < QLORA_COLLECTIVE_COUNT; ++kind)
      difference.collectiveBytes[group][kind] -= b.collectiveBytes[group][kind];
  return difference;
}

/// Calls `visit` with the names and bytes of each group and kind of collective
/// that moved bytes. Returns the total bytes.
template <typename Visit>
static uint64_t forEachTraffic(const DeviceCounters &counters, Visit visit) {
  uint64_t sum = 0;
  for (unsigned group = 0; group < QLORA_GROUP_COUNT; ++group)
    for (unsigned kind = 0; kind < QLORA_COLLECTIVE_COUNT; ++kind)
      if (const uint64_t bytes = counters.collectiveBytes[group][kind]) {
        visit(std::string(groupName(group)), std::string(collectiveName(kind)),
              bytes);
        sum += bytes;
      }
  return sum;
}

namespace {
/// The counts of one entry, executed once.
struct EntryCount {
  const qlora_entry *entry;
  std::string name;
  DeviceCounters counters;
};

/// The counts of one stage, or of a program without stages.
struct StageCount {
  LoadedModule module;
  std::unique_ptr<Device> device;
  std::vector<EntryCount> entries = {};

  /// Planned bytes of all arenas except host arenas.
  uint64_t plannedBytes() const {
    uint64_t bytes = 0;
    for (const ArenaUse &use : device->memory())
      bytes += use.onHost ? 0 : use.plannedBytes;
    return bytes;
  }
};

/// Everything that a null run counts.
struct NullReport {
  int ranks;
  int64_t microBatches; ///< micro-batches of a rank per step
  std::vector<StageCount> stages;
  std::optional<DeviceProfile> gpu;
  std::vector<StepPrediction> predictions; ///< set with --simulate
  std::vector<StepPrediction> low; ///< each prediction at a GPU's low rates
  std::vector<StepPrediction> scaling; ///< predictions for more ranks
  std::optional<CheckpointInterval> saving; ///< if machines can fail
  bool trains; ///< false: the program only generates

  /// Returns the stage with the most planned memory.
  const StageCount &largest() const {
    return *std::ranges::max_element(stages, {}, &StageCount::plannedBytes);
  }
  uint64_t collectives() const;
  const StepPrediction *lowOf(size_t prediction) const {
    return low.empty() ? nullptr : &low[prediction];
  }
  std::string text() const;
  std::string toJson() const;
};
} // namespace

uint64_t NullReport::collectives() const {
  uint64_t most = 0;
  for (const StageCount &stage : stages)
    for (const EntryCount &count : stage.entries)
      if (count.entry->kind == QLORA_ENTRY_ACCUMULATE_LAST)
        most =
            std::max(most, count.counters.commands[QLORA_COMMAND_COLLECTIVE]);
  return most;
}

/// Format of a row with 80 columns.
static constexpr const char *kCounters =
    "  {:<24} {:>8} {:>5} {:>6} {:>4} {:>8} {:>8} {:>8}\n";

static std::string countersText(const EntryCount &entry) {
  const DeviceCounters &c = entry.counters;
  std::string traffic;
  const uint64_t sent =
      forEachTraffic(c, [&](const std::string &group, const std::string &kind,
                            uint64_t bytes) {
        traffic += fmt::format("    {} over {}: {}\n", kind, group,
                               formatBytes(bytes));
      });
  return fmt::format(kCounters, entry.name, c.commands[QLORA_COMMAND_LAUNCH],
                     c.commands[QLORA_COMMAND_FILL],
                     c.commands[QLORA_COMMAND_COPY],
                     c.commands[QLORA_COMMAND_COLLECTIVE], formatBytes(sent),
                     formatBytes(c.bytesRead), formatBytes(c.bytesWritten)) +
         traffic;
}

/// Compares the plan with the GPU's memory.
static std::string gpuMemoryText(const StageCount &stage, const GpuRates &gpu) {
  const double capacity = gpu.memoryGb * 1e9;
  const auto planned = double(stage.plannedBytes());
  const char *answer = "";
  if (double(stage.module.arenaBytes(QLORA_ARENA_FROZEN)) > capacity)
    answer = ": the base alone does not fit one GPU. Fix: compile with\n  "
             "--parallel fsdp=N, which shards it over N GPUs, or with "
             "--offload base";
  else if (planned > capacity)
    answer = ": does not fit. Fix: compile with --memory-limit";
  return fmt::format("  {:.1f} of the GPU's {:.0f} GB{}\n", planned / 1e9,
                     gpu.memoryGb, answer);
}

/// Formats the plan of each stage, if there are several.
static std::string stagesText(std::span<const StageCount> stages) {
  if (stages.size() == 1)
    return "";
  std::vector<std::string> plans;
  for (const StageCount &stage : stages)
    plans.push_back(fmt::format("{} {}", stage.module.stage(),
                                formatBytes(stage.plannedBytes())));
  return fmt::format("  plans of stages: {}\n", fmt::join(plans, ", "));
}

std::string NullReport::text() const {
  const StageCount &most = largest();
  const LoadedModule &module = most.module;
  std::string text = planText(module, *most.device, ranks);
  if (gpu && gpu->gpu)
    text += gpuMemoryText(most, *gpu->gpu);
  text += stagesText(stages);
  text += "  ranks: " + parallelText(module, ranks) + "\n";
  text += kernelsText(module, *most.device) + "\n";
  for (const StageCount &stage : stages) {
    text += fmt::format(
        kCounters,
        stages.size() == 1 ? "program"
                           : fmt::format("stage {}", stage.module.stage()),
        "launches", "fills", "copies", "coll", "sent", "read", "written");
    for (const EntryCount &count : stage.entries)
      text += countersText(count);
  }
  text += "\n";
  if (trains)
    text += fmt::format(
        "a step of {} ranks: {} micro-batches, {} collectives per rank\n",
        ranks, microBatches * ranks / module.rowRanks(), collectives());
  text += "every command and address is inside its arena\n";
  for (size_t i = 0; i < predictions.size(); ++i)
    text += "\n" + predictionText(predictions[i], lowOf(i), *gpu);
  if (!scaling.empty())
    text += "\n" + scalingText(scaling, *gpu->gpu);
  if (saving)
    text += "\n" + saving->text();
  return gpu ? text + "\n" + assumptionText(*gpu) : text;
}

static json countersJson(const EntryCount &count) {
  const DeviceCounters &c = count.counters;
  json groups = json::object();
  const uint64_t sent =
      forEachTraffic(c, [&](const std::string &group, const std::string &kind,
                            uint64_t bytes) { groups[group][kind] = bytes; });
  return {{"kind", entryKindName(count.entry->kind)},
          {"batch", count.entry->batch},
          {"length", count.entry->length},
          {"launches", c.commands[QLORA_COMMAND_LAUNCH]},
          {"fills", c.commands[QLORA_COMMAND_FILL]},
          {"copies", c.commands[QLORA_COMMAND_COPY]},
          {"collectives", c.commands[QLORA_COMMAND_COLLECTIVE]},
          {"collective_bytes", sent},
          {"collective_groups", std::move(groups)},
          {"bytes_read", c.bytesRead},
          {"bytes_written", c.bytesWritten}};
}

static void addStage(json &to, const StageCount &stage) {
  json memory = json::object();
  for (const ArenaUse &use : stage.device->memory())
    memory[std::string(arenaKindName(use.kind))] = use.plannedBytes;
  to["memory_bytes"] = std::move(memory);
  for (const auto &[key, row] : activationParts(stage.module))
    to["activation_parts"][key] = row.planned;
  for (const EntryCount &count : stage.entries)
    to["entries"].push_back(countersJson(count));
}

std::string NullReport::toJson() const {
  json report = {{"ranks", ranks},
                 {"micro_batches", microBatches},
                 {"collectives", collectives()}};
  addStage(report, largest());
  for (const StageCount &stage : stages)
    if (stages.size() > 1)
      addStage(report["stages"].emplace_back(), stage);
  for (size_t i = 0; i < predictions.size(); ++i)
    report["predictions"].push_back(
        predictionJson(predictions[i], lowOf(i), *gpu));
  if (!scaling.empty())
    report["scaling"] = scalingJson(scaling, *gpu->gpu);
  if (saving)
    report["saving"] = saving->toJson();
  if (gpu)
    report["assumed"] = profileJson(*gpu);
  return dumpJson(report, 2) + "\n";
}

static std::string_view entryTitle(unsigned kind) {
  switch (kind) {
  case QLORA_ENTRY_ACCUMULATE:
    return "micro-batch";
  case QLORA_ENTRY_ACCUMULATE_LAST:
    return "last micro-batch";
  case QLORA_ENTRY_UPDATE:
    return "optimizer";
  case QLORA_ENTRY_EVALUATE:
    return "evaluation";
  case QLORA_ENTRY_INITIALIZE:
    return "initialization";
  case QLORA_ENTRY_AVERAGE:
    return "to averaged weights";
  case QLORA_ENTRY_CONTINUE:
    return "to training weights";
  default:
    return entryKindName(kind);
  }
}

static StatusOr<EntryCount> countEntry(Device &device,
                                       const LoadedModule &module,
                                       const qlora_entry &entry) {
  DeviceCounters before = device.counters();
  QLORA_RETURN_IF_ERROR(runEntry(device, module, entry, {}));
  std::string name(entryTitle(entry.kind));
  if (entry.batch > 0)
    name += fmt::format(" {} x {}", entry.batch, entry.length);
  return EntryCount{&entry, name, device.counters() - before};
}

static Status countStages(const LoadedModule &module, int ranks,
                          std::vector<StageCount> &stages) {
  DeviceOptions options;
  options.ranks = ranks;
  stages.reserve(static_cast<size_t>(module.stages())); // devices keep pointers
  for (int number = 0; number < module.stages(); ++number) {
    QLORA_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                           createDevice("null", options));
    StageCount &stage =
        stages.emplace_back(module.ofStage(number), std::move(device));
    QLORA_RETURN_IF_ERROR(stage.device->load(stage.module, nullptr));
    for (const qlora_entry &entry : stage.module.entries()) {
      QLORA_ASSIGN_OR_RETURN(EntryCount count,
                             countEntry(*stage.device, stage.module, entry));
      stage.entries.push_back(std::move(count));
    }
  }
  return Status::ok();
}

/// Predicts a step of training, and each entry that generates.
static StatusOr<std::vector<StepPrediction>>
predictAll(const LoadedModule &module, const PredictionRequest &request) {
  QLORA_ASSIGN_OR_RETURN(auto steps, predictSteps(module, request));
  QLORA_ASSIGN_OR_RETURN(auto generated, predictGeneration(module, request));
  std::ranges::move(generated, std::back_inserter(steps));
  return steps;
}

/// Sets the report's predictions.
static Status predict(const LoadedModule &module,
                      const PredictionRequest &request, double machineHours,
                      NullReport &report) {
  QLORA_ASSIGN_OR_RETURN(report.predictions, predictAll(module, request));
  if (!request.device.gpu)
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(report.low, predictAll(module, lowRequest(request)));
  if (!report.trains)
    return Status::ok();
  if (request.ranks > 1) {
    QLORA_ASSIGN_OR_RETURN(report.scaling, predictScaling(module, request));
  }
  const auto isTraining = [](const StepPrediction &step) {
    return step.entry == QLORA_ENTRY_UPDATE;
  };
  const auto longest = std::find_if(report.predictions.rbegin(),
                                    report.predictions.rend(), isTraining);
  if (machineHours > 0)
    report.saving = checkpointInterval(
        module, *longest, request.device.gpu->gpusPerNode, machineHours);
  return Status::ok();
}

StatusOr<std::string>
checkOnNullDevice(const LoadedModule &module, const Options &options, int ranks,
                  const DeviceChoice &choice,
                  const std::vector<std::string> &disabledKernels) {
  QLORA_RETURN_IF_ERROR(checkMesh(module, ranks));
  const int dataRanks = ranks / module.rowRanks();
  QLORA_RETURN_IF_ERROR(checkRanksOf(options, ranks, module.rowRanks()));
  QLORA_RETURN_IF_ERROR(checkKernelNames(disabledKernels));
  if (trains(module))
    QLORA_RETURN_IF_ERROR(CompiledVariants::of(module).status());
  QLORA_ASSIGN_OR_RETURN(const int64_t microBatches,
                         accumulationSteps(options, dataRanks));
  const std::optional<DeviceProfile> &gpu = choice.gpu;
  NullReport report{ranks, microBatches, {}, gpu, {}, {}, {}, {},
                    trains(module)};
  QLORA_RETURN_IF_ERROR(countStages(module, ranks, report.stages));
  QLORA_RETURN_IF_ERROR(checkTransfers(module)); // needs checked commands
  if (gpu)
    QLORA_RETURN_IF_ERROR(predict(
        module, {*gpu, ranks, microBatches, QueueSharing::kSideBySide,
                 disabledKernels},
        choice.machineHours, report));
  return options.text("log_format") == "json" ? report.toJson() : report.text();
}

} // namespace qlora
