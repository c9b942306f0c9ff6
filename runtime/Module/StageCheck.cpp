// SPDX-License-Identifier: MIT

// Checks that the programs of a pipeline's stages belong to one run: data that
// ranks of all stages share must be equal in all programs.

#include "runtime/Module/ModuleCheck.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Options/ParallelMesh.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>
#include <vector>

namespace qlora {

static uint64_t bytesOf(const qlora_module &m, uint32_t kind) {
  for (uint32_t i = 0; i < m.arena_count; ++i)
    if (m.arenas[i].kind == kind)
      return m.arenas[i].bytes;
  return 0;
}

/// Returns the module's parameters that are not in the base.
static std::vector<const qlora_parameter *>
ownParameters(const qlora_module &m) {
  std::vector<const qlora_parameter *> own;
  for (uint32_t i = 0; i < m.parameter_count; ++i)
    if (m.parameters[i].role != QLORA_ROLE_FROZEN)
      own.push_back(&m.parameters[i]);
  return own;
}

static auto layoutOf(const qlora_module &m, const qlora_parameter &p) {
  std::array<int64_t, QLORA_MAX_RANK> shape{};
  std::copy_n(p.shape, p.rank, shape.begin());
  return std::tuple(std::string_view(p.name), p.role, p.init, p.dtype,
                    m.arenas[p.arena].kind, p.offset, p.bytes, p.piece, p.first,
                    p.rank, shape);
}

/// Checks the indices that this file uses, since checkTables may not have run.
static Status checkRanges(const qlora_module &m) {
  for (uint32_t i = 0; i < m.parameter_count; ++i)
    if (const qlora_parameter &p = m.parameters[i];
        !p.name || p.rank > QLORA_MAX_RANK || p.arena >= m.arena_count)
      return damaged("parameter {} has no name, arena or shape", i);
  for (uint32_t i = 0; i < m.entry_count; ++i)
    if (const qlora_entry &entry = m.entries[i];
        entry.first_binding > m.binding_count ||
        entry.binding_count > m.binding_count - entry.first_binding)
      return damaged("entry {} has bindings that do not exist", i);
  for (uint32_t i = 0; i < m.binding_count; ++i)
    if (m.bindings[i].arena >= m.arena_count)
      return damaged("binding {} is in an arena that does not exist", i);
  return Status::ok();
}

static Status checkParameters(const qlora_module &first,
                              const qlora_module &m) {
  const auto ours = ownParameters(m), theirs = ownParameters(first);
  if (ours.size() != theirs.size())
    return damaged("{} parameters outside the base, but stage 0 has {}",
                   ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i)
    if (layoutOf(m, *ours[i]) != layoutOf(first, *theirs[i]))
      return damaged("parameter '{}' differs from '{}' of stage 0",
                     ours[i]->name, theirs[i]->name);
  return Status::ok();
}

/// Checks that results in the gradient arena have the same offsets as in stage
/// 0, since ranks of all stages reduce them together.
static Status checkSums(const qlora_module &first, const qlora_entry &theirs,
                        const qlora_module &m, const qlora_entry &ours) {
  const auto sumsOf = [](const qlora_module &of, const qlora_entry &entry) {
    std::vector<std::pair<uint32_t, uint64_t>> sums;
    for (uint32_t i = 0; i < entry.binding_count; ++i)
      if (const qlora_binding &b = of.bindings[entry.first_binding + i];
          of.arenas[b.arena].kind == QLORA_ARENA_GRADIENT)
        sums.emplace_back(b.kind, b.offset);
    return sums;
  };
  return sumsOf(first, theirs) == sumsOf(m, ours)
             ? Status::ok()
             : damaged("its results in the gradient arena differ from those in "
                       "stage 0");
}

static Status checkEntries(const qlora_module &first, const qlora_module &m) {
  for (uint32_t i = 0; i < m.entry_count; ++i) {
    const qlora_entry &ours = m.entries[i], &theirs = first.entries[i];
    if (std::tie(ours.kind, ours.batch, ours.length) !=
        std::tie(theirs.kind, theirs.batch, theirs.length))
      return damaged("entry {} is {} of {} x {}, but in stage 0 {} of {} x {}",
                     i, entryKindName(ours.kind), ours.batch, ours.length,
                     entryKindName(theirs.kind), theirs.batch, theirs.length);
    if (Status status = checkSums(first, theirs, m, ours); !status.isOk())
      return status.withContext(
          fmt::format("entry {} ({})", i, entryKindName(ours.kind)));
  }
  return Status::ok();
}

static Status checkSame(const qlora_module &first, const qlora_module &m) {
  for (const auto &[name, member] : kNumbersOfRun)
    if (m.*member != first.*member)
      return damaged("{} is {}, but {} in stage 0", name, m.*member,
                     first.*member);
  const std::string mesh = ParallelMesh(m.mesh).text();
  if (const std::string of = ParallelMesh(first.mesh).text(); of != mesh)
    return damaged("its mesh is {}, but {} in stage 0", mesh, of);
  for (const uint32_t kind :
       {QLORA_ARENA_TRAINABLE, QLORA_ARENA_GRADIENT, QLORA_ARENA_STATE})
    if (bytesOf(m, kind) != bytesOf(first, kind))
      return damaged("the {} arena has {} bytes, but {} in stage 0",
                     arenaKindName(kind), bytesOf(m, kind),
                     bytesOf(first, kind));
  QLORA_RETURN_IF_ERROR(checkParameters(first, m));
  return checkEntries(first, m);
}

Status checkStage(const qlora_module &first, const qlora_module &m,
                  uint32_t number) {
  if (m.stage != number)
    return damaged("it is numbered stage {}", m.stage);
  if (first.mesh.pp > 1)
    QLORA_RETURN_IF_ERROR(checkRanges(m));
  if (number > 0)
    QLORA_RETURN_IF_ERROR(checkSame(first, m));
  const bool isLast = number + 1 == first.mesh.pp;
  if (isLast != (m.next_stage == nullptr))
    return damaged("{} stage follows it, of {}", isLast ? "another" : "no",
                   first.mesh.pp);
  return Status::ok();
}

} // namespace qlora
