// SPDX-License-Identifier: MIT

// Calls qlora-data and converts its errors.

#include "runtime/Session/HubPush.h"

#include <filesystem>
#include <vector>

#include "runtime/Base/Subprocess.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Data/TokenCache.h"

namespace qlora {

/// Returns the repository's name. As in transformers, the default is the
/// folder's name in the user's namespace.
static std::string repositoryId(const Options &options) {
  const std::string id = options.text("hub_model_id");
  return id.empty() ? std::filesystem::path(options.text("output_dir"))
                          .filename()
                          .string()
                    : id;
}

/// Runs qlora-data and returns the last line of its output. If it fails, the
/// last line of its standard error is the error.
static StatusOr<std::string> runHubCommand(std::vector<std::string> words) {
  QLORA_ASSIGN_OR_RETURN(std::string program, findConverter());
  words.insert(words.begin(), std::move(program));
  QLORA_ASSIGN_OR_RETURN(ProcessOutput output, runProgram(words));
  if (output.exitCode != 0)
    return Status::unavailable("{}", converterError(output.errors));
  std::string &text = output.out;
  while (text.ends_with('\n'))
    text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

Status prepareHub(const Options &options) {
  return runHubCommand(
             {"create-repository", repositoryId(options),
              options.boolean("hub_private_repo") ? "private" : "public"})
      .status();
}

StatusOr<std::string> pushToHub(const Options &options) {
  const std::string folder = options.text("output_dir");
  const std::string id = repositoryId(options);
  auto pushed = runHubCommand({"push-adapter", id, folder});
  if (pushed.isOk())
    return pushed;
  return Status::error(
      pushed.status().code(),
      "the adapter is in '{}' but not on the hub: {}. Fix: hf upload {} {} "
      "--exclude 'checkpoint-*' 'predictions/*' 'runs/*' 'sessions/*'",
      shownPath(folder), pushed.status().message(), id, shownPath(folder));
}

} // namespace qlora
