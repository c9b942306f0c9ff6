// SPDX-License-Identifier: MIT

// Collects the metadata of a run and compares the metadata of two runs.

#include "runtime/Checkpoint/CheckpointMetadata.h"

#include <algorithm>
#include <array>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/ContentHash.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/Manifest.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Options/ObjectiveOptions.h"
#include "runtime/Options/OptionValue.h"
#include "runtime/Options/StepRows.h"
#include "runtime/Weights/ModelFiles.h"

namespace qlora {

using nlohmann::ordered_json;

/// Program options that change only memory use and the grouping of
/// computations. Results differ only by rounding. If max_length cuts rows, the
/// digest of the data differs too; if it changes how rows are packed,
/// compareOptions() refuses it. Rows per step are compared separately.
static constexpr std::string_view kPlanOnly[] = {
    "memory_limit",
    "offload_embedding",
    "host_memory_limit",
    "offload",
    "gradient_checkpointing",
    "per_device_train_batch_size",
    "fan_in_fan_out",
    "per_device_eval_batch_size",
    "max_length",
    "auto_find_batch_size",
    "parallel",
    "num_micro_batches",
    "pipeline_schedule",
    "num_virtual_stages_per_pipeline_rank"};
/// Options that must be equal, as program options must: the rows of a step
/// depend on them, or in the case of optim the optimizer's states.
static constexpr std::string_view kRowOrder[] = {
    "seed", "packing", "step_packing", "train_sampling_strategy", "optim"};
/// Run options that compareOptions() ignores. They do not change the training,
/// or are compared as "rows_per_step" and "speeds".
static constexpr std::string_view kNoPart[] = {
    "log_format", "gradient_accumulation_steps", "global_batch_size",
    "dataset_num_proc", "rank_speeds"};

template <size_t N>
static bool isOneOf(std::string_view name, const std::string_view (&names)[N]) {
  return std::ranges::find(names, name) != std::end(names);
}

bool decidesPlanAlone(std::string_view option) {
  return isOneOf(option, kPlanOnly);
}

nlohmann::json modelMetadata(const Options &options) {
  nlohmann::json facts = options.recordedMetadata();
  facts.erase("chunks"); // does not affect results
  return facts;
}

/// Hashes the first bytes of every tensor. That is enough to tell models apart:
/// further training changes all tensors.
static Status addSample(const std::string &folder, ContentHash &hash) {
  QLORA_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(folder));
  constexpr uint64_t kSample = 4096;
  std::array<uint8_t, kSample> bytes;
  for (const std::string &name : files.tensorNames()) {
    QLORA_ASSIGN_OR_RETURN(const ModelFiles::Entry entry, files.get(name));
    const auto sample = std::span(bytes).first(
        std::min(kSample, entry.tensor->byteCount()));
    QLORA_RETURN_IF_ERROR(entry.file->read(*entry.tensor, 0, sample));
    hash.add(name);
    hash.add(formatShape(entry.tensor->shape));
    hash.add({reinterpret_cast<const char *>(sample.data()), sample.size()});
  }
  return Status::ok();
}

static StatusOr<std::string> modelDigest(const RunMetadata &run) {
  ContentHash hash;
  QLORA_RETURN_IF_ERROR(
      addSample(run.options.text("model_name_or_path"), hash));
  hash.add(dumpJson(modelMetadata(run.options)));
  return hash.finish();
}

static std::string dataDigest(const Dataset &data) {
  ContentHash hash;
  data.identify(hash);
  return hash.finish();
}

StatusOr<ordered_json> checkpointMetadata(const RunMetadata &run) {
  QLORA_ASSIGN_OR_RETURN(const std::string model, modelDigest(run));
  QLORA_ASSIGN_OR_RETURN(const std::string program,
                         sha256OfFile(run.module.path()));
  ordered_json facts = {
      {"model", model},
      {"data", dataDigest(run.data)},
      {"rows_per_step",
       run.options.integer("per_device_train_batch_size") * run.step.count()},
      {"program", program},
      {"backend",
       run.module.table().target == QLORA_TARGET_CUDA ? "cuda" : "cpu"},
      {"ranks", run.step.ranks * run.module.rowRanks()},
      {"threads", run.threads},
      {"accumulation", run.step.accumulation},
      {"speeds", run.step.speeds}};
  for (const OptionRow &row : optionTable())
    if (row.scope != OptionScope::kOutput && !isPath(row.type))
      facts["options"][row.name] = run.options.value(row.name);
  return facts;
}

StatusOr<ordered_json> startMetadata(const Options &options,
                                     const ordered_json *before) {
  const std::string folder = options.text("adapter_name_or_path");
  if (folder.empty())
    return before ? before->value("adapter", ordered_json()) : ordered_json("");
  auto digest = sha256OfFile(folder + "/" + kAdapterWeights);
  if (!before || !before->contains("adapter"))
    return digest.isOk() ? ordered_json(*digest) : ordered_json();
  const ordered_json &earlier = before->at("adapter");
  if (digest.isOk() && earlier != *digest)
    return Status::invalid(
        "the checkpoint's run started from {}, but {} '{}' has SHA-256 {}. "
        "Fix: leave the option out, or start from scratch without "
        "--resume-from-checkpoint",
        earlier == ""
            ? "no adapter"
            : "an adapter whose SHA-256 is " + earlier.get<std::string>(),
        options.spelling("adapter_name_or_path"), folder, *digest);
  return earlier;
}

static Status differs(const std::string &checkpoint, std::string_view what,
                      const ordered_json &before, const ordered_json &own) {
  return Status::invalid("'{}' cannot be resumed: its {} is {}, but this run's "
                         "is {}. Fix: resume with the checkpoint's value, or "
                         "start from scratch without --resume-from-checkpoint",
                         checkpoint, what, dumpJson(before), dumpJson(own));
}

/// Returns an option's recorded value, also if it was recorded under an alias;
/// null if there is none. For loss_type, returns the loss that it selects
/// (lossOf): earlier versions recorded sigmoid by default for every objective.
static ordered_json meaningOf(const OptionRow &row,
                              const ordered_json &options) {
  if (row.name == std::string_view("loss_type") && options.contains("rl"))
    return lossOf(options["rl"], options[row.name]);
  for (const OptionName &name : optionNames(row))
    if (const auto found = options.find(name.name); found != options.end()) {
      const auto value = parseOptionValue(row, *found);
      return value.isOk() ? value.value() : *found;
    }
  return {};
}

/// Whether a change of the option leaves all results the same up to rounding.
static bool changesOnlyPlan(std::string_view option, const ordered_json &own) {
  // --packing fills sequences of max_length tokens.
  if (option == "max_length" && own.value("packing", false))
    return false;
  return decidesPlanAlone(option);
}

static Status compareOptions(const std::string &checkpoint,
                             const ordered_json &before,
                             const ordered_json &own,
                             std::vector<std::string> &remarks) {
  for (const OptionRow &row : optionTable()) {
    const ordered_json earlier = meaningOf(row, before);
    const ordered_json now = meaningOf(row, own);
    if (earlier.is_null() || now.is_null() || earlier == now ||
        changesOnlyPlan(row.name, own) || isOneOf(row.name, kNoPart))
      continue;
    const std::string flag = flagSpelling(row.name);
    if (row.scope == OptionScope::kProgram || isOneOf(row.name, kRowOrder))
      return differs(checkpoint, flag, earlier, now);
    remarks.push_back(
        fmt::format("{} is {}; before the checkpoint it was {}", flag,
                    dumpJson(now), dumpJson(earlier)));
  }
  return Status::ok();
}

Status compareMetadata(const std::string &checkpoint,
                       const ordered_json &before, const ordered_json &own,
                       std::vector<std::string> &remarks) {
  // Compare options first: the user knows them, and they also change the rows.
  QLORA_RETURN_IF_ERROR(compareOptions(checkpoint, before.at("options"),
                                       own.at("options"), remarks));
  for (const auto &[key, what] :
       {std::pair("model", "model"), {"data", "training data"},
        {"rows_per_step", "number of rows in a step"}})
    if (before.at(key) != own.at(key))
      return differs(checkpoint, what, before.at(key), own.at(key));
  std::string others;
  for (const auto &[key, what] :
       {std::pair("program", "another program"), {"backend", "another backend"},
        {"ranks", "another number of ranks"},
        {"threads", "another number of threads"}})
    if (before.at(key) != own.at(key))
      others += (others.empty() ? "" : ", ") + std::string(what);
  // Earlier versions recorded no speeds: the speeds were equal.
  const ordered_json equal = ordered_json::array();
  if (before.value("speeds", equal) != own.value("speeds", equal))
    others += (others.empty() ? "" : ", ") + std::string("other rank speeds");
  if (!others.empty())
    remarks.push_back(
        fmt::format("resumed with {}: data and order are the same, but results "
                    "are equal only up to rounding",
                    others));
  return Status::ok();
}

/// Checks --gradient-accumulation-steps if it differs from `needed`, the number
/// of micro-batches that keeps the checkpoint's rows per step.
static Status checkGivenSteps(const ordered_json &before,
                              const Options &options, int64_t ranks,
                              int64_t needed,
                              std::vector<std::string> &remarks) {
  constexpr const char *kSteps = "gradient_accumulation_steps";
  constexpr const char *kBatch = "per_device_train_batch_size";
  const int64_t given = options.integer(kSteps),
                batch = options.integer(kBatch);
  const ordered_json none, &earlier = before.at("options");
  const bool isUnchanged =
      earlier.value(kSteps, none) == options.value(kSteps) &&
      earlier.value(kBatch, none) == options.value(kBatch);
  const int64_t rows = before.at("rows_per_step");
  if (!isUnchanged)
    return Status::invalid("the checkpoint's steps have {} rows, but {} {} "
                           "makes {}. Fix: leave the option out, or start from "
                           "scratch without --resume-from-checkpoint",
                           rows, options.spelling(kSteps), given,
                           stepRowsText(batch, ranks, given));
  remarks.push_back(
      fmt::format("{} changes from {} to {}: a step still has {} rows, on {}",
                  options.spelling(kSteps), given, needed, rows,
                  formatCounted(ranks, "rank")));
  return Status::ok();
}

StatusOr<int64_t> accumulationFor(const ordered_json &before,
                                  const Options &options, int64_t ranks,
                                  std::vector<std::string> &remarks) {
  if (before.is_null())
    return accumulationSteps(options, ranks);
  const int64_t rows = before.at("rows_per_step");
  const int64_t asked = options.integer("global_batch_size");
  if (asked != 0 && asked != rows)
    return Status::invalid(
        "the checkpoint's steps have {0} rows, but {1} is {2}. Fix: set it to "
        "{0}, or start from scratch without --resume-from-checkpoint",
        rows, options.spelling("global_batch_size"), asked);
  const int64_t once = options.integer("per_device_train_batch_size") * ranks;
  if (rows % once != 0)
    return Status::invalid(
        "the checkpoint's steps have {0} rows, which {1} ranks x {2} rows does "
        "not divide. Fix: resume with N ranks, where N x {2} divides {0}",
        rows, ranks, once / ranks);
  const int64_t needed = rows / once;
  if (isAccumulationGiven(options) &&
      options.value("gradient_accumulation_steps") != needed)
    QLORA_RETURN_IF_ERROR(
        checkGivenSteps(before, options, ranks, needed, remarks));
  return needed;
}

} // namespace qlora
