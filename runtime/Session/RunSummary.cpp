// SPDX-License-Identifier: MIT

// Text summaries of a run.

#include "runtime/Session/RunSummary.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/HubReference.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Kernels/KernelTable.h"
#include "runtime/Module/ParameterCounts.h"
#include "runtime/Options/StepRows.h"

namespace qlora {

namespace fs = std::filesystem;

/// Counts the parameters of all stages, each once.
static ParameterCounts countParameters(const LoadedModule &module) {
  ParameterCounts counts;
  std::set<std::string_view> names;
  for (int stage = 0; stage < module.stages(); ++stage)
    for (const qlora_parameter &parameter : module.ofStage(stage).parameters())
      if (names.insert(parameter.name).second)
        counts.add(parameter);
  return counts;
}

static std::string line(const char *name, const std::string &text) {
  return fmt::format("{:<9}{}\n", name, text);
}

/// Returns text such as "NF4, double quantized". Omits "double quantized" if
/// the format is always double quantized.
static std::string formatText(const qlora_parameter &parameter) {
  const StoredFormat &format = *storedFormat(parameter.format);
  const bool isChosen = format.codedScales == CodedScales::kByChoice;
  return fmt::format("{}{}", format.title,
                     isChosen && parameter.double_quant ? ", double quantized"
                                                        : "");
}

/// Returns the format of the base: "NF4, double quantized" for quantized
/// weights; else the type of the largest weights, "bf16".
static std::string baseFormat(const LoadedModule &module) {
  const qlora_parameter *largest = nullptr;
  for (const qlora_parameter &parameter : module.parameters()) {
    if (parameter.role != QLORA_ROLE_FROZEN)
      continue;
    if (parameter.quantization != QLORA_QUANTIZATION_NONE)
      return formatText(parameter);
    if (!largest || parameter.bytes > largest->bytes)
      largest = &parameter;
  }
  if (!largest)
    return "none: full fine-tuning";
  return std::string(dtypeName(static_cast<qlora_dtype>(largest->dtype)));
}

// The folder may be a snapshot: models--Qwen--Qwen3-0.6B/snapshots/HASH.
std::string modelName(const Options &options) {
  const std::string given = options.text("adapter_base_name");
  if (!given.empty() && !given.starts_with('/') && !given.starts_with('.'))
    return given;
  const fs::path folder = options.text("model_name_or_path");
  const fs::path snapshots = folder.parent_path();
  std::string name = snapshots.parent_path().filename().string();
  constexpr std::string_view kCached = "models--";
  if (snapshots.filename() != "snapshots" || !name.starts_with(kCached))
    return folder.filename().string();
  name.erase(0, kCached.size());
  const size_t owner = name.find("--");
  return owner == name.npos ? name : name.replace(owner, 2, "/");
}

static std::string modelText(const Run &run, const ParameterCounts &counts) {
  std::string family = run.options.recordedMetadata("family").is_string()
                           ? run.options.recordedMetadata("family")
                           : "";
  if (const size_t suffix = family.rfind("ForCausalLM"); suffix != family.npos)
    family.resize(suffix);
  return fmt::format("{}{}{}, {} parameters", modelName(run.options),
                     family.empty() ? "" : ", ", family,
                     formatParameters(counts.base));
}

static std::string trainedText(const Run &run, const ParameterCounts &counts) {
  if (trainsModel(run.module))
    return fmt::format(
        "{} trainable parameters{}, full fine-tuning",
        formatCount(counts.trainable),
        counts.trainable == counts.base
            ? ""
            : fmt::format(" ({:.2f} %)", counts.trainableShare()));
  return fmt::format("{} trainable parameters ({:.2f} %), LoRA r {}, alpha {}",
                     formatCount(counts.trainable), counts.trainableShare(),
                     run.options.integer("lora_r"),
                     run.options.number("lora_alpha"));
}

static std::string dataText(const Run &run, const DataSummary &data) {
  return fmt::format("{}: {}, {}, {} in the loss",
                     dataTitle(dataName(run.options, "train_file")),
                     formatCounted(data.rows, "row"),
                     formatCounted(data.tokens, "token"),
                     formatCount(data.labelledTokens));
}

/// Returns "longest 512 tokens, median 48; 3 cut, 1 left out; 20 % padding".
static std::string lengthsText(const Run &run, const DataSummary &data) {
  std::string text = fmt::format("longest {}, median {}",
                                 formatCounted(data.longest, "token"),
                                 formatCount(data.median));
  text += fmt::format("; {} cut, {} left out", formatCount(data.truncatedRows),
                      formatCount(data.droppedRows));
  if (const auto padding = run.train->paddingShare(run.stepShape))
    text += fmt::format("; {:.1f} % padding", 100 * *padding);
  return text;
}

/// Returns the rows per step. If ranks have different speeds, appends how many
/// micro-batches of a step each rank gets.
static std::string batchText(const Run &run) {
  const StepShape &shape = run.stepShape;
  std::string text =
      stepRowsText(run.options.integer("per_device_train_batch_size"),
                   shape.ranks, shape.accumulation);
  if (shape.speeds.empty())
    return text;
  const MicroBatchAssignment deal(shape.count(), shape.ranks, shape.speeds);
  std::vector<int64_t> sizes;
  for (int64_t rank = 0; rank < shape.ranks; ++rank)
    sizes.push_back(deal.size(rank));
  return text +
         fmt::format("; by their speed, ranks get {} of its {} micro-batches",
                     fmt::join(sizes, ", "), shape.count());
}

static std::string stepsText(const Run &run) {
  return fmt::format(
      "{}, {} in an epoch; learning rate {}, {}", formatCount(run.totalSteps),
      formatCount(run.train->schedule().stepsPerEpoch(run.perStep())),
      formatShort(run.options.number("learning_rate")),
      run.options.text("lr_scheduler_type"));
}

static std::string memoryText(const Run &run) {
  const int64_t limit = run.options.integer("memory_limit");
  std::string text = formatBytes(run.memory.planned()) + " planned";
  text += limit > 0 ? fmt::format(" of {}", formatBytes(limit)) : " (no limit)";
  if (const uint64_t host = run.memory.plannedOnHost())
    text += fmt::format(" and {} of pinned host memory", formatBytes(host));
  if (const uint64_t peak = run.memory.predictedPeak())
    text += fmt::format(", {} resident at most", formatBytes(peak));
  return text + (run.group.size() > 1 ? " per rank" : "");
}

std::string runHeader(const Run &run, const DataSummary &data) {
  const ParameterCounts counts = countParameters(run.module);
  std::string text =
      line("model", modelText(run, counts)) +
      line("base", fmt::format("{}; computed in {}", baseFormat(run.module),
                               run.options.text("compute_dtype"))) +
      line(trainsModel(run.module) ? "trained" : "adapter",
           trainedText(run, counts));
  if (run.train)
    text += line("data", dataText(run, data)) +
            (data.longest ? line("rows", lengthsText(run, data)) : "") +
            line("batch", batchText(run)) +
            (run.group.size() > 1
                 ? line("ranks", parallelText(run.module, run.group.size()))
                 : "") +
            line("steps", stepsText(run));
  return text + line("device", run.hardware) + line("memory", memoryText(run)) +
         line("output", shownPath(run.outputFolder));
}

/// Returns the seconds of training, or a tiny value to divide by.
static double secondsOf(const TrainingResult &result) {
  return std::max(result.totals.seconds, 1e-9);
}

nlohmann::ordered_json runTotals(const Run &run, const TrainingResult &result) {
  const double seconds = secondsOf(result);
  nlohmann::ordered_json values = {
      {"step", result.steps},
      {"epoch", result.epoch},
      {"train_loss", result.totals.meanLoss},
      {"train_runtime", result.totals.seconds},
      {"train_steps_per_second", static_cast<double>(result.steps) / seconds},
      {"train_tokens_per_second",
       static_cast<double>(result.totals.tokens) / seconds},
      {"checkpoint_runtime", result.saveSeconds},
      {"planned_bytes", run.memory.planned()},
      {"peak_memory_bytes", run.memory.peak()}};
  if (const uint64_t peak = run.memory.predictedPeak())
    values["predicted_peak_memory_bytes"] = peak;
  return values;
}

/// Returns how to load the result with PEFT or transformers.
static std::string nextText(const std::string &folder, bool isModel) {
  if (isModel)
    return fmt::format("load it: transformers.AutoModelForCausalLM."
                       "from_pretrained(\"{}\")",
                       folder);
  return fmt::format("load it: peft.PeftModel.from_pretrained(base_model, "
                     "\"{}\")",
                     folder);
}

std::string runEnding(const Run &run, const TrainingResult &result) {
  const std::string folder = shownPath(run.outputFolder);
  const bool isModel = trainsModel(run.module);
  const std::string_view noun = isModel ? "model" : "adapter";
  const bool isSaved = result.steps > 0 && result.savedStep == result.steps;
  if (result.stopSignal != 0 && isSaved)
    return fmt::format("interrupted after step {} of {}; the checkpoint is "
                       "{}/checkpoint-{}\nresume: the same command with "
                       "--resume-from-checkpoint latest",
                       result.steps, run.totalSteps, folder, result.steps);
  if (result.stopSignal != 0)
    return fmt::format(
        "interrupted at step {} of {}; the {} so far is in {}\nstart from it: "
        "--{}-name-or-path {} --output-dir ANOTHER\n(data, schedule and "
        "optimizer then start from scratch)",
        result.steps, run.totalSteps, noun, folder, noun, folder);
  return fmt::format(
      "{} steps in {}, mean loss {:.4f}, {} tok/s, peak memory {}\n"
      "{} written to {}\n{}",
      formatCount(result.steps), formatDuration(result.totals.seconds),
      result.totals.meanLoss,
      formatRate(static_cast<double>(result.totals.tokens) / secondsOf(result)),
      formatBytes(run.memory.peak()), noun, folder,
      result.totals.hasDiverged
          ? "training has diverged (see the warning above): train again with a "
            "smaller --learning-rate"
          : nextText(folder, isModel));
}

} // namespace qlora
