// SPDX-License-Identifier: MIT

// --device-map: places the layers of a model on devices, with Accelerate's
// syntax. The result is a pipeline like --parallel pp=N, where N is the map's
// number of devices or else the number of ranks.
//
//   auto, balanced     gives all devices about the same compute time
//   sequential         fills the devices one by one, up to --memory-limit
//   map.json           {"model.embed_tokens": 0, "model.layers.0": 0, ...}

#ifndef QLORA_RUNTIME_OPTIONS_DEVICEMAP_H
#define QLORA_RUNTIME_OPTIONS_DEVICEMAP_H

#include <cstdint>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Options/Options.h"
#include "runtime/Options/ParallelMesh.h"

namespace qlora {

/// The mesh of ranks, and how layers are assigned to pipeline stages
/// (compiler/Stages/StagePartition.h).
struct MappedMesh {
  ParallelMesh mesh;
  std::string map = "balanced";
};

/// Combines --parallel of `options`, which is not auto, with `deviceMap`, which
/// is empty, a word or a path. A map with one device adds no pipeline. Fails if
/// the map is invalid, or conflicts with --parallel or the number of ranks.
StatusOr<MappedMesh> mappedMesh(const Options &options,
                                const std::string &deviceMap, int64_t ranks);

/// Fails if --parallel and --force-single-gpu are both on the command line.
/// --force-single-gpu overrides only options of a configuration file.
Status checkForcedSingle(const Options &options);

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_DEVICEMAP_H
