// SPDX-License-Identifier: MIT

// Where the numbers of a run go: metrics.jsonl in the output folder, with
// Hugging Face's key names and all digits, and lines on the terminal. Only
// rank 0 has one.
//
// metrics.jsonl has one object a line:
//
//   a logged step    step, loss, grad_norm, learning_rate, epoch,
//                    step_time (s), tokens_per_second, num_input_tokens_seen,
//                    exposed_communication (s of a step in which rank 0 waits
//                    for others; on several ranks of a CPU),
//                    memory_bytes (of rank 0), and lists with a number for
//                    each rank: rank_memory_bytes, rank_step_time (s of its
//                    own, without those waits; on CPUs), and from NVML
//                    rank_gpu_utilization (%), rank_gpu_power_watts;
//                    aux_loss where routers have one, before its factor
//   an evaluation    step, epoch, eval_loss, eval_perplexity,
//                    eval_token_accuracy, eval_argmax_match, eval_rows,
//                    eval_runtime (s), eval_aux_loss
//   the end          step, epoch, train_loss, train_runtime,
//                    train_steps_per_second, train_tokens_per_second,
//                    checkpoint_runtime (s that training waited for them),
//                    planned_bytes, peak_memory_bytes, and on a CPU
//                    predicted_peak_memory_bytes
//
// With log_format json the same lines go to standard output. Otherwise
// standard output gets lines for people. What takes long has a bar there when
// it is a terminal, else a line now and then. Notes and warnings go to
// standard error.

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
  /// `out` and `errors` outlive this object. `name`: of a run that writes to
  /// them beside others, which then stands before each line, or as "run" in
  /// JSON; or empty.
  Metrics(bool asJson, FILE *out, FILE *errors, std::string name = "");
  ~Metrics();

  /// Starts a new metrics.jsonl in `folder`, which must exist, or goes on with
  /// the one that is there. Not before the run is known to be able to start: a
  /// mistake leaves the file of an earlier run alone.
  /// `history`: what a new one begins with, the lines of a run that is resumed.
  enum class Start { kNew, kAppend };
  Status open(const std::string &folder, Start start,
              const std::string &history = "");

  /// Every later log() goes there too.
  void attach(std::unique_ptr<MetricsSink> sink) {
    sinks.push_back(std::move(sink));
  }

  /// Appends `values` to the file, which is open; prints them or `text`.
  Status log(const nlohmann::ordered_json &values, const std::string &text);

  /// Text for people; nothing when the format is JSON.
  void say(std::string_view text);
  void note(std::string_view text);
  void warn(std::string_view text);

  /// What listens to work that has just begun: "loading the base", counted in
  /// kBytes or in a unit such as "rows". Nothing is shown of what is over in
  /// a moment. It refers to this object.
  static constexpr const char *kBytes = "bytes";
  ProgressListener progress(const std::string &what, const std::string &unit);

  /// The same for work that has lines of its own: a bar on a terminal.
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
  Clock::time_point shown = Clock::now(); ///< the last bar or line
};

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_METRICS_H
