// SPDX-License-Identifier: MIT

// Calls qlora-data and converts its errors.

#include "runtime/Extras/HubPush.h"

#include <filesystem>
#include <vector>

#include "runtime/Base/Subprocess.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Data/TokenCache.h"
#include "runtime/Session/Training.h"

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

Status HubPush::begin(const Run &run) {
  const Options &options = run.options;
  if (!run.metrics || !run.train || !options.boolean("push_to_hub"))
    return Status::ok();
  return runHubCommand(
             {"create-repository", repositoryId(options),
              options.boolean("hub_private_repo") ? "private" : "public"})
      .status();
}

Status HubPush::end(const Run &run, const DataSummary &,
                    const TrainingResult &result) {
  const Options &options = run.options;
  if (!options.boolean("push_to_hub") || result.stopSignal != 0)
    return Status::ok();
  const std::string folder = options.text("output_dir");
  const std::string id = repositoryId(options);
  const auto pushed = runHubCommand({"push-adapter", id, folder});
  if (pushed.isOk()) {
    run.metrics->say("pushed to " + pushed.value());
    return Status::ok();
  }
  return Status::error(
      pushed.status().code(),
      "the adapter is in '{}' but not on the hub: {}. Fix: hf upload {} {} "
      "--exclude 'checkpoint-*' 'predictions/*' 'runs/*' 'sessions/*'",
      shownPath(folder), pushed.status().message(), id, shownPath(folder));
}

} // namespace qlora
