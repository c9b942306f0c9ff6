// SPDX-License-Identifier: MIT

// Checks the command line, and starts qlora-data.

#include "tools/qlora/Chat.h"

#include <fmt/format.h>

#include "tools/qlora/GenerationProgram.h"

namespace qlora {

const Tool &chatTool() {
  static const Tool tool = [] {
    Tool result = {
        .version = "qlora " QLORA_VERSION "\n",
        .usage =
            "usage: qlora chat MODEL [options]\n"
            "       qlora chat RUN_DIR [options]\n"
            "       qlora chat TRAIN.so [options]\n"
            "\n"
            "A conversation on a terminal, where /help lists commands, or in "
            "a pipe, where\n"
            "each line of standard input is a message. MODEL is a folder, or "
            "a name on the\n"
            "Hugging Face hub; RUN_DIR an output folder of qlora train, whose "
            "adapter and\n"
            "base are used; TRAIN.so a program compiled with "
            "--generation-batch.\n",
        .input = "MODEL",
        .common = {"adapter", "system", "max_new_tokens", "temperature",
                   "top_p", "seed", "load_in_4bit", "generation_length"},
        .example = "  qlora chat out/adapter\n"
                   "  qlora chat Qwen/Qwen3-0.6B --load-in-4bit --temperature "
                   "0.6\n"};
    addGenerationTables(result, {});
    return result;
  }();
  return tool;
}

Status chat(std::span<const std::string> words) {
  QLORA_ASSIGN_OR_RETURN(GenerationCommand command,
                         GenerationCommand::parse(words, chatTool(), {}));
  const CommandLine &line = command.line;
  if (!line.answer.empty())
    return fmt::print("{}", line.answer), Status::ok();
  if (line.rest.empty())
    return Status::invalid("no model is named; usage: qlora chat MODEL "
                           "[options]; see --help");
  if (line.rest.size() > 1)
    return Status::invalid("expects only a model, but got '{}' too. Fix: "
                           "remove it, or use qlora generate for one prompt",
                           line.rest[1]);
  command.batch = 1;
  QLORA_ASSIGN_OR_RETURN(const GenerationProgram program,
                         findGenerationProgram(command));
  ToolCommand answer{"qlora-data", {"chat"}};
  answer.arguments.insert(answer.arguments.end(), program.dataFlags.begin(),
                          program.dataFlags.end());
  return becomeAnswer(program, std::move(answer), command.isDryRun);
}

} // namespace qlora
