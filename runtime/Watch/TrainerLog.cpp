// SPDX-License-Identifier: MIT

// Writes the values of metrics.jsonl under LLaMA-Factory's names.

#include "runtime/Watch/TrainerLog.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <sstream>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"

namespace qlora {

using nlohmann::ordered_json;

/// Returns the lines of an earlier run up to `step`.
static std::string linesUpTo(const std::string &path, int64_t step) {
  const auto text = readWholeFile(path);
  std::string kept;
  std::istringstream lines(text.isOk() && step > 0 ? text.value() : "");
  for (std::string line; std::getline(lines, line);) {
    const auto values = ordered_json::parse(line, nullptr, false);
    if (values.is_object() && values.contains("current_steps") &&
        values["current_steps"].is_number_integer() &&
        values["current_steps"] <= step)
      kept += line + "\n";
  }
  return kept;
}

static Status writeError(const std::string &path) {
  return Status::unavailable("cannot write '{}': {}", path,
                             std::strerror(errno));
}

StatusOr<std::unique_ptr<TrainerLog>>
TrainerLog::open(const std::string &outputFolder, int64_t doneSteps,
                 int64_t totalSteps) {
  const std::string path = outputFolder + "/" + kTrainerLogFile;
  QLORA_RETURN_IF_ERROR(replaceWholeFile(path, linesUpTo(path, doneSteps)));
  File file(std::fopen(path.c_str(), "ae"), std::fclose);
  if (!file)
    return writeError(path);
  return std::unique_ptr<TrainerLog>(
      new TrainerLog(std::move(file), path, doneSteps, totalSteps));
}

static double rounded(double value) { return std::round(value * 100) / 100; }

Status TrainerLog::log(const ordered_json &values) {
  const int64_t step = values.value("step", int64_t{0});
  const double elapsed = std::chrono::duration<double>(
                             std::chrono::steady_clock::now() - start)
                             .count();
  ordered_json line = {{"current_steps", step}, {"total_steps", totalSteps}};
  for (const auto &[ours, theirs] :
       {std::pair("loss", "loss"), {"eval_loss", "eval_loss"},
        {"learning_rate", "lr"}, {"epoch", "epoch"}})
    if (values.contains(ours))
      line[theirs] = values[ours];
  if (values.contains("eval_generation_runtime")) // metrics of answers
    for (const auto &[name, value] : values.items())
      if (name.starts_with("eval_"))
        line[name] = value;
  line["percentage"] =
      totalSteps > 0 ? rounded(100.0 * double(step) / double(totalSteps)) : 100;
  line["elapsed_time"] = formatDuration(elapsed);
  const auto done = static_cast<double>(std::max<int64_t>(step - doneSteps, 1));
  line["remaining_time"] =
      formatDuration(elapsed / done * static_cast<double>(totalSteps - step));
  if (values.contains("num_input_tokens_seen")) {
    const double tokens = values["num_input_tokens_seen"];
    line["throughput"] = rounded(tokens / std::max(elapsed, 1e-3));
    line["total_tokens"] = values["num_input_tokens_seen"];
  }
  const std::string text = dumpJson(line) + "\n";
  if (std::fputs(text.c_str(), file.get()) < 0 || std::fflush(file.get()) != 0)
    return writeError(path);
  return Status::ok();
}

} // namespace qlora
