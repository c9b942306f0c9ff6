// SPDX-License-Identifier: MIT

// Reads the files of a run for pages and tables about it: metrics.jsonl,
// config.resolved.yaml, environment.json, plan.json and files of answers. The
// folder is a run's --output-dir or a session's (Session/SessionRecord.h). For
// a run that still trains or was interrupted, the files contain the values
// logged so far.

#ifndef QLORA_RUNTIME_WATCH_RUNFOLDER_H
#define QLORA_RUNTIME_WATCH_RUNFOLDER_H

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/Options.h"
#include "runtime/Watch/AnswersTable.h"

namespace qlora {

inline constexpr const char *kSettingsFile = "config.resolved.yaml";
inline constexpr const char *kEnvironmentFile = "environment.json";
inline constexpr const char *kPlanFile = "plan.json";

/// The lines of metrics.jsonl by kind (Metrics.h). A line that is truncated or
/// not JSON is left out and counted.
struct LoggedLines {
  std::vector<nlohmann::json> steps, evaluations;
  nlohmann::json totals = nlohmann::json::object(); ///< empty before the end
  size_t unreadable = 0;

  explicit LoggedLines(std::string_view text);
};

struct RunFolder {
  std::string name; ///< name of the folder
  LoggedLines logged{""};
  std::vector<FirstAnswers> answers; ///< of the last evaluations
  std::optional<Options> settings; ///< nullopt if unreadable
  /// JSON objects; empty if the file is missing.
  nlohmann::json environment = nlohmann::json::object();
  nlohmann::json plan = nlohmann::json::object();

  /// Returns kNotFound if the folder has no metrics.jsonl.
  static StatusOr<RunFolder> read(const std::string &folder);
};

/// Returns NaN if the value is not a number; JSON has null for such values.
double numberOf(const nlohmann::json &line, const char *name);

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_RUNFOLDER_H
