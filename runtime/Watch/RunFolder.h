// SPDX-License-Identifier: MIT

// What a run has left in its folder, for pages and tables about it:
// metrics.jsonl, config.resolved.yaml, environment.json and plan.json. It may
// be a run's --output-dir or a session of it (Session/SessionRecord.h). A run
// that goes on, or was broken off, has what it has logged so far.

#ifndef QLORA_RUNTIME_WATCH_RUNFOLDER_H
#define QLORA_RUNTIME_WATCH_RUNFOLDER_H

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"

namespace qlora {

inline constexpr const char *kSettingsFile = "config.resolved.yaml";
inline constexpr const char *kEnvironmentFile = "environment.json";
inline constexpr const char *kPlanFile = "plan.json";

/// metrics.jsonl by what its lines are (Metrics.h). A line that is cut or no
/// JSON is left out and counted.
struct LoggedLines {
  std::vector<nlohmann::json> steps, evaluations;
  nlohmann::json totals = nlohmann::json::object(); ///< where the run has ended
  size_t unreadable = 0;

  explicit LoggedLines(std::string_view text);
};

struct RunFolder {
  std::string name; ///< the folder's
  LoggedLines logged{""};
  std::optional<Options> settings; ///< nothing: cannot be read
  /// Objects; empty where there is none.
  nlohmann::json environment = nlohmann::json::object();
  nlohmann::json plan = nlohmann::json::object();

  /// kNotFound: it has no metrics.jsonl.
  static StatusOr<RunFolder> read(const std::string &folder);
};

/// NaN for what is no number, as JSON writes one that is not finite.
double numberOf(const nlohmann::json &line, const char *name);

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_RUNFOLDER_H
