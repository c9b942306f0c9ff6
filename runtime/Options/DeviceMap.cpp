// SPDX-License-Identifier: MIT

// Converts --device-map, a word or a file, to a mesh.

#include "runtime/Options/DeviceMap.h"

#include <set>

#include <nlohmann/json.hpp>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"

namespace qlora {

/// Returns the device index of a map entry.
static StatusOr<int64_t> deviceOf(const std::string &path,
                                  const std::string &module,
                                  const nlohmann::json &value) {
  if (value.is_number_integer() && value >= 0 && value < 65536)
    return value.get<int64_t>();
  if (value == "cpu" || value == "disk")
    return Status::invalid(
        "'{}' places '{}' on the {}, but every layer runs on a GPU; use "
        "--offload base to keep frozen weights in host memory",
        path, module, value.get<std::string>());
  return Status::invalid(
      "'{}': the device of '{}' is {}; use the number of a GPU, from 0 on",
      path, module, dumpJson(value));
}

/// Returns the number N of devices in a map; checks that they are 0 to N - 1.
static StatusOr<int64_t> devicesOf(const std::string &path,
                                   const nlohmann::json &map) {
  if (!map.is_object() || map.empty())
    return Status::invalid(
        "'{}' is not a device map; write a JSON object such as "
        "{{\"model.embed_tokens\": 0, \"model.layers.0\": 0, \"lm_head\": 1}}, "
        "or use auto or balanced",
        path);
  std::set<int64_t> devices;
  for (const auto &[module, value] : map.items()) {
    QLORA_ASSIGN_OR_RETURN(const int64_t device, deviceOf(path, module, value));
    devices.insert(device);
  }
  const int64_t count = std::ssize(devices);
  if (*devices.rbegin() != count - 1)
    return Status::invalid("'{}' uses GPU {}, but only {} different GPUs; "
                           "number them from 0 without gaps",
                           path, *devices.rbegin(), count);
  return count;
}

static StatusOr<ParallelMesh> withStages(ParallelMesh mesh, int64_t stages,
                                         const Options &options) {
  if (mesh.pp > 1 && mesh.pp != stages)
    return Status::invalid(
        "--device-map with {} devices conflicts with {} pp={}; remove one",
        stages, options.spelling("parallel"), mesh.pp);
  mesh.pp = static_cast<uint32_t>(stages);
  return ParallelMesh::parse(mesh.text()); // checks the axes
}

Status checkForcedSingle(const Options &options) {
  const std::string parallel = options.text("parallel");
  if (options.source("parallel") != Options::Source::kCommandLine ||
      parallel == "none")
    return Status::ok();
  return Status::invalid("--force-single-gpu conflicts with {} {}; remove one",
                         options.spelling("parallel"), parallel);
}

StatusOr<MappedMesh> mappedMesh(const Options &options,
                                const std::string &given, int64_t ranks) {
  MappedMesh result;
  QLORA_ASSIGN_OR_RETURN(result.mesh,
                         ParallelMesh::parse(options.text("parallel")));
  if (given.empty())
    return result;
  if (given == "auto" || given == "balanced" || given == "sequential") {
    const int64_t together = result.mesh.size();
    if (ranks % together != 0)
      return Status::invalid("--device-map {}: {} ranks are not a multiple of "
                             "the {} of {} {}; change the number of ranks",
                             given, ranks, together,
                             options.spelling("parallel"), result.mesh.text());
    const int64_t stages =
        result.mesh.pp > 1 ? result.mesh.pp : ranks / together;
    if (given == "sequential" && stages > 1 &&
        options.value("memory_limit") == 0)
      return Status::invalid(
          "--device-map sequential fills one GPU after the other up to a "
          "limit; add --memory-limit, or use balanced");
    result.map = given == "sequential" ? given : "balanced";
    QLORA_ASSIGN_OR_RETURN(result.mesh,
                           withStages(result.mesh, stages, options));
    return result;
  }
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(given));
  const nlohmann::json map =
      nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  QLORA_ASSIGN_OR_RETURN(const int64_t stages, devicesOf(given, map));
  result.map = dumpJson(map);
  QLORA_ASSIGN_OR_RETURN(result.mesh, withStages(result.mesh, stages, options));
  if (stages == 1)
    result.map = "balanced";
  return result;
}

} // namespace qlora
