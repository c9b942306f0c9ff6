// SPDX-License-Identifier: MIT

// The frozen parameters that a rank fills.

#include "runtime/Weights/FrozenParameter.h"
#include "runtime/Weights/Parameters.h"

#include <vector>

namespace qlora {

Status fillFrozen(const LoadedModule &module, const ParameterSources &sources,
                  FillShare share, qlora_arena_kind kind, ArenaSink &arena) {
  if (arena.bytes() != module.arenaBytes(kind))
    return Status::error(StatusCode::kInternal,
                         "the {} arena has {} bytes instead of {}",
                         arenaKindName(kind), arena.bytes(),
                         module.arenaBytes(kind));
  std::vector<const qlora_parameter *> mine;
  uint64_t total = 0, done = 0;
  const auto parameters = module.parameters();
  for (size_t i = share.rank; i < parameters.size(); i += share.size)
    if (module.arenas()[parameters[i].arena].kind == kind) {
      mine.push_back(&parameters[i]);
      total += parameters[i].bytes;
    }
  for (const qlora_parameter *parameter : mine) {
    QLORA_RETURN_IF_ERROR(fillFrozenParameter(sources, *parameter, arena));
    done += parameter->bytes;
    if (sources.progress)
      sources.progress(done, total);
  }
  return Status::ok();
}

} // namespace qlora
