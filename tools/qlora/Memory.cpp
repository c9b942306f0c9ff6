// SPDX-License-Identifier: MIT

// `qlora memory`: shows which configurations of a model fit into which memory.
// Lets qloracc plan each combination of base format, length, batch size and
// LoRA rank, with and without recomputation. There is no estimate by formula.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Kernels/Cuda/TargetChoice.h"
#include "runtime/Kernels/DeviceProfile.h"
#include "runtime/Options/CommandLine.h"
#include "tools/qlora/Commands.h"
#include "tools/qlora/HubCache.h"
#include "tools/qlora/ScratchFolder.h"
#include "tools/qlora/Tools.h"

namespace qlora {

namespace fs = std::filesystem;

static const OptionRow kMemoryOptions[] = {
    {"base", OptionType::kNames, "[nf4, bf16]", kRun, "Memory",
     "formats of the frozen weights to compare: nf4, bf16"},
    {"max_length", OptionType::kLengths, "[512, 2048, 8192]", kRun, "Memory",
     "lengths of a row to compare, in tokens", "sequence_len cutoff_len", "", 1,
     1 << 24},
    {"per_device_train_batch_size", OptionType::kLengths, "[1, 4]", kRun,
     "Memory", "batch sizes to compare, in rows",
     "micro_batch_size batch_size", "", 1, 1 << 20},
    {"lora_r", OptionType::kLengths, "[16]", kRun, "Memory",
     "LoRA ranks to compare", "lora_rank rank r", "", 1, 65536},
    {"target", OptionType::kChoice, "auto", kRun, "Memory",
     "what trains; auto: cuda if this machine has a usable GPU and a CUDA "
     "compiler, else cpu", "", "auto cuda cpu"},
    {"memory_limit", OptionType::kSize, "0", kRun, "Memory",
     "memory that a training may use, such as 24GiB; 0: compare known GPUs", "",
     "", 0},
};

const Tool &memoryTool() {
  static const Tool tool = {
      .version = "qlora " QLORA_VERSION "\n",
      .usage = "usage: qlora memory MODEL [options]\n\n"
               "Prints the memory that training needs, by base, length, batch "
               "size and rank, and\n"
               "where it fits. MODEL is a folder or a name on the Hugging "
               "Face hub.\n",
      .input = "MODEL",
      .common = {"base", "max_length", "per_device_train_batch_size", "lora_r",
                 "target", "memory_limit"},
      .example = "  qlora memory Qwen/Qwen3-0.6B --memory-limit 8GiB\n",
      .sections = {{kMemoryOptions, {kRun}, ""}},
      .tables = {kMemoryOptions}};
  return tool;
}

namespace {
struct Combination {
  std::string base;
  int64_t length = 0, batch = 0, rank = 0;
  int64_t bytes = 0;      ///< without recomputation
  int64_t leastBytes = 0; ///< with --gradient-checkpointing
};
} // namespace

/// Returns the number of bytes that qloracc plans. qloracc stops after the
/// kernel source, when the plan is complete, so that no kernel compiler runs.
static StatusOr<int64_t> planBytes(const ScratchFolder &files,
                                   const std::string &target,
                                   const Combination &c, bool recomputes) {
  const bool isGpu = target == "cuda";
  ToolCommand plan{"qloracc",
                   {files.file("model.mlir"), "-o", files.file("kernels"),
                    "--target", target, isGpu ? "--emit=cuda" : "--emit=cpp",
                    "--plan-report", files.file("plan.json"),
                    fmt::format("--max-length={}", c.length),
                    fmt::format("--per-device-train-batch-size={}", c.batch),
                    fmt::format("--lora-r={}", c.rank),
                    fmt::format("--load-in-4bit={}", c.base == "nf4"),
                    fmt::format("--gradient-checkpointing={}", recomputes)}};
  QLORA_RETURN_IF_ERROR(runTool(plan, ToolVerbosity::kErrors));
  QLORA_ASSIGN_OR_RETURN(const std::string text,
                         readWholeFile(files.file("plan.json")));
  const auto report =
      nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const char *key = isGpu ? "total_bytes" : "resident_bytes";
  if (!report.is_object() || !report.value(key, nlohmann::json()).is_number())
    return Status::error(StatusCode::kInternal,
                         "the plan of qloracc has no {}; install qlora again: "
                         "its tools are of different versions",
                         key);
  return report[key].get<int64_t>();
}

static StatusOr<std::vector<Combination>> combinations(const Options &options) {
  std::vector<Combination> all;
  for (const std::string &base : options.names("base")) {
    if (base != "nf4" && base != "bf16")
      return Status::invalid("--base: expects nf4 or bf16, but got '{}'", base);
    for (const int64_t length : options.lengths("max_length"))
      for (const int64_t batch : options.lengths("per_device_train_batch_size"))
        for (const int64_t rank : options.lengths("lora_r"))
          all.push_back({base, length, batch, rank});
  }
  return all;
}

/// Maps the memory sizes of known GPUs, in GB, to the names of these GPUs.
using GpusBySize = std::map<double, std::vector<std::string>>;

static StatusOr<GpusBySize> gpusBySize() {
  GpusBySize sizes;
  for (const std::string_view name : knownGpus()) {
    QLORA_ASSIGN_OR_RETURN(const DeviceProfile gpu,
                           findDeviceProfile(std::string(name)));
    sizes[gpu.gpu->memoryGb].emplace_back(name);
  }
  return sizes;
}

/// Returns the smallest size of a known GPU with at least `bytes`.
static std::string sizeFor(int64_t bytes, const GpusBySize &sizes) {
  const auto found = sizes.lower_bound(double(bytes) / 1e9);
  return found == sizes.end() ? std::string("none known")
                              : fmt::format("{:.0f} GB", found->first);
}

/// Lists the GPUs of each size, and those that cannot be used.
static std::string gpuLegend(const GpusBySize &sizes) {
  std::string text = "\n";
  for (const auto &[size, names] : sizes)
    text += fmt::format("{:>6.0f} GB  {}\n", size, fmt::join(names, ", "));
  return text + "GPUs before Ampere (T4, V100, RTX 20) lack bf16 and are not "
                "supported.\n";
}

static std::string verdict(const Combination &c, int64_t limit,
                           const GpusBySize &sizes) {
  if (limit > 0 && c.bytes <= limit)
    return std::string("fits");
  if (limit > 0 && c.leastBytes <= limit)
    return std::string("fits with --memory-limit");
  if (limit > 0)
    return "needs " + formatBytes(c.leastBytes);
  return fmt::format("{:<11}{}", sizeFor(c.bytes, sizes),
                     sizeFor(c.leastBytes, sizes));
}

/// Formats the combinations in their order: by base, length, batch and rank.
static StatusOr<std::string> tableOf(const std::vector<Combination> &all,
                                     const std::string &target, int64_t limit) {
  const bool namesGpus = limit == 0 && target == "cuda";
  QLORA_ASSIGN_OR_RETURN(const GpusBySize sizes, gpusBySize());
  std::string text =
      fmt::format("{:<6}{:>7}{:>7}{:>6}{:>12}{:>14}  {}\n", "base", "length",
                  "batch", "rank", "memory", "recomputing",
                  limit       ? "with " + formatBytes(limit)
                  : namesGpus ? "GPU        recomputing"
                              : "");
  for (const Combination &c : all) {
    const std::string where =
        limit > 0 || namesGpus ? verdict(c, limit, sizes) : std::string();
    std::string line = fmt::format(
        "{:<6}{:>7}{:>7}{:>6}{:>12}{:>14}  {}", c.base, c.length, c.batch,
        c.rank, formatBytes(c.bytes), formatBytes(c.leastBytes), where);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  text += "\nrecomputing: with --gradient-checkpointing; --memory-limit "
          "recomputes only what it\nmust.";
  if (target == "cuda")
    text += " A GPU's driver and libraries take some hundred MiB more.";
  return text + "\n" + (namesGpus ? gpuLegend(sizes) : "");
}

StatusOr<std::string> memoryTable(std::span<const std::string> words) {
  QLORA_ASSIGN_OR_RETURN(const CommandLine line,
                         parseCommandLine(words, memoryTool()));
  if (!line.answer.empty())
    return line.answer;
  Options options{std::span<const OptionRow>(kMemoryOptions)};
  QLORA_RETURN_IF_ERROR(options.applySettings(line.settings));
  QLORA_ASSIGN_OR_RETURN(const std::string word, onlyInput(line, memoryTool()));
  QLORA_ASSIGN_OR_RETURN(const std::string model, modelFolder(word));
  QLORA_ASSIGN_OR_RETURN(std::vector<Combination> all, combinations(options));
  QLORA_ASSIGN_OR_RETURN(const ScratchFolder files,
                         ScratchFolder::create("memory"));
  QLORA_RETURN_IF_ERROR(
      runTool({"qlora-import", {model, "-o", files.file("model.mlir")}},
              ToolVerbosity::kErrors));
  TargetRequest request;
  request.target = options.text("target");
  request.hasKernels = false;
  QLORA_ASSIGN_OR_RETURN(const TargetChoice choice, chooseTarget(request));
  const std::string &target = choice.target;
  if (options.text("target") == "auto")
    fmt::print(stderr, "qlora: plans are for --target {}{}{}\n", target,
               choice.warning.empty() ? "" : "; ", choice.warning);
  for (Combination &c : all) {
    QLORA_ASSIGN_OR_RETURN(c.bytes, planBytes(files, target, c, false));
    QLORA_ASSIGN_OR_RETURN(c.leastBytes, planBytes(files, target, c, true));
  }
  return tableOf(all, target, options.integer("memory_limit"));
}

} // namespace qlora
