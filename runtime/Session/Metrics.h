// SPDX-License-Identifier: MIT

// Where the numbers of a run go: metrics.jsonl in the output folder, with
// Hugging Face's key names and all digits, and lines on the terminal. Only
// rank 0 has one.
//
// metrics.jsonl has one object a line:
//
//   a logged step    step, loss, grad_norm, learning_rate, epoch,
//                    step_time (s), tokens_per_second, num_input_tokens_seen,
//                    memory_bytes
//   an evaluation    step, epoch, eval_loss, eval_perplexity,
//                    eval_token_accuracy, eval_argmax_match, eval_rows,
//                    eval_runtime (s)
//   the end          step, epoch, train_loss, train_runtime,
//                    train_steps_per_second, train_tokens_per_second,
//                    planned_bytes, peak_memory_bytes, and on a CPU
//                    predicted_peak_memory_bytes
//
// With log_format json the same lines go to standard output. Otherwise
// standard output gets lines for people, and a live bar when it is a
// terminal. Notes and warnings go to standard error.

#ifndef QLORA_RUNTIME_SESSION_METRICS_H
#define QLORA_RUNTIME_SESSION_METRICS_H

#include <cstdio>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "runtime/Core/Status.h"
#include "runtime/Session/ReportText.h"

namespace qlora {

class Metrics {
public:
  /// `out` and `errors` outlive this object.
  Metrics(bool asJson, FILE *out, FILE *errors);
  ~Metrics();

  /// Starts a new metrics.jsonl in `folder`, which must exist. Not before the
  /// run is known to be able to start: a mistake leaves the file of an
  /// earlier run alone.
  Status open(const std::string &folder);

  /// Appends `values` to the file, which is open; prints them or `text`.
  Status log(const nlohmann::ordered_json &values, const std::string &text);

  /// Text for people; nothing when the format is JSON.
  void say(std::string_view text);
  void warn(std::string_view text);
  /// Draws over the last bar; nothing where there is no terminal.
  void showBar(int64_t step, int64_t totalSteps, double etaSeconds);

private:
  void clearBar();

  FILE *file = nullptr;
  std::string path;
  const bool asJson;
  FILE *const out;
  FILE *const errors;
  bool isTerminal = false;
  bool hasBar = false;
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_METRICS_H
