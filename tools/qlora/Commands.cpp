// SPDX-License-Identifier: MIT

// The table of commands, and the commands that only print a text.

#include "tools/qlora/Commands.h"

#include <fmt/format.h>

#include "tools/qlora/Chat.h"
#include "tools/qlora/Check.h"
#include "tools/qlora/Eval.h"
#include "tools/qlora/Export.h"
#include "tools/qlora/Generate.h"
#include "tools/qlora/Plan.h"
#include "tools/qlora/Serve.h"
#include "tools/qlora/ShowData.h"
#include "tools/qlora/Train.h"

namespace qlora {

static const Tool &helpTool() {
  static const Tool tool = {
      .version = "qlora " QLORA_VERSION "\n",
      .usage = "usage: qlora help [TOPIC]\n\n"
               "Prints the list of commands and topics, or help about a "
               "command or a topic.\n",
      .input = "TOPIC",
      .example = "  qlora help memory\n"};
  return tool;
}

static const Tool &informationTool() {
  static const Tool tool = {
      .version = "qlora " QLORA_VERSION "\n",
      .usage = "usage: qlora info\n\n"
               "Prints what of this machine qlora uses: CPU, GPUs and their "
               "libraries, tools and\ncaches, and what is missing.\n",
      .example = "  qlora info\n"};
  return tool;
}

static const Tool &completionTool() {
  static const Tool tool = {
      .version = "qlora " QLORA_VERSION "\n",
      .usage = "usage: qlora completion bash|fish|zsh\n\n"
               "Prints a script that completes commands, options and their "
               "values in the shell.\n",
      .input = "SHELL",
      .example = "  source <(qlora completion bash)    # in ~/.bashrc\n"
                 "  source <(qlora completion zsh)     # in ~/.zshrc\n"
                 "  qlora completion fish | source     # in config.fish\n"};
  return tool;
}

static Status print(const StatusOr<std::string> &text) {
  if (text.isOk())
    fmt::print("{}", text.value());
  return text.status();
}

/// Returns the words of a command that has no options. Sets `answer` to the
/// text of --help, if that is given.
static StatusOr<std::vector<std::string>>
plainWords(Words words, const Tool &tool, size_t most, std::string &answer) {
  QLORA_ASSIGN_OR_RETURN(CommandLine line, parseCommandLine(words, tool));
  if (line.rest.size() > most && most == 0)
    return Status::invalid("takes no argument, but got '{}'; remove it",
                           line.rest[0]);
  if (line.rest.size() > most)
    return Status::invalid("expects one {}, but got '{}' too", tool.input,
                           line.rest[1]);
  answer = line.answer;
  return std::move(line.rest);
}

/// Runs a command whose text depends on at most one word.
static Status runPlain(Words words, const Tool &tool,
                       StatusOr<std::string> (*text)(std::string_view)) {
  std::string answer;
  QLORA_ASSIGN_OR_RETURN(
      const auto rest,
      plainWords(words, tool, tool.input.empty() ? 0 : 1, answer));
  if (!answer.empty())
    return print(answer);
  return print(text(rest.empty() ? std::string_view() : rest[0]));
}

static Status runHelp(Words words) {
  return runPlain(words, helpTool(), helpText);
}

static Status runCompletion(Words words) {
  return runPlain(words, completionTool(), completionScript);
}

static Status runInformation(Words words) {
  return runPlain(words, informationTool(),
                  [](std::string_view) -> StatusOr<std::string> {
                    return machineInformation();
                  });
}

static Status runMemory(Words words) { return print(memoryTable(words)); }
static Status runCompare(Words words) { return print(compare(words)); }
static Status runReport(Words words) { return print(report(words)); }

std::span<const Command> commands() {
  static const Command kCommands[] = {
      {"train", "MODEL DATA", "train a LoRA adapter; also: train CONFIG.yaml",
       trainTool, train},
      {"plan", "MODEL DATA", "memory and speed of a training, without training",
       planTool, plan},
      {"generate", "MODEL [PROMPT]", "answers of a model or an adapter",
       generateTool, generate},
      {"chat", "MODEL", "a conversation with a model or an adapter", chatTool,
       chat},
      {"eval", "MODEL DATA", "answers compared with those of rows; perplexity",
       evalTool, evaluateModel},
      {"serve", "MODEL", "answers over HTTP, as OpenAI's API", serveTool,
       serve},
      {"export", "RUN_DIR --to FORM",
       "an adapter for transformers, llama.cpp, ollama, PEFT", exportTool,
       exportRun},
      {"check", "RUN|MODEL|CONFIG",
       "whether PEFT, vLLM, llama.cpp and ollama can load it", checkTool,
       check},
      {"memory", "MODEL", "memory by base, length, batch, rank; which GPUs fit",
       memoryTool, runMemory},
      {"show-data", "MODEL DATA",
       "rows as tokens, with those in the loss marked", showDataTool, showData},
      {"data", "FILE --show 3", "the same, with the model after --model",
       dataTool, showFile},
      {"compare", "DIR DIR ...", "compare runs; with --sweep, train them first",
       compareTool, runCompare},
      {"report", "DIR", "summary of a run, and its report page", reportTool,
       runReport},
      {"info", "", "this machine: CPU, GPU libraries, tools, caches",
       informationTool, runInformation},
      {"help", "[TOPIC]", "this text, or help on a command or a topic",
       helpTool, runHelp},
      {"completion", "bash|fish|zsh", "completion script for the shell",
       completionTool, runCompletion},
  };
  return kCommands;
}

std::vector<std::string> commandNames() {
  std::vector<std::string> names;
  for (const Command &command : commands())
    names.push_back(command.name);
  return names;
}

} // namespace qlora
