// SPDX-License-Identifier: MIT

// Fills the frozen parameters of a rank. Ranks that must each load a complete
// tensor to get their shards do so together.

#include "runtime/Weights/FrozenParameter.h"
#include "runtime/Weights/FrozenShards.h"
#include "runtime/Weights/Parameters.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace qlora {

Status checkShardGroup(const LoadedModule &module, const Collectives *shards,
                       const Collectives *slices) {
  const auto check = [&](uint32_t wanted, const Collectives *group,
                         const char *parts) {
    const int there = group ? group->size() : 1;
    if (wanted <= 1 || static_cast<uint32_t>(there) == wanted)
      return Status::ok();
    return Status::invalid("'{}' was compiled for a base sharded over {} ranks "
                           "({}), not {}; start a multiple of {} ranks",
                           module.path(), wanted, parts, there, wanted);
  };
  QLORA_RETURN_IF_ERROR(check(module.table().mesh.fsdp, shards, "pieces"));
  return check(module.sliceRanks(), slices, "slices");
}

namespace {
/// State of one call of fillFrozen().
class FrozenFill {
public:
  FrozenFill(const LoadedModule &module, const ParameterSources &sources,
             ArenaSink &arena)
      : module(module), sources(sources), arena(arena) {}

  Status add(const qlora_parameter &parameter);
  Status run();

private:
  using Parameters = std::vector<const qlora_parameter *>;
  Status fillAlone(const qlora_parameter &parameter);
  Status fillTogether(Parameters &parameters, Collectives *holders);
  void filled(const qlora_parameter &parameter);

  const LoadedModule &module;
  const ParameterSources &sources;
  ArenaSink &arena;
  Parameters alone, pieces, slices;
  uint64_t total = 0, done = 0;
};
} // namespace

/// Adds a parameter. Checks whether it can be sharded before any tensor is
/// loaded, so that all ranks fail in the same way.
Status FrozenFill::add(const qlora_parameter &parameter) {
  total += arenaBytesOf(parameter);
  QLORA_RETURN_IF_ERROR(findWhole(module, sources, parameter).status());
  Parameters &to = !isCutFromWhole(parameter) ? alone
                   : parameter.slices != 0    ? slices
                                              : pieces;
  to.push_back(&parameter);
  return Status::ok();
}

void FrozenFill::filled(const qlora_parameter &parameter) {
  done += arenaBytesOf(parameter);
  if (sources.progress)
    sources.progress(done, total);
}

Status FrozenFill::fillAlone(const qlora_parameter &parameter) {
  QLORA_RETURN_IF_ERROR(hasParts(parameter)
                            ? readPart(module, sources, parameter, arena)
                            : fillFrozenParameter(sources, parameter, arena));
  filled(parameter);
  return Status::ok();
}

/// Fills shards with exchangeParts(). Sorts the tensors by size, so that the
/// ranks of a round load tensors of about the same size.
Status FrozenFill::fillTogether(Parameters &parameters, Collectives *holders) {
  if (parameters.empty())
    return Status::ok();
  std::ranges::stable_sort(
      parameters, std::greater(),
      [](const qlora_parameter *p) { return arenaBytesOf(*p); });
  return exchangeParts(
      module, sources, *holders, parameters, arena,
      [&](const qlora_parameter &parameter) { filled(parameter); });
}

Status FrozenFill::run() {
  for (const qlora_parameter *parameter : alone)
    QLORA_RETURN_IF_ERROR(fillAlone(*parameter));
  QLORA_RETURN_IF_ERROR(fillTogether(pieces, sources.shards));
  return fillTogether(slices, sources.slices);
}

Status fillFrozen(const LoadedModule &module, const ParameterSources &sources,
                  FillShare share, qlora_arena_kind kind, ArenaSink &arena) {
  QLORA_RETURN_IF_ERROR(
      checkShardGroup(module, sources.shards, sources.slices));
  if (arena.bytes() != module.arenaBytes(kind))
    return Status::error(
        StatusCode::kInternal, "the {} arena has {} bytes instead of {}",
        arenaKindName(kind), arena.bytes(), module.arenaBytes(kind));
  FrozenFill fill(module, sources, arena);
  const auto parameters = module.parameters();
  for (size_t i = share.rank; i < parameters.size(); i += share.size)
    if (module.arenas()[parameters[i].arena].kind == kind)
      QLORA_RETURN_IF_ERROR(fill.add(parameters[i]));
  return fill.run();
}

} // namespace qlora
