// SPDX-License-Identifier: MIT

// Reads the files of a run as far as they are readable.

#include "runtime/Watch/RunFolder.h"

#include <cmath>
#include <filesystem>
#include <sstream>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Watch/Metrics.h"

namespace qlora {

using nlohmann::json;

LoggedLines::LoggedLines(std::string_view text) {
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    json values = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (line.empty())
      continue;
    if (!values.is_object() || !values.contains("step") ||
        !values["step"].is_number())
      ++unreadable;
    else if (values.contains("train_runtime"))
      totals = std::move(values);
    else if (values.contains("eval_loss"))
      evaluations.push_back(std::move(values));
    else
      steps.push_back(std::move(values));
  }
}

double numberOf(const json &line, const char *name) {
  const auto found = line.find(name);
  return found != line.end() && found->is_number() ? found->get<double>()
                                                   : std::nan("");
}

StatusOr<RunFolder> RunFolder::read(const std::string &folder) {
  const auto metrics = readWholeFile(folder + "/" + kMetricsFile);
  if (!metrics.isOk())
    return Status::notFound("no run in '{}': {}. Fix: name a run's "
                            "--output-dir, or a folder in its sessions/v1",
                            folder, metrics.status().message());
  RunFolder run;
  std::error_code ignored;
  run.name = std::filesystem::canonical(folder, ignored).filename();
  run.logged = LoggedLines(metrics.value());
  run.answers = readLastAnswers(folder, run.logged.evaluations);
  Options settings;
  if (settings.applyYaml(folder + "/" + kSettingsFile).isOk())
    run.settings = std::move(settings);
  run.environment = jsonObjectIn(folder + "/" + kEnvironmentFile);
  run.plan = jsonObjectIn(folder + "/" + kPlanFile);
  return run;
}

} // namespace qlora
