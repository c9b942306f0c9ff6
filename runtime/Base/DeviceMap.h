// SPDX-License-Identifier: MIT

// --device-map: the layers of a model on several devices, as Accelerate's users
// say it. It is a pipeline: what --parallel pp=N makes, with N from the map or
// from the number of ranks.
//
//   auto, balanced     as even as can be, by time
//   sequential         one device after the other, as --memory-limit has room
//   map.json           {"model.embed_tokens": 0, "model.layers.0": 0, ...}

#ifndef QLORA_RUNTIME_BASE_DEVICEMAP_H
#define QLORA_RUNTIME_BASE_DEVICEMAP_H

#include <cstdint>
#include <string>

#include "runtime/Base/Options.h"
#include "runtime/Base/ParallelMesh.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// How ranks share a model, and how a pipeline's layers are dealt:
/// compiler/Graph/LayerDeal.h.
struct MappedMesh {
  ParallelMesh mesh;
  std::string map = "balanced";
};

/// What --parallel of `options`, which is not auto, and `deviceMap` say, the latter
/// empty, a word or a path, for a run of `ranks` ranks. One device is no pipeline.
/// kInvalidArgument for a file that is no device map, the CPU or a disk as a
/// device, ranks that the other axes do not divide, and for another number of
/// stages than --parallel names.
StatusOr<MappedMesh> mappedMesh(const Options &options,
                                const std::string &deviceMap, int64_t ranks);

/// Whether --force-single-gpu, which overrides what a configuration says of several,
/// contradicts no flag.
Status checkForcedSingle(const Options &options);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_DEVICEMAP_H
