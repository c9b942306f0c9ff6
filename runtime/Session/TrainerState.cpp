// SPDX-License-Identifier: MIT

// Hugging Face's view of a checkpoint.

#include "runtime/Session/TrainerState.h"

#include <sstream>

#include "runtime/Base/UserFiles.h"

namespace qlora {

using nlohmann::ordered_json;

/// The fields that TrainerState has had in every version with
/// stateful_callbacks; one that it does not know would make it refuse the file.
ordered_json trainerState(const Run &run, int64_t step, const BestModel &best) {
  const Options &options = run.options;
  const auto metric = best.metric();
  return {{"best_metric", metric ? ordered_json(*metric) : nullptr},
          {"best_model_checkpoint",
           metric ? ordered_json(fmt::format("{}/checkpoint-{}",
                                             run.outputFolder, best.step()))
                  : nullptr},
          {"epoch", run.train->schedule().epochAfter(step, run.perStep())},
          {"eval_steps", options.integer("eval_steps")},
          {"global_step", step},
          {"is_hyper_param_search", false},
          {"is_local_process_zero", true},
          {"is_world_process_zero", true},
          {"logging_steps", options.integer("logging_steps")},
          {"max_steps", run.totalSteps},
          {"num_input_tokens_seen", 0},
          {"num_train_epochs",
           static_cast<int64_t>(options.number("num_train_epochs"))},
          {"save_steps", options.integer("save_steps")},
          {"stateful_callbacks", ordered_json::object()},
          {"total_flos", 0},
          {"train_batch_size", options.integer("per_device_train_batch_size")},
          {"trial_name", nullptr},
          {"trial_params", nullptr}};
}

std::string withHistory(ordered_json state, const std::string &lines) {
  ordered_json history = ordered_json::array();
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    ordered_json values =
        ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!values.is_object())
      continue;
    if (values.contains("num_input_tokens_seen"))
      state["num_input_tokens_seen"] = values["num_input_tokens_seen"];
    history.push_back(std::move(values));
  }
  state["log_history"] = std::move(history);
  return state.dump(2) + "\n";
}

StatusOr<std::string> readHistory(const std::string &checkpoint) {
  const std::string path = checkpoint + "/trainer_state.json";
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(path));
  const ordered_json state =
      ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!state.is_object() || !state.contains("log_history") ||
      !state["log_history"].is_array())
    return Status::error(StatusCode::kDataLoss, "'{}' has no log_history",
                         path);
  std::string lines;
  for (const ordered_json &values : state["log_history"])
    lines += values.dump() + "\n";
  return lines;
}

} // namespace qlora
