// SPDX-License-Identifier: MIT

// The frozen parameters that a rank fills, alone and with others.

#include "runtime/Weights/FrozenParameter.h"
#include "runtime/Weights/FrozenPieces.h"
#include "runtime/Weights/Parameters.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace qlora {

Status checkShardGroup(const LoadedModule &module, const Collectives *shards) {
  const uint32_t wanted = module.table().shards;
  const int there = shards ? shards->size() : 1;
  if (wanted <= 1 || static_cast<uint32_t>(there) == wanted)
    return Status::ok();
  return Status::invalid("'{}' was compiled for a base that {} ranks hold in "
                         "pieces, and here {} would; start {} ranks or a "
                         "multiple of them",
                         module.path(), wanted, there, wanted);
}

Status fillFrozen(const LoadedModule &module, const ParameterSources &sources,
                  FillShare share, qlora_arena_kind kind, ArenaSink &arena) {
  QLORA_RETURN_IF_ERROR(checkShardGroup(module, sources.shards));
  if (arena.bytes() != module.arenaBytes(kind))
    return Status::error(
        StatusCode::kInternal, "the {} arena has {} bytes instead of {}",
        arenaKindName(kind), arena.bytes(), module.arenaBytes(kind));
  std::vector<const qlora_parameter *> alone, together;
  uint64_t total = 0, done = 0;
  const auto parameters = module.parameters();
  for (size_t i = share.rank; i < parameters.size(); i += share.size)
    if (module.arenas()[parameters[i].arena].kind == kind) {
      (isCutFromWhole(parameters[i]) ? together : alone)
          .push_back(&parameters[i]);
      total += arenaBytesOf(parameters[i]);
    }
  const auto filled = [&](const qlora_parameter &parameter) {
    done += arenaBytesOf(parameter);
    if (sources.progress)
      sources.progress(done, total);
  };
  for (const qlora_parameter *parameter : alone) {
    QLORA_RETURN_IF_ERROR(
        parameter->piece
            ? readPiece(sources, *parameter,
                        static_cast<unsigned>(sources.shards->rank()), arena)
            : fillFrozenParameter(sources, *parameter, arena));
    filled(*parameter);
  }
  if (together.empty())
    return Status::ok();
  // Those of a round are of a size, so that nobody waits for another's.
  std::ranges::stable_sort(together, std::greater(),
                           [](const qlora_parameter *p) { return p->piece; });
  return exchangePieces(sources, together, arena, filled);
}

} // namespace qlora
