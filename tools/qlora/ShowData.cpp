// SPDX-License-Identifier: MIT

// Starts qlora-data once for each training file.

#include "tools/qlora/ShowData.h"

#include <fmt/format.h>

#include "frontend/HfConfig.h"
#include "runtime/Data/DataFiles.h"
#include "tools/qlora/Configuration.h"
#include "tools/qlora/Tools.h"
#include "tools/qlora/Train.h"

namespace qlora {

static const OptionRow kShowOptions[] = {
    {"num_rows", OptionType::kInt, "3", kRun, "Show data",
     "print the first rows of each file, this many", "show", "", 1, 1 << 30},
    {"rows", OptionType::kLengths, "[]", kRun, "Show data",
     "print the rows of these numbers, from 1: 3,17", "", "", 1, 1 << 30},
    {"token_ids", OptionType::kBool, "false", kRun, "Show data",
     "print one token per line, with its id"},
    {"json", OptionType::kBool, "false", kRun, "Show data",
     "print one JSON object per row, with input_ids and labels"},
};

const Tool &showDataTool() {
  static const Tool tool = [] {
    Tool result = trainTool();
    result.usage =
        "usage: qlora show-data MODEL DATA [options]\n"
        "       qlora show-data CONFIG.yaml [options]\n"
        "\n"
        "Prints training rows as tokens, with those in the loss marked, and "
        "trains\n"
        "nothing. Takes the options of qlora train.\n";
    result.common = {"num_rows", "rows", "token_ids", "json", "config",
                     "max_length", "assistant_only_loss",
                     "completion_only_loss", "chat_template", "rl"};
    result.example = "  qlora show-data Qwen/Qwen3-0.6B data.jsonl --rows 3,17 "
                     "\\\n      --max-length 512\n";
    result.sections.insert(result.sections.begin(), {kShowOptions, {kRun}, ""});
    result.tables.insert(result.tables.begin(), kShowOptions);
    return result;
  }();
  return tool;
}

/// Returns the flags of qlora-data that select rows and the output format.
static std::vector<std::string> showFlags(const Options &own) {
  std::vector<std::string> flags = {
      "--show", fmt::format("--num-rows={}", own.integer("num_rows"))};
  if (const auto rows = own.lengths("rows"); !rows.empty()) {
    flags.push_back("--rows");
    for (const int64_t row : rows)
      flags.push_back(fmt::to_string(row));
  }
  if (own.boolean("token_ids"))
    flags.push_back("--token-ids");
  if (own.boolean("json"))
    flags.push_back("--json");
  return flags;
}

/// Shows the rows of a command line of showDataTool() or dataTool().
static Status showRows(const CommandLine &line) {
  if (!line.answer.empty())
    return fmt::print("{}", line.answer), Status::ok();
  Options own{std::span<const OptionRow>(kShowOptions)};
  Options ofTrain{trainTool().tables.front()};
  QLORA_RETURN_IF_ERROR(own.applySettings(line.settings));
  QLORA_RETURN_IF_ERROR(ofTrain.applySettings(line.settings));
  QLORA_ASSIGN_OR_RETURN(
      const Configuration configuration,
      configure(line, ofTrain.text("config"), ofTrain.text("model_revision"),
                ProgramUse::kPlan));
  const Options &options = configuration.options;
  const std::string model = options.text("model_name_or_path");
  if (model.empty() || !configuration.program.empty())
    return Status::invalid("show-data needs a model and data. Fix: qlora "
                           "show-data MODEL DATA [options]");
  QLORA_RETURN_IF_ERROR(checkDataFiles(options, /*trains=*/true));
  QLORA_ASSIGN_OR_RETURN(const ModelConfig config, readHfConfig(model, {}));
  std::vector<ToolCommand> commands;
  for (const auto &[path, weight] : options.paths("train_file")) {
    commands.push_back({"qlora-data", showFlags(own)});
    std::ranges::copy(converterFlags(tokenRequest(
                          options, path, options.lengths("max_length").back(),
                          config.vocabSize)),
                      std::back_inserter(commands.back().arguments));
  }
  const ToolCommand last = commands.back();
  commands.pop_back();
  for (const ToolCommand &command : commands)
    QLORA_RETURN_IF_ERROR(runTool(command, ToolVerbosity::kTerminal));
  return becomeTool(last);
}

const Tool &dataTool() {
  static const Tool tool = [] {
    Tool result = showDataTool();
    result.usage =
        "usage: qlora data FILE --show N --model MODEL [options]\n"
        "       qlora data CONFIG.yaml --show N [options]\n"
        "\n"
        "Prints the first rows of a data file as tokens, with those in the "
        "loss marked:\n"
        "the same as qlora show-data MODEL FILE.\n";
    result.common.insert(result.common.begin(), "model_name_or_path");
    result.example = "  qlora data data.jsonl --show 3 --model "
                     "Qwen/Qwen3-0.6B\n";
    return result;
  }();
  return tool;
}

Status showData(std::span<const std::string> words) {
  QLORA_ASSIGN_OR_RETURN(const CommandLine line,
                         parseCommandLine(words, showDataTool()));
  return showRows(line);
}

Status showFile(std::span<const std::string> words) {
  QLORA_ASSIGN_OR_RETURN(CommandLine line, parseCommandLine(words, dataTool()));
  if (line.rest.size() == 1 && !isYamlFile(line.rest[0])) {
    line.settings.push_back(
        {findOption(optionTable(), "train_file"), line.rest[0], line.rest[0]});
    line.rest.clear();
  }
  return showRows(line);
}

} // namespace qlora
