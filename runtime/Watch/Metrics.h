// SPDX-License-Identifier: MIT

// Writes the metrics of a run: metrics.jsonl in the output folder, with Hugging
// Face's key names and all digits, and terminal lines. Only on rank 0.
//
// metrics.jsonl has one JSON object per line:
//
//   a logged step    step, loss, grad_norm, learning_rate, epoch,
//                    step_time (s), tokens_per_second, num_input_tokens_seen,
//                    memory_bytes (rank 0), and keys that not every run has:
//
//     exposed_communication   seconds per step in which rank 0 waits for other
//                             ranks (CPU)
//     rank_memory_bytes       list, one value per rank
//     rank_step_time          list, seconds without waits for other ranks (CPU)
//     rank_gpu_utilization    list, % (NVML)
//     rank_gpu_power_watts    list (NVML)
//     aux_loss                routers' loss, before it is multiplied by
//                             router_aux_loss_coef
//
//   an evaluation    step, epoch, eval_loss, eval_perplexity,
//                    eval_token_accuracy, eval_exact_match, eval_rows,
//                    eval_runtime (s), eval_aux_loss; with
//                    --predict-with-generate, eval_exact_match is the share of
//                    generated answers, and there are also eval_f1,
//                    eval_rouge1, eval_rouge2, eval_rougeL, eval_rougeLsum,
//                    eval_stopped, those of --compute-metrics,
//                    eval_generation_runtime (s), and eval_unanswered, if not 0
//   the end          step, epoch, train_loss, train_runtime,
//                    train_steps_per_second, train_tokens_per_second,
//                    checkpoint_runtime (s of waits for checkpoints),
//                    planned_bytes, peak_memory_bytes, and on a CPU
//                    predicted_peak_memory_bytes
//
// With log_format json, the same lines go to standard output; otherwise it gets
// text. Long operations show a progress bar if standard output is a terminal,
// else a line from time to time. Notes and warnings go to standard error.

#ifndef QLORA_RUNTIME_WATCH_METRICS_H
#define QLORA_RUNTIME_WATCH_METRICS_H

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/Base/Progress.h"
#include "runtime/Base/Status.h"
#include "runtime/Watch/MetricsSink.h"
#include "runtime/Watch/ProgressLine.h"

namespace qlora {

inline constexpr const char *kMetricsFile = "metrics.jsonl";

class Metrics {
public:
  /// `out` and `errors` must outlive this object. `name`: starts each line
  /// ("run" in JSON); set if several runs share the outputs.
  Metrics(bool asJson, FILE *out, FILE *errors, std::string name = "");
  ~Metrics();

  /// Starts a new metrics.jsonl in `folder`, which must exist, or appends to
  /// the existing file. Call it when the run is known to start, so that a
  /// mistake in the options does not delete the file of an earlier run.
  /// `history`: first lines of a new file, copied from the run that is resumed.
  enum class Start { kNew, kAppend };
  Status open(const std::string &folder, Start start,
              const std::string &history = "");

  /// Sends every later log() to `sink` too.
  void attach(std::unique_ptr<MetricsSink> sink) {
    sinks.push_back(std::move(sink));
  }

  /// Appends `values` to the open file. Prints them if the format is JSON, else
  /// `text`.
  Status log(const nlohmann::ordered_json &values, const std::string &text);

  /// Prints text, unless the format is JSON.
  void say(std::string_view text);
  void note(std::string_view text);
  void warn(std::string_view text);

  /// Returns a listener for an operation that starts now, such as "loading the
  /// base", counted in kBytes or in a unit such as "rows". Short operations
  /// show nothing. The listener refers to this object.
  static constexpr const char *kBytes = "bytes";
  ProgressListener progress(const std::string &what, const std::string &unit);

  /// Shows a bar on a terminal, for work that also prints lines.
  void showBar(const ProgressView &view);

private:
  using Clock = std::chrono::steady_clock;

  std::string named(std::string_view text) const;
  void showProgress(const ProgressView &view);
  void drawBar(const ProgressView &view);
  void clearBar();

  std::vector<std::unique_ptr<MetricsSink>> sinks;
  FILE *file = nullptr;
  std::string path;
  const bool asJson;
  const std::string name;
  FILE *const out;
  FILE *const errors;
  bool isTerminal = false;
  bool hasBar = false;
  Clock::time_point shown = Clock::now(); ///< time of the last bar or line
};

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_METRICS_H
