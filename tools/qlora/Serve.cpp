// SPDX-License-Identifier: MIT

// Checks the command line, and starts qlora-data.

#include "tools/qlora/Serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "tools/qlora/GenerationProgram.h"
#include "tools/qlora/OptionSettings.h"

namespace qlora {

/// Environment variable with the API key. A flag would show it to other users.
static constexpr const char *kKeyVariable = "QLORA_API_KEY";

static const OptionRow kServeOptions[] = {
    {"host", OptionType::kString, "127.0.0.1", kRun, "Serve",
     "address or name to listen on; 0.0.0.0: all IPv4 addresses of this "
     "machine"},
    {"port", OptionType::kInt, "8000", kRun, "Serve",
     "port to listen on; 0: any free port, which is printed", "", "", 0, 65535},
    {"served_model_name", OptionType::kString, "", kRun, "Serve",
     "name of the base model in requests; empty: its name on the hub, or of "
     "its folder"},
    {"api_key", OptionType::kString, "", kRun, "Serve",
     "key that requests must have; empty: QLORA_API_KEY of the environment, or "
     "no key"},
    {"max_queue", OptionType::kInt, "256", kRun, "Serve",
     "maximum rows that wait for a slot; further requests get status 429", "",
     "", 1, 1 << 24},
    {"max_streams", OptionType::kInt, "128", kRun, "Serve",
     "maximum streams at the same time; further ones get status 429", "", "", 1,
     1 << 20},
    {"max_request_bytes", OptionType::kInt, "4194304", kRun, "Serve",
     "maximum bytes of a request; longer ones get status 413", "", "", 1,
     1 << 30},
    {"request_timeout", OptionType::kFloat, "600", kRun, "Serve",
     "seconds after which a request ends with status 408", "", "", 0.001, 1e8},
    {"drain_timeout", OptionType::kFloat, "60", kRun, "Serve",
     "seconds that running requests may take after SIGTERM", "", "", 0.001,
     1e8},
};

const Tool &serveTool() {
  static const Tool tool = [] {
    Tool result = {
        .version = "qlora " QLORA_VERSION "\n",
        .usage =
            "usage: qlora serve MODEL [options]\n"
            "       qlora serve RUN_DIR [options]\n"
            "       qlora serve TRAIN.so [options]\n"
            "\n"
            "Answers requests of OpenAI's API over HTTP: /v1/models, "
            "/v1/chat/completions,\n"
            "/v1/completions. MODEL is a folder, or a name on the Hugging "
            "Face hub; RUN_DIR\n"
            "an output folder of qlora train, whose adapter and base are "
            "used; TRAIN.so a\n"
            "program compiled with --generation-batch. Options of sampling "
            "are defaults for\n"
            "requests.\n",
        .input = "MODEL",
        .common = {"adapter", "host", "port", "api_key", "served_model_name",
                   "gpus", "generation_batch", "generation_length",
                   "load_in_4bit"},
        .example = "  qlora serve out/adapter\n"
                   "  qlora serve Qwen/Qwen3-0.6B --load-in-4bit --port 8080 "
                   "\\\n      --adapter short=out/short/adapter\n"};
    addGenerationTables(result, {kServeOptions, rankRows()});
    return result;
  }();
  return tool;
}

Status serve(std::span<const std::string> words) {
  QLORA_ASSIGN_OR_RETURN(
      const GenerationCommand command,
      GenerationCommand::parse(words, serveTool(), kServeOptions));
  const CommandLine &line = command.line;
  const Options &own = command.own;
  if (!line.answer.empty())
    return fmt::print("{}", line.answer), Status::ok();
  if (line.rest.size() != 1)
    return Status::invalid("expects one model, but got {}; usage: qlora serve "
                           "MODEL [options]; see --help",
                           line.rest.size());
  QLORA_ASSIGN_OR_RETURN(const GenerationProgram program,
                         findGenerationProgram(command));
  ToolCommand server{"qlora-data", {"serve"}};
  std::vector<std::string> &flags = server.arguments;
  std::ranges::copy(program.dataFlags, std::back_inserter(flags));
  for (const OptionRow &row : kServeOptions) {
    if (!own.isGiven(row.name))
      continue;
    const std::string text = valueText(own.value(row.name));
    if (row.name == std::string_view("api_key"))
      setenv(kKeyVariable, text.c_str(), /*overwrite=*/1);
    else
      flags.push_back(flagSpelling(row.name) + "=" + text);
  }
  return becomeAnswer(program, std::move(server), command.isDryRun);
}

} // namespace qlora
