// SPDX-License-Identifier: MIT

// Runs qlora-import and qloracc.

#include "tools/qlora/Programs.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/Base/UserFiles.h"
#include "runtime/Data/TokenFiles.h"

namespace qlora {

/// Returns a hash of everything that determines the program.
static StatusOr<std::string> keyOf(const Configuration &configuration) {
  const Options &options = configuration.options;
  ContentHash hash;
  hash.add(QLORA_VERSION);
  QLORA_RETURN_IF_ERROR(addModel(hash, options.text("model_name_or_path"),
                                 configuration.modelKeys));
  addInstructions(hash);
  QLORA_ASSIGN_OR_RETURN(const bool rows, hasRows(options.paths("train_file")));
  hash.add(rows ? "rows" : "no rows");
  for (const std::string &flag : configuration.compilerFlags)
    if (!flag.starts_with("--train-file="))
      hash.add(flag);
  // If a profile or map is a file, hash its content too. If it is a GPU's name
  // or a keyword, the hash of its flag is enough.
  for (const std::string &path :
       {configuration.deviceProfile, configuration.deviceMap})
    if (const auto text = readWholeFile(path); text.isOk())
      hash.add(text.value());
  return hash.finish();
}

StatusOr<ProgramCommands> programCommands(const Configuration &configuration) {
  ProgramCommands result;
  result.program = configuration.program;
  if (!result.program.empty())
    return result;
  const std::string model = configuration.options.text("model_name_or_path");
  QLORA_ASSIGN_OR_RETURN(const std::string key, keyOf(configuration));
  QLORA_ASSIGN_OR_RETURN(result.cache, ProgramCache::open(key));
  const ProgramCache &cache = *result.cache;
  if (!configuration.alwaysCompiles)
    result.program = cache.find(result.note);
  if (!result.program.empty())
    return result;
  result.program = cache.programPath();
  ToolCommand import{"qlora-import", {model, "-o", cache.modelPath()}};
  std::ranges::copy(configuration.importerFlags,
                    std::back_inserter(import.arguments));
  ToolCommand compile{"qloracc", {cache.modelPath(), "-o", result.program}};
  std::ranges::copy(configuration.compilerFlags,
                    std::back_inserter(compile.arguments));
  result.commands = {std::move(import), std::move(compile)};
  return result;
}

void noteCached(const ProgramCommands &made) {
  if (made.commands.empty() && made.cache)
    note(fmt::format("the program is cached: {}", made.program));
}

Status makeProgram(const ProgramCommands &made) {
  if (made.commands.empty())
    return Status::ok();
  for (const ToolCommand &command : made.commands)
    QLORA_RETURN_IF_ERROR(findTool(command.tool).status());
  QLORA_RETURN_IF_ERROR(made.cache->prepare());
  note("compiling; the program is kept for the next run");
  for (const ToolCommand &command : made.commands)
    QLORA_RETURN_IF_ERROR(runTool(command));
  return Status::ok();
}

Status showProgram(const ProgramCommands &made) {
  if (made.cache)
    QLORA_RETURN_IF_ERROR(made.cache->prepare());
  noteCached(made);
  for (const ToolCommand &command : made.commands)
    fmt::print("{}\n", shellText(command));
  return Status::ok();
}

} // namespace qlora
