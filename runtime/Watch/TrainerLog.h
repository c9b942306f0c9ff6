// SPDX-License-Identifier: MIT

// trainer_log.jsonl in the output folder, in the format of LLaMA-Factory's
// LogCallback, for tools that plot it. It has a line for each step or
// evaluation:
//
//   {"current_steps": 10, "total_steps": 250, "loss": 7.3, "lr": 0.002,
//    "epoch": 0.08, "percentage": 4.0, "elapsed_time": "0:00:01",
//    "remaining_time": "0:00:13", "throughput": 14800.5, "total_tokens": 8120}

#ifndef QLORA_RUNTIME_WATCH_TRAINERLOG_H
#define QLORA_RUNTIME_WATCH_TRAINERLOG_H

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "runtime/Watch/MetricsSink.h"

namespace qlora {

inline constexpr const char *kTrainerLogFile = "trainer_log.jsonl";

class TrainerLog final : public MetricsSink {
public:
  /// Opens the file. Keeps the lines of an earlier file up to step `doneSteps`.
  static StatusOr<std::unique_ptr<TrainerLog>>
  open(const std::string &outputFolder, int64_t doneSteps, int64_t totalSteps);

  Status log(const nlohmann::ordered_json &values) override;

private:
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE *)>;
  TrainerLog(File file, std::string path, int64_t doneSteps, int64_t totalSteps)
      : file(std::move(file)), path(std::move(path)), doneSteps(doneSteps),
        totalSteps(totalSteps) {}

  const File file;
  const std::string path;
  const int64_t doneSteps, totalSteps;
  const std::chrono::steady_clock::time_point start =
      std::chrono::steady_clock::now();
};

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_TRAINERLOG_H
