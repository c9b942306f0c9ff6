// SPDX-License-Identifier: MIT

// Writes environment.json and plan.json, and links the session's files.

#include "runtime/Session/SessionRecord.h"

#include <fmt/format.h>

#include <array>
#include <ctime>
#include <filesystem>

#include "runtime/Base/CpuCount.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Predict/MemoryPlan.h"
#include "runtime/Watch/RunFolder.h"

namespace qlora {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

static constexpr const char *kFiles[] = {kMetricsFile, kSettingsFile,
                                         kEnvironmentFile, kPlanFile};

static std::string timeNow(const char *form) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), form, &utc);
  return text.data();
}

static ordered_json environmentOf(const Run &run, const ordered_json &facts) {
  const std::string &hardware = run.device.traits.hardware;
  ordered_json environment = {
      {"program_by", run.module.table().producer},
      {"hardware", hardware.empty() ? processorName() : hardware},
      {"started", timeNow("%Y-%m-%dT%H:%M:%SZ")}};
  for (const auto &[name, value] : facts.items())
    if (value.is_primitive())
      environment[name] = value;
  return environment;
}

static ordered_json planOf(const Run &run) {
  ordered_json arenas = ordered_json::object();
  for (const ArenaUse &use : run.device.memory())
    arenas[std::string(arenaTitle(use.kind))] = use.plannedBytes;
  ordered_json plan = {{"arenas", std::move(arenas)},
                       {"planned_bytes", run.memory.planned()},
                       {"planned_host_bytes", run.memory.plannedOnHost()},
                       {"checkpoint_buffer_bytes",
                        run.memory.checkpointBuffer()}};
  if (const uint64_t peak = run.memory.predictedPeak())
    plan["predicted_peak_memory_bytes"] = peak;
  return plan;
}

/// Returns --run-name without slashes, which would make subfolders; or a time.
static std::string nameOf(const Options &options) {
  std::string name = options.text("run_name");
  for (char &letter : name)
    if (letter == '/')
      letter = '-';
  const bool isPlain = !name.empty() && name != "." && name != "..";
  return isPlain ? name : timeNow("%Y-%m-%d_%H-%M-%S");
}

static Status cannotWrite(const std::string &path,
                          const std::error_code &error) {
  return Status::unavailable(
      "cannot write '{}': {}; qlora compare cannot show this run after another "
      "run uses the folder",
      path, error.message());
}

Status SessionRecord::begin(const Run &run, const ordered_json &facts) {
  output = run.outputFolder;
  for (const auto &[name, content] :
       {std::pair(kEnvironmentFile, environmentOf(run, facts)),
        {kPlanFile, planOf(run)}})
    QLORA_RETURN_IF_ERROR(
        replaceWholeFile(output + "/" + name, dumpJson(content, 2) + "\n"));
  const std::string sessions = output + "/" + kSessionsFolder + "/v1/";
  std::error_code error;
  fs::create_directories(sessions, error);
  const std::string name = sessions + nameOf(run.options);
  std::string unique = name;
  for (int number = 2; !error && !fs::create_directory(unique, error); ++number)
    unique = fmt::format("{}-{}", name, number);
  if (error)
    return cannotWrite(unique, error);
  folder = unique;
  for (const char *file : kFiles) {
    const fs::path from = fs::path(output) / file, to = fs::path(folder) / file;
    fs::create_hard_link(from, to, error);
    if (error && !fs::copy_file(from, to, error))
      return cannotWrite(to, error);
  }
  return Status::ok();
}

Status SessionRecord::end() {
  const fs::path from = fs::path(output) / kMetricsFile;
  const fs::path to = fs::path(folder) / kMetricsFile;
  std::error_code error;
  if (folder.empty() || fs::equivalent(from, to, error))
    return Status::ok();
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  return error ? cannotWrite(to, error) : Status::ok();
}

} // namespace qlora
