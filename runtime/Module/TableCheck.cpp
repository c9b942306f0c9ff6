// SPDX-License-Identifier: MIT

// Finds compiler bugs in tables. ParameterCheck.cpp checks parameters,
// CommandCheck.cpp commands.

#include "runtime/Module/ModuleCheck.h"

#include "runtime/Kernels/KernelTable.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Module/ModuleLoader.h"

#include <algorithm>
#include <bit>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

namespace qlora {

/// Threads of a warp; maximum threads of a block.
static constexpr uint32_t kWarp = 32, kMaxThreads = 1024;
/// Maximum rows of a CUDA launch: the limit of a grid's x dimension and of
/// 32-bit divisions in kernels.
static constexpr int64_t kMaxRows = 0x7fffffff;

static Status checkArenas(const qlora_module &m) {
  std::set<uint32_t> kinds;
  uint64_t bytes[QLORA_ARENA_KIND_COUNT] = {};
  for (uint32_t i = 0; i < m.arena_count; ++i) {
    const qlora_arena &arena = m.arenas[i];
    if (arena.kind >= QLORA_ARENA_KIND_COUNT ||
        !kinds.insert(arena.kind).second)
      return damaged("arena {}: unknown, or a second {} arena", i,
                     arenaKindName(arena.kind));
    if (!std::has_single_bit(arena.alignment))
      return damaged("arena {}: alignment {} is not a power of two", i,
                     arena.alignment);
    if (arena.on_host > 1 || (arena.on_host && arena.kind != QLORA_ARENA_STATE))
      return damaged("arena {}: a {} arena with on_host {}", i,
                     arenaKindName(arena.kind), arena.on_host);
    bytes[arena.kind] = arena.bytes;
  }
  const uint64_t trainable = bytes[QLORA_ARENA_TRAINABLE];
  const auto differs = [&](uint32_t kind) {
    return damaged("the {} arena has {} bytes, the trainable one {}",
                   arenaKindName(kind), bytes[kind], trainable);
  };
  if (kinds.contains(QLORA_ARENA_GRADIENT) &&
      bytes[QLORA_ARENA_GRADIENT] < trainable)
    return differs(QLORA_ARENA_GRADIENT);
  if (kinds.contains(QLORA_ARENA_RESIDUAL) &&
      bytes[QLORA_ARENA_RESIDUAL] != bytes[QLORA_ARENA_GRADIENT])
    return damaged("the residual arena has {} bytes, the gradient one {}",
                   bytes[QLORA_ARENA_RESIDUAL], bytes[QLORA_ARENA_GRADIENT]);
  if (kinds.contains(QLORA_ARENA_ROUNDED) &&
      2 * bytes[QLORA_ARENA_ROUNDED] != trainable)
    return differs(QLORA_ARENA_ROUNDED);
  return Status::ok();
}

//===----------------------------------------------------------------------===//
// Kernels and launches
//===----------------------------------------------------------------------===//

static Status checkGeneratedKernel(const qlora_module &m,
                                   const qlora_kernel &kernel) {
  if (!isGenerated(kernel))
    return Status::ok();
  if ((m.target == QLORA_TARGET_CPU) != (kernel.function != nullptr))
    return damaged("code for another target than the module's");
  if (m.target == QLORA_TARGET_CPU)
    return Status::ok();
  if (kernel.threads == 0 || kernel.threads % kWarp != 0 ||
      kernel.threads > kMaxThreads || kernel.rows_per_block == 0)
    return damaged("{} threads, not a multiple of {} up to {}, or {} rows per "
                   "block",
                   kernel.threads, kWarp, kMaxThreads, kernel.rows_per_block);
  if (kernel.operand_count > QLORA_CUDA_MAX_OPERANDS ||
      kernel.constant_count > QLORA_CUDA_MAX_CONSTANTS)
    return damaged("{} operands and {} constants are more than {} and {}",
                   kernel.operand_count, kernel.constant_count,
                   QLORA_CUDA_MAX_OPERANDS, QLORA_CUDA_MAX_CONSTANTS);
  return Status::ok();
}

/// Checks that sort_by_expert's constant `ranks` is the mesh's ep.
static Status checkExpertSort(const qlora_module &m,
                              const qlora_launch &launch) {
  const KernelRow *row = findKernelRow(m.kernels[launch.kernel].name);
  const std::optional<size_t> index =
      row && row->op->name == "sort_by_expert"
          ? std::optional(row->op->constantIndex("ranks"))
          : std::nullopt;
  if (!index || *index >= launch.constant_count)
    return Status::ok();
  const int64_t ranks = m.constants[launch.first_constant + *index];
  return ranks == m.mesh.ep
             ? Status::ok()
             : damaged(
                   "experts sorted for {} ranks, but {} are expert-parallel",
                   ranks, m.mesh.ep);
}

static Status checkLaunch(const qlora_module &m, const qlora_launch &launch) {
  if (launch.kernel >= m.kernel_count)
    return damaged("kernel {} of {}", launch.kernel, m.kernel_count);
  const qlora_kernel &kernel = m.kernels[launch.kernel];
  const KernelRow *row = findKernelRow(kernel.name);
  const size_t most = row ? row->op->constants.size() : kernel.constant_count;
  if (launch.constant_count < kernel.constant_count ||
      launch.constant_count > most)
    return damaged("{} constants, but kernel '{}' has {}",
                   launch.constant_count, kernel.name, kernel.constant_count);
  if (!isRange(launch.first_constant, launch.constant_count, m.constant_count))
    return damaged("constants {}+{} of {}", launch.first_constant,
                   launch.constant_count, m.constant_count);
  if (launch.rows < 0 || (launch.rows != 0 && !isGenerated(kernel)) ||
      (kernel.symbol && launch.rows > kMaxRows))
    return damaged("{} rows for kernel '{}'", launch.rows, kernel.name);
  return checkExpertSort(m, launch);
}

//===----------------------------------------------------------------------===//
// Entries
//===----------------------------------------------------------------------===//

static bool isInput(const qlora_binding &binding) {
  return binding.kind < QLORA_RESULT_LOSS_SUM;
}

static qlora_per perOf(uint32_t kind) {
  switch (kind) {
#define QLORA_INPUT(NAME, NUMBER, CASE, WORD, PER)                             \
  case NUMBER:                                                                 \
    return QLORA_PER_##PER;
#define QLORA_RESULT(NAME, NUMBER, CASE, WORD, PER)                            \
  case NUMBER:                                                                 \
    return QLORA_PER_##PER;
#include "runtime/ABI/Enums.def"
  default:
    return QLORA_PER_STEP;
  }
}

/// Returns a binding's bytes. Per-token data covers only this rank's tokens.
static uint64_t bytesOf(const qlora_module &m, const qlora_entry &entry,
                        const qlora_binding &binding) {
  const auto sequences = static_cast<uint64_t>(entry.batch);
  switch (perOf(binding.kind)) {
  case QLORA_PER_SEQUENCE:
    return 4 * sequences;
  case QLORA_PER_LOGIT: // the vocabulary is not in the tables
    return binding.bytes / (4 * sequences) * 4 * sequences;
  case QLORA_PER_TOKEN:
    return 4 * sequences * static_cast<uint64_t>(entry.length) / m.mesh.cp;
  case QLORA_PER_STEP:
    return 4;
  }
  return 0;
}

/// Checks the bytes and the arena of a binding.
static Status checkBinding(const qlora_module &m, const qlora_entry &entry,
                           const qlora_binding &binding) {
  if (binding.arena >= m.arena_count)
    return damaged("arena {} of {}", binding.arena, m.arena_count);
  const qlora_arena &arena = m.arenas[binding.arena];
  if (isInput(binding) != (arena.kind == QLORA_ARENA_INPUT) ||
      (!isInput(binding) && arena.kind != QLORA_ARENA_RESULT &&
       arena.kind != QLORA_ARENA_GRADIENT))
    return damaged("kind {} in the {} arena", binding.kind,
                   arenaKindName(arena.kind));
  if (const uint64_t bytes = bytesOf(m, entry, binding); binding.bytes != bytes)
    return damaged("kind {} has {} bytes instead of {}", binding.kind,
                   binding.bytes, bytes);
  if (binding.offset % 4 != 0 ||
      !isRange(binding.offset, binding.bytes, arena.bytes))
    return damaged("bytes {}+{} of the {} arena of {}", binding.offset,
                   binding.bytes, arenaKindName(arena.kind), arena.bytes);
  return Status::ok();
}

static Status checkBindings(const qlora_module &m, const qlora_entry &entry) {
  if (!isRange(entry.first_binding, entry.binding_count, m.binding_count))
    return damaged("bindings {}+{} of {}", entry.first_binding,
                   entry.binding_count, m.binding_count);
  std::set<uint32_t> kinds;
  for (uint32_t i = 0; i < entry.binding_count; ++i) {
    const qlora_binding &binding = m.bindings[entry.first_binding + i];
    if (Status status = checkBinding(m, entry, binding); !status.isOk())
      return status.withContext(
          fmt::format("binding {}", entry.first_binding + i));
    if (!kinds.insert(binding.kind).second)
      return damaged("two bindings of kind {}", binding.kind);
  }
  return Status::ok();
}

static Status checkEntry(const qlora_module &m, const qlora_entry &entry) {
  if (!isRange(entry.first_command, entry.command_count, m.command_count))
    return damaged("commands {}+{} of {}", entry.first_command,
                   entry.command_count, m.command_count);
  const bool hasRows = entry.kind == QLORA_ENTRY_ACCUMULATE ||
                       entry.kind == QLORA_ENTRY_ACCUMULATE_LAST ||
                       entry.kind == QLORA_ENTRY_EVALUATE ||
                       entry.kind == QLORA_ENTRY_PREFILL ||
                       entry.kind == QLORA_ENTRY_DECODE;
  if (!hasRows ? entry.batch != 0 || entry.length != 0
               : entry.batch < 1 || entry.length < 1)
    return damaged("batch {} and length {} for {}", entry.batch, entry.length,
                   entryKindName(entry.kind));
  if (entry.length % m.mesh.cp != 0)
    return damaged("sequences of {} tokens on {} context-parallel ranks",
                   entry.length, m.mesh.cp);
  return checkBindings(m, entry);
}

static Status checkEntries(const qlora_module &m) {
  std::set<std::tuple<uint32_t, int64_t, int64_t>> seen;
  for (uint32_t i = 0; i < m.entry_count; ++i) {
    const qlora_entry &entry = m.entries[i];
    if (Status status = checkEntry(m, entry); !status.isOk())
      return status.withContext(
          fmt::format("entry {} ({})", i, entryKindName(entry.kind)));
    if (!seen.insert({entry.kind, entry.batch, entry.length}).second)
      return damaged("two entries {} for batch {} and length {}",
                     entryKindName(entry.kind), entry.batch, entry.length);
  }
  return Status::ok();
}

Status checkTables(const qlora_module &m) {
  QLORA_RETURN_IF_ERROR(checkArenas(m));
  QLORA_RETURN_IF_ERROR(checkParameters(m));
  for (uint32_t i = 0; i < m.kernel_count; ++i)
    if (Status status = checkGeneratedKernel(m, m.kernels[i]); !status.isOk())
      return status.withContext(fmt::format("kernel '{}'", m.kernels[i].name));
  for (uint32_t i = 0; i < m.launch_count; ++i)
    if (Status status = checkLaunch(m, m.launches[i]); !status.isOk())
      return status.withContext(
          fmt::format("launch {} ('{}')", i, m.launches[i].label));
  QLORA_RETURN_IF_ERROR(checkCommands(m));
  return checkEntries(m);
}

} // namespace qlora
