// SPDX-License-Identifier: MIT

// `qlora compare`: returns a table and writes an HTML page. With --sweep, it
// trains each combination of options first.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "runtime/Options/CommandLine.h"
#include "runtime/Options/SweepGrid.h"
#include "runtime/Watch/RunComparison.h"
#include "tools/qlora/Commands.h"
#include "tools/qlora/Tools.h"

namespace qlora {

static const OptionRow kCompareOptions[] = {
    {"output", OptionType::kPath, "compare.html", kRun, "Compare",
     "page to write, with loss against tokens and against time", "o"},
    {"sweep", OptionType::kString, "", kRun, "Compare",
     "NAME=VALUE,VALUE,...: train with each value of an option, into "
     "subfolders of --output-dir, and pass all other options to qlora train; "
     "repeat it for every combination of several options"},
};

const Tool &compareTool() {
  static const Tool tool = {
      .version = "qlora " QLORA_VERSION "\n",
      .usage = "usage: qlora compare DIR DIR ... [--output compare.html]\n"
               "       qlora compare --sweep NAME=VALUE,... MODEL_DIR DATA "
               "[train options]\n"
               "\n"
               "Compares runs: which is faster, needs less memory and has the "
               "lower loss, and\n"
               "which differences are noise. The first DIR is the baseline. "
               "DIR is a run's\n--output-dir, or one of its sessions/v1.\n",
      .input = "DIR",
      .common = {"output", "sweep"},
      .example = "  qlora compare adapter-r8 adapter-r64\n"
                 "  qlora compare --sweep gpus=1,2 Qwen3-0.6B data.jsonl "
                 "--max-steps 50\n",
      .sections = {{kCompareOptions, {kRun}, ""}},
      .tables = {kCompareOptions}};
  return tool;
}

namespace {
/// Options of a sweep. `words` are arguments for every `qlora train`.
struct Sweep {
  std::vector<SweepAxis> axes;
  std::vector<std::string> words;
  std::string output = "sweep", page;
};
} // namespace

/// Parses --sweep, --output and --output-dir. Keeps all other words, unparsed,
/// for `qlora train`.
static StatusOr<Sweep> parseSweep(std::span<const std::string> words) {
  Sweep sweep;
  std::string axis;
  const std::map<std::string, std::string *> ours = {
      {"--sweep", &axis},
      {"--output", &sweep.page},
      {"-o", &sweep.page},
      {"--output-dir", &sweep.output},
      {"--output_dir", &sweep.output}};
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    const auto option = ours.find(words[i].substr(0, equals));
    if (option == ours.end()) {
      sweep.words.push_back(words[i]);
      continue;
    }
    if (equals == words[i].npos && i + 1 == words.size())
      return Status::invalid("{}: expects a value", option->first);
    *option->second =
        equals == words[i].npos ? words[++i] : words[i].substr(equals + 1);
    if (option->second == &axis) {
      QLORA_ASSIGN_OR_RETURN(SweepAxis parsed, parseSweepAxis(axis));
      sweep.axes.push_back(std::move(parsed));
    }
  }
  return sweep;
}

/// Trains each combination of the sweep. Returns the output folders.
static StatusOr<std::vector<std::string>> trainAll(const Sweep &sweep) {
  std::vector<std::string> folders;
  for (const SweepPoint &point : sweepPoints(sweep.axes)) {
    folders.push_back(sweep.output + "/" + point.name());
    ToolCommand command{"qlora", {"train"}};
    std::ranges::copy(sweep.words, std::back_inserter(command.arguments));
    for (const auto &[name, value] : point.values)
      command.arguments.push_back("--" + name + "=" + value);
    command.arguments.push_back("--output-dir=" + folders.back());
    fmt::print(stderr, "qlora: {}\n", shellText(command));
    QLORA_RETURN_IF_ERROR(runTool(command));
  }
  return folders;
}

static StatusOr<std::string>
compareFolders(const std::vector<std::string> &folders,
               const std::string &page) {
  std::vector<RunFolder> runs;
  std::string text;
  for (const std::string &folder : folders) {
    QLORA_ASSIGN_OR_RETURN(RunFolder run, RunFolder::read(folder));
    if (run.logged.unreadable > 0)
      text +=
          fmt::format("{}: {} unreadable lines of metrics.jsonl are ignored\n",
                      folder, run.logged.unreadable);
    runs.push_back(std::move(run));
  }
  QLORA_ASSIGN_OR_RETURN(const std::string table, writeComparison(runs, page));
  return text + table;
}

StatusOr<std::string> compare(std::span<const std::string> words) {
  const bool asks = std::ranges::any_of(words, [](const std::string &word) {
    return word == "--help" || word == "-h";
  });
  const bool isSweep =
      !asks && std::ranges::any_of(words, [](const std::string &word) {
        return word == "--sweep" || word.starts_with("--sweep=");
      });
  if (isSweep) {
    QLORA_ASSIGN_OR_RETURN(const Sweep sweep, parseSweep(words));
    QLORA_ASSIGN_OR_RETURN(const auto folders, trainAll(sweep));
    return compareFolders(folders, sweep.page.empty()
                                       ? sweep.output + "/compare.html"
                                       : sweep.page);
  }
  QLORA_ASSIGN_OR_RETURN(const CommandLine line,
                         parseCommandLine(words, compareTool()));
  if (!line.answer.empty())
    return line.answer;
  Options options{std::span<const OptionRow>(kCompareOptions)};
  QLORA_RETURN_IF_ERROR(options.applySettings(line.settings));
  if (line.rest.size() < 2)
    return Status::invalid("expects two folders of runs or more; usage: qlora "
                           "compare DIR DIR ...; see --help");
  return compareFolders(line.rest, options.text("output"));
}

} // namespace qlora
