// SPDX-License-Identifier: MIT

// Checks the command line, finds the options of the rows, and starts
// qlora-data.

#include "tools/qlora/Eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "frontend/HfConfig.h"
#include "runtime/Base/HubReference.h"
#include "runtime/Data/DataFiles.h"
#include "runtime/Watch/RunFolder.h"
#include "tools/qlora/GenerationProgram.h"
#include "tools/qlora/HubData.h"

namespace qlora {

namespace fs = std::filesystem;

static const OptionRow kEvalOptions[] = {
    {"output", OptionType::kPath, "", kRun, "Evaluate",
     "JSONL file for prompt, answer, reference and scores of each row; rows "
     "that it has already are skipped. NAME.metrics.json gets the metrics",
     "o"},
    {"max_rows", OptionType::kInt, "0", kRun, "Evaluate",
     "measure only the first rows, this many; 0: all", "", "", 0, 1 << 30},
    {"compare_base", OptionType::kBool, "false", kRun, "Evaluate",
     "measure the base without an adapter too"},
    {"generate", OptionType::kBool, "true", kRun, "Evaluate",
     "answer the prompts; false: only compute loss and perplexity"},
    {"compute_metrics", OptionType::kPath, "", kRun, "Evaluate",
     "Python file with a function compute_metrics(predictions, references), "
     "which returns further metrics"},
    {"use_stemmer", OptionType::kBool, "false", kRun, "Evaluate",
     "compare the stems of English words in ROUGE"},
    {"json", OptionType::kBool, "false", kRun, "Evaluate",
     "print the metrics as JSON instead of a table"},
};

/// Returns `count` rows of optionTable(), from the row `name`.
static std::span<const OptionRow> tableRows(std::string_view name,
                                             size_t count) {
  return {findOption(optionTable(), name), count};
}

const Tool &evalTool() {
  static const Tool tool = [] {
    Tool result = {
        .version = "qlora " QLORA_VERSION "\n",
        .usage =
            "usage: qlora eval MODEL DATA [options]\n"
            "       qlora eval RUN_DIR DATA [options]\n"
            "       qlora eval TRAIN.so DATA [options]\n"
            "\n"
            "Answers the prompts of DATA, rows of training data, and compares "
            "the answers\n"
            "with the rows': exact match, F1, ROUGE, loss and perplexity. "
            "MODEL is a folder,\n"
            "or a name on the Hugging Face hub; RUN_DIR an output folder of "
            "qlora train,\n"
            "whose adapter, base and options of the data are used; TRAIN.so a "
            "program\n"
            "compiled with --generation-batch.\n",
        .input = "MODEL",
        .common = {"adapter", "compare_base", "output", "max_rows",
                   "compute_metrics", "json", "gpus", "max_new_tokens",
                   "temperature", "load_in_4bit", "generation_length"},
        .example = "  qlora eval out/adapter held-out.jsonl --output "
                   "predictions.jsonl\n"
                   "  qlora eval Qwen/Qwen3-0.6B held-out.jsonl --max-rows "
                   "100\n"};
    addGenerationTables(result, {kEvalOptions, hubTestRows(), rankRows()});
    for (const std::span<const OptionRow> rows :
         {tableRows("dataset_columns", 2), tableRows("dataset_text_field", 1),
          tableRows("completion_only_loss", 3)}) {
      result.tables.push_back(rows);
      result.sections.push_back({rows, {}, ""});
    }
    return result;
  }();
  return tool;
}

static Status checkEvalWords(const CommandLine &line) {
  if (line.rest.size() < 2)
    return Status::invalid("expects a model and data; usage: qlora eval MODEL "
                           "DATA [options]; see --help");
  if (line.rest.size() > 2)
    return Status::invalid(
        "expects a model and data, but got '{}' too; remove it", line.rest[2]);
  return Status::ok();
}

/// Returns the path of the rows, or the reference of a data set on the hub.
static StatusOr<std::string> findRows(const CommandLine &line) {
  const std::string word = line.rest[1];
  std::error_code ignored;
  if (isHubReference(word))
    return findHubReference(word, "");
  if (isHubDataName(word, "")) {
    QLORA_ASSIGN_OR_RETURN(
        const HubDataset set,
        HubDataKeys::of(line.settings).dataset(word, /*isTest=*/true));
    return findHubReference(set.reference(), "");
  }
  if (!fs::exists(word, ignored))
    return Status::notFound("there is no file or folder '{}' with rows; check "
                            "the path",
                            word);
  return word;
}

/// Refuses mistakes that qlora-data would notice only after compiling.
static Status checkEvalInputs(const GenerationCommand &command) {
  QLORA_RETURN_IF_ERROR(checkEvalWords(command.line));
  const Options &own = command.own;
  const std::string file = own.text("compute_metrics");
  std::error_code ignored;
  if (!file.empty() && !fs::exists(file, ignored))
    return Status::notFound("--compute-metrics: there is no file '{}'", file);
  if (command.sampling.isGiven("system"))
    return Status::invalid("--system: rows of training data have their own "
                           "system messages; remove it");
  if (command.run.isGiven("max_length"))
    return Status::invalid("--max-length: no row is cut, because its answer "
                           "must be complete. Fix: remove it, or choose a "
                           "--generation-length");
  if (own.boolean("generate"))
    return Status::ok();
  for (const OptionRow &row : samplingRows())
    if (command.sampling.isGiven(row.name))
      return Status::invalid("{} needs answers, but --generate is false; "
                             "remove one",
                             command.sampling.spelling(row.name));
  if (!file.empty())
    return Status::invalid("--compute-metrics needs answers, but --generate is "
                           "false; remove one");
  return Status::ok();
}

/// Returns the chat template that the run was trained with: its option, or if
/// that file is gone, the copy in the adapter's folder. Without a run, only
/// that copy is known.
static std::string templateOfRows(const Options &data,
                                  const GenerationProgram &program) {
  const std::string recorded = data.text("chat_template");
  std::error_code ignored;
  const bool isGone =
      recorded.ends_with(".jinja") && !fs::exists(recorded, ignored);
  const bool isKnown = data.isGiven("chat_template") || !program.run.empty();
  return isKnown && !isGone ? recorded : program.chatTemplate;
}

/// Returns the flags that convert rows as in training: the options of the run
/// if there is one, and those of the command line.
static StatusOr<std::vector<std::string>>
rowFlags(const GenerationCommand &command, const GenerationProgram &program,
         const std::string &rows) {
  Options data;
  if (!program.run.empty())
    QLORA_RETURN_IF_ERROR(data.applyYaml(program.run + "/" + kSettingsFile));
  QLORA_RETURN_IF_ERROR(data.applySettings(command.line.settings));
  const std::string model = program.options.text("model_name_or_path");
  QLORA_ASSIGN_OR_RETURN(const ModelConfig config, readHfConfig(model, {}));
  TokenRequest request = tokenRequest(data, rows, 0, config.vocabSize);
  request.modelFolder = model;
  request.chatTemplate = templateOfRows(data, program);
  request.pairs = request.unpaired = false;
  request.maxSamples = 0;      // --max-rows
  request.excess = "truncate"; // nothing is cut without a maximum length
  request.packing.clear();
  return converterFlags(request);
}

/// Returns the flags of qlora-data for own options.
static std::vector<std::string> evalFlags(const Options &own) {
  std::vector<std::string> flags;
  for (const char *name : {"output", "compute_metrics"})
    if (own.isGiven(name))
      flags.push_back(flagSpelling(name) + "=" + own.text(name));
  if (own.integer("max_rows") > 0)
    flags.push_back(fmt::format("--max-rows={}", own.integer("max_rows")));
  for (const char *name : {"generate", "use_stemmer"})
    if (own.isGiven(name))
      flags.push_back(
          fmt::format("{}={}", flagSpelling(name), own.boolean(name)));
  for (const char *name : {"compare_base", "json"})
    if (own.boolean(name))
      flags.push_back(flagSpelling(name));
  return flags;
}

Status evaluateModel(std::span<const std::string> words) {
  QLORA_ASSIGN_OR_RETURN(
      const GenerationCommand command,
      GenerationCommand::parse(words, evalTool(), kEvalOptions));
  if (!command.line.answer.empty())
    return fmt::print("{}", command.line.answer), Status::ok();
  QLORA_RETURN_IF_ERROR(checkEvalInputs(command));
  QLORA_ASSIGN_OR_RETURN(const std::string data, findRows(command.line));
  QLORA_ASSIGN_OR_RETURN(const GenerationProgram program,
                         findGenerationProgram(command));
  if (command.own.boolean("compare_base") && !program.rowsChoose)
    return Status::invalid("--compare-base needs plain LoRA adapters, which "
                           "rows can choose. Fix: remove it, and measure the "
                           "base with --adapter none");
  ToolCommand tool{"qlora-data", {"evaluate"}};
  // The rows have a chat template of their own.
  std::ranges::copy_if(program.dataFlags, std::back_inserter(tool.arguments),
                       [](const std::string &flag) {
                         return !flag.starts_with("--chat-template=");
                       });
  QLORA_ASSIGN_OR_RETURN(const auto rows, rowFlags(command, program, data));
  std::ranges::copy(rows, std::back_inserter(tool.arguments));
  std::ranges::copy(evalFlags(command.own), std::back_inserter(tool.arguments));
  return becomeAnswer(program, std::move(tool), command.isDryRun);
}

} // namespace qlora
