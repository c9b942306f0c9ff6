// SPDX-License-Identifier: MIT

// Summarizes the JSON that qlora-run's null device writes.

#include "tools/qlora/Plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/HostMemory.h"
#include "runtime/Base/Subprocess.h"
#include "runtime/Kernels/Cuda/CudaGpu.h"
#include "runtime/Options/ParallelMesh.h"
#include "tools/qlora/Train.h"

namespace qlora {

using nlohmann::json;

const Tool &planTool() {
  static const Tool tool = [] {
    Tool result = trainTool();
    result.usage = "usage: qlora plan MODEL [DATA] [options]\n"
                   "       qlora plan CONFIG.yaml [options]\n"
                   "\n"
                   "Prints whether a training fits the memory, what takes it, "
                   "and the predicted\n"
                   "speed, and trains nothing. Needs no GPU. Takes the "
                   "options of qlora train;\n"
                   "--verbose prints every arena, command and kernel.\n";
    result.common = {"verbose",
                     "simulate",
                     "config",
                     "gpus",
                     "load_in_4bit",
                     "lora_r",
                     "max_length",
                     "per_device_train_batch_size",
                     "gradient_checkpointing",
                     "memory_limit",
                     "offload",
                     "parallel",
                     "dry_run"};
    result.example = "  qlora plan Qwen/Qwen3-0.6B data.jsonl --load-in-4bit "
                     "\\\n      --simulate h200\n";
    return result;
  }();
  return tool;
}

namespace {
/// The memory that a rank, or all ranks of a CPU, may use.
struct Capacity {
  uint64_t bytes = 0; ///< 0: unknown
  std::string of;
};
} // namespace

/// Returns the memory of the simulated GPU, of this machine's first GPU, or for
/// a CPU what is free on this machine.
static Capacity capacityFor(const json &report, const std::string &target) {
  if (const json assumed = report.value("assumed", json::object());
      assumed.contains("gpu"))
    return {static_cast<uint64_t>(1e9 * assumed["gpu"].value("memory_gb", 0.0)),
            assumed.value("cpu", "")};
  if (target != "cuda")
    return {procBytes("/proc/meminfo", "MemAvailable"),
            "this machine, as far as it is free"};
  auto driver = CudaDriver::open();
  if (!driver.isOk())
    return {};
  auto gpu = CudaGpu::open(**driver, 0);
  if (!gpu.isOk())
    return {};
  auto memory = gpu->memory();
  return {memory.isOk() ? memory->total : 0, gpu->name};
}

static uint64_t sumOf(const json &bytes,
                      std::initializer_list<const char *> names) {
  return std::accumulate(names.begin(), names.end(), uint64_t{0},
                         [&](uint64_t sum, const char *name) {
                           return sum + bytes.value(name, uint64_t{0});
                         });
}

/// Formats nonzero amounts as "4.0 MiB adapters, 8.0 MiB optimizer states".
static std::string
listText(const json &bytes,
         std::initializer_list<std::pair<const char *, const char *>> names) {
  std::vector<std::string> parts;
  for (const auto &[key, title] : names)
    if (const uint64_t each = bytes.value(key, uint64_t{0}))
      parts.push_back(formatBytes(each) + " " + title);
  return fmt::format("{}", fmt::join(parts, ", "));
}

static std::string line(std::string_view name, std::string_view text) {
  return fmt::format("{:<12} {}\n", name, text);
}

/// Whether the ranks of a CPU share one copy of the base. For auto, the layout
/// is not known here, and the answer is the one that needs more memory.
static bool sharesBase(const std::string &parallel) {
  StatusOr<ParallelMesh> mesh = ParallelMesh::parse(parallel);
  return mesh.isOk() && baseHolders(*mesh) == 1 && mesh->pp == 1;
}

/// Returns the line that says whether the plan fits. On a CPU, all ranks share
/// the machine.
static std::string fitLine(const json &report, uint64_t perRank, uint64_t base,
                           const TrainCommands &all) {
  const uint64_t ranks = report.value("ranks", uint64_t{1});
  const bool isCpu = all.target != "cuda";
  const uint64_t shared = sharesBase(all.parallel) ? base : 0;
  const uint64_t needed = isCpu ? shared + ranks * (perRank - shared) : perRank;
  const Capacity capacity = capacityFor(report, all.target);
  if (capacity.bytes == 0)
    return line("memory", formatBytes(needed) +
                              " per GPU; --simulate GPU says whether it fits");
  const std::string text =
      fmt::format("{} of the {} of {}", formatBytes(needed),
                  formatBytes(capacity.bytes), capacity.of);
  if (needed <= capacity.bytes)
    return line("fits", text);
  return line("does not fit",
              text + ". Fix: --memory-limit, " +
                  (isCpu ? "--load-in-4bit" : "--parallel fsdp=N, --offload") +
                  " or a smaller batch");
}

static std::string recomputedText(const json &parts) {
  const uint64_t bytes = parts.value("recomputed", uint64_t{0});
  return bytes == 0 ? std::string("nothing")
                    : formatBytes(bytes) + " at the peak of the activations; "
                                           "--remarks prints each value";
}

/// Formats the step, as "4 micro-batches of up to 256 tokens on 2 ranks, 9
/// collectives on each".
static std::string stepText(const json &report) {
  int64_t tokens = 0;
  for (const json &entry : report.value("entries", json::array()))
    tokens = std::max(tokens, entry.value("batch", int64_t{0}) *
                                  entry.value("length", int64_t{0}));
  const int64_t ranks = report.value("ranks", int64_t{1});
  const int64_t parts = report.value("micro_batches", int64_t{1});
  std::string text = fmt::format("{} {} of up to {} tokens on {}", parts,
                                 parts == 1 ? "micro-batch" : "micro-batches",
                                 formatCount(static_cast<uint64_t>(tokens)),
                                 formatCounted(ranks, "rank"));
  if (ranks > 1)
    text += fmt::format(
        ", {} on each",
        formatCounted(report.value("collectives", int64_t{0}), "collective"));
  return text;
}

/// Returns the predicted rate of the longest step; a GPU has two figures.
static std::string speedText(const json &report) {
  json last;
  for (const json &each : report.value("predictions", json::array()))
    if (!each.contains("entry")) // of a step of training
      last = each;
  if (last.is_null())
    return "not predicted; --simulate h200 predicts it for that GPU";
  std::string text = formatRate(last.value("tokens_per_second", 0.0));
  if (last.contains("low"))
    text =
        formatRate(last["low"].value("tokens_per_second", 0.0)) + " to " + text;
  return fmt::format("{} tokens/s predicted, not measured", text);
}

static std::string summary(const json &report, const TrainCommands &all) {
  const json memory = report.value("memory_bytes", json::object());
  const json parts = report.value("activation_parts", json::object());
  const uint64_t base = sumOf(memory, {"frozen"});
  const uint64_t onHost = sumOf(memory, {"host", "saved"});
  const uint64_t trained =
      sumOf(memory, {"trainable", "gradient", "state", "rounded", "residual"});
  const uint64_t activations = sumOf(memory, {"activation"});
  const uint64_t other =
      sumOf(memory, {"workspace", "input", "result", "cache"});
  const auto withList = [](uint64_t bytes, const std::string &list) {
    return formatBytes(bytes) + (list.empty() ? "" : ": " + list);
  };
  return fitLine(report, base + trained + activations + other, base, all) +
         line("base",
              formatBytes(base) +
                  (onHost ? fmt::format(", and {} in pinned host memory",
                                        formatBytes(onHost))
                          : "")) +
         line("trained",
              withList(trained, listText(memory, {{"trainable", "parameters"},
                                                  {"gradient", "gradients"},
                                                  {"state", "optimizer"}}))) +
         line("activations",
              withList(activations,
                       listText(parts, {{"saved", "saved"},
                                        {"decoded", "decoded weights"},
                                        {"forward", "forward"},
                                        {"backward", "backward"}}))) +
         line("recomputed", recomputedText(parts)) +
         line("other",
              withList(other, listText(memory, {{"workspace", "workspace"},
                                                {"input", "inputs"},
                                                {"result", "results"},
                                                {"cache", "caches"}}))) +
         line("step", stepText(report)) + line("speed", speedText(report));
}

/// Counts one program and prints its summary.
static Status planProgram(const std::string &program, const TrainCommands &all,
                          std::vector<std::string> flags) {
  QLORA_ASSIGN_OR_RETURN(std::string tool, findTool(all.run.tool));
  flags.insert(flags.begin(), {std::move(tool), program});
  flags.push_back("--log-format=json");
  QLORA_ASSIGN_OR_RETURN(const ProcessOutput output,
                         runProgram(flags, {}, {}, ErrorOutput::kShared));
  const json report =
      json::parse(output.out, nullptr, /*allow_exceptions=*/false);
  if (output.exitCode != 0 || !report.is_object())
    return Status::invalid("{} ended with code {}: see above", all.run.tool,
                           output.exitCode);
  fmt::print("{}", summary(report, all));
  return Status::ok();
}

Status plan(std::span<const std::string> words) {
  QLORA_ASSIGN_OR_RETURN(const std::optional<TrainCommands> all,
                         prepareTraining(words, planTool(), ProgramUse::kPlan));
  if (!all)
    return Status::ok();
  if (all->isDetailed)
    return becomeTool(all->run);
  const size_t count = all->programs.size();
  const std::vector<std::string> flags(all->run.arguments.begin() +
                                           static_cast<ptrdiff_t>(count),
                                       all->run.arguments.end());
  for (size_t i = 0; i < count; ++i)
    QLORA_RETURN_IF_ERROR(planProgram(all->run.arguments[i], *all, flags));
  note("--verbose prints every arena, command and kernel");
  return Status::ok();
}

} // namespace qlora
