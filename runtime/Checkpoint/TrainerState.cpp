// SPDX-License-Identifier: MIT

// Writes a checkpoint's state in Hugging Face's format.

#include "runtime/Checkpoint/TrainerState.h"

#include "runtime/Base/JsonText.h"

#include <sstream>

namespace qlora {

using nlohmann::ordered_json;

/// Returns the fields of TrainerState that exist in every transformers version
/// with stateful_callbacks. transformers refuses a file with an unknown field.
ordered_json trainerState(const Run &run, int64_t step, const BestModel &best) {
  const Options &options = run.options;
  const auto metric = best.metric();
  return {{"best_metric", metric ? ordered_json(*metric) : nullptr},
          {"best_model_checkpoint",
           metric ? ordered_json(fmt::format("{}/checkpoint-{}",
                                             run.outputFolder, best.step()))
                  : nullptr},
          {"epoch", run.train->schedule().epochAfter(step, run.perStep())},
          {"eval_steps", options.steps("eval_steps", run.totalSteps)},
          {"global_step", step},
          {"is_hyper_param_search", false},
          {"is_local_process_zero", true},
          {"is_world_process_zero", true},
          {"logging_steps", options.steps("logging_steps", run.totalSteps)},
          {"max_steps", run.totalSteps},
          {"num_input_tokens_seen", 0},
          {"num_train_epochs",
           static_cast<int64_t>(options.number("num_train_epochs"))},
          {"save_steps", options.steps("save_steps", run.totalSteps)},
          {"stateful_callbacks", ordered_json::object()},
          {"total_flos", 0},
          {"train_batch_size", options.integer("per_device_train_batch_size")},
          {"trial_name", nullptr},
          {"trial_params", nullptr}};
}

std::string withHistory(ordered_json state, const std::string &lines) {
  // Lines are copied as text, since a long run has a hundred thousand lines.
  std::string history, last;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    if (!ordered_json::accept(line))
      continue;
    history += (history.empty() ? "\n    " : ",\n    ") + line;
    if (line.find("num_input_tokens_seen") != line.npos)
      last = line;
  }
  if (!last.empty())
    state["num_input_tokens_seen"] =
        ordered_json::parse(last).at("num_input_tokens_seen");
  std::string text = dumpJson(state, 2);
  text.resize(text.size() - 2); // remove the end of the object
  return text + ",\n  \"log_history\": [" + history + "\n  ]\n}\n";
}

} // namespace qlora
