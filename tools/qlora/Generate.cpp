// SPDX-License-Identifier: MIT

// Checks the command line, and starts qlora-data.

#include "tools/qlora/Generate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tools/qlora/GenerationProgram.h"

namespace qlora {

namespace fs = std::filesystem;

static const OptionRow kGenerateOptions[] = {
    {"input", OptionType::kPath, "", kRun, "Generate",
     "rows to answer instead of a prompt: JSONL with prompt, messages or "
     "input_ids"},
    {"output", OptionType::kPath, "", kRun, "Generate",
     "JSONL file for the answers to --input; rows that are answered there are "
     "skipped; empty: standard output", "o"},
    {"logprobs", OptionType::kInt, "0", kRun, "Generate",
     "add log-probabilities of this many likeliest tokens of each step to the "
     "answers to --input", "", "", 0, 1 << 24},
};

const Tool &generateTool() {
  static const Tool tool = [] {
    Tool result = {
        .version = "qlora " QLORA_VERSION "\n",
        .usage =
            "usage: qlora generate MODEL [PROMPT] [options]\n"
            "       qlora generate RUN_DIR [PROMPT] [options]\n"
            "       qlora generate TRAIN.so [PROMPT] [options]\n"
            "\n"
            "Answers PROMPT, standard input, or the rows of --input. MODEL is "
            "a folder, or a\n"
            "name on the Hugging Face hub; RUN_DIR an output folder of qlora "
            "train, whose\n"
            "adapter and base are used; TRAIN.so a program compiled with "
            "--generation-batch.\n",
        .input = "MODEL",
        .common = {"adapter", "input", "output", "gpus", "system",
                   "max_new_tokens", "temperature", "top_p", "seed",
                   "load_in_4bit", "generation_length"},
        .example = "  qlora generate out/adapter \"Capital of Portugal?\"\n"
                   "  qlora generate Qwen/Qwen3-0.6B --load-in-4bit --input "
                   "rows.jsonl \\\n      --output answers.jsonl\n"};
    addGenerationTables(result, {kGenerateOptions, rankRows()});
    return result;
  }();
  return tool;
}

/// Refuses mistakes that qlora-data would notice only after compiling.
static Status checkInputs(const GenerationCommand &command) {
  const CommandLine &line = command.line;
  const Options &own = command.own;
  if (line.rest.empty())
    return Status::invalid("no model is named; usage: qlora generate MODEL "
                           "[PROMPT] [options]; see --help");
  if (line.rest.size() > 2)
    return Status::invalid("expects a model and a prompt, but got '{}' too; "
                           "put the prompt in quotes",
                           line.rest[2]);
  const bool hasPrompt = line.rest.size() == 2;
  const std::string input = own.text("input");
  if (hasPrompt && !input.empty())
    return Status::invalid("--input conflicts with the prompt '{}'; remove one",
                           line.rest[1]);
  std::error_code ignored;
  if (!input.empty() && !fs::exists(input, ignored))
    return Status::notFound("--input: there is no file '{}'", input);
  for (const char *name : {"output", "logprobs"})
    if (input.empty() && own.isGiven(name))
      return Status::invalid("{} needs --input; add that, or remove it",
                             own.spelling(name));
  if (input.empty() && command.ranks.integer("gpus") > 1)
    return Status::invalid("{} {}: one rank answers a prompt; add --input, or "
                           "remove it",
                           command.ranks.spelling("gpus"),
                           command.ranks.integer("gpus"));
  if (!hasPrompt && input.empty() && isatty(STDIN_FILENO))
    return Status::invalid("no prompt is given. Fix: qlora generate {} "
                           "'PROMPT', or --input FILE",
                           line.rest[0]);
  return Status::ok();
}

Status generate(std::span<const std::string> words) {
  QLORA_ASSIGN_OR_RETURN(
      const GenerationCommand command,
      GenerationCommand::parse(words, generateTool(), kGenerateOptions));
  const CommandLine &line = command.line;
  const Options &own = command.own;
  if (!line.answer.empty())
    return fmt::print("{}", line.answer), Status::ok();
  QLORA_RETURN_IF_ERROR(checkInputs(command));
  QLORA_ASSIGN_OR_RETURN(const GenerationProgram program,
                         findGenerationProgram(command));
  ToolCommand answer{"qlora-data", {"generate"}};
  std::vector<std::string> &flags = answer.arguments;
  std::ranges::copy(program.dataFlags, std::back_inserter(flags));
  if (line.rest.size() == 2)
    flags.push_back("--prompt=" + line.rest[1]);
  for (const char *name : {"input", "output"})
    if (own.isGiven(name))
      flags.push_back(flagSpelling(name) + "=" + own.text(name));
  if (own.isGiven("logprobs"))
    flags.push_back(fmt::format("--logprobs={}", own.integer("logprobs")));
  return becomeAnswer(program, std::move(answer), command.isDryRun);
}

} // namespace qlora
