// SPDX-License-Identifier: MIT

// Checks of a module's launches, operands, commands, entries and bindings.

#include "runtime/Module/ModuleCheck.h"

#include "runtime/Kernels/KernelTable.h"
#include "runtime/Kernels/Plans/CudaWorkspaces.h"
#include "runtime/Module/ModuleLoader.h"

#include <set>
#include <tuple>
#include <vector>

namespace qlora {

/// More events than commands of a step make no sense; bounds what a device
/// sets aside.
static constexpr uint32_t kMaxEvents = 1u << 16;
/// Of a launch on CUDA: the x dimension of a grid, and what kernels divide in
/// 32 bits.
static constexpr int64_t kMaxRows = 0x7fffffff;

/// Whether [first, first + count) lies within [0, limit).
static bool isRange(uint64_t first, uint64_t count, uint64_t limit) {
  return first <= limit && count <= limit - first;
}

static Status checkLaunch(const qlora_module &m, const qlora_launch &launch) {
  if (launch.kernel >= m.kernel_count)
    return damaged("kernel {} of {}", launch.kernel, m.kernel_count);
  const qlora_kernel &kernel = m.kernels[launch.kernel];
  if (launch.constant_count != kernel.constant_count)
    return damaged("{} constants, but kernel '{}' has {}",
                   launch.constant_count, kernel.name, kernel.constant_count);
  if (!isRange(launch.first_constant, launch.constant_count, m.constant_count))
    return damaged("constants {}+{} of {}", launch.first_constant,
                   launch.constant_count, m.constant_count);
  if (launch.rows < 0 || (launch.rows != 0 && !isGenerated(kernel)))
    return damaged("{} rows for kernel '{}'", launch.rows, kernel.name);
  if (kernel.symbol && launch.rows > kMaxRows)
    return damaged("{} rows of kernel '{}' are more than {}", launch.rows,
                   kernel.name, kMaxRows);
  return Status::ok();
}

static Status checkOperand(const qlora_module &m, const qlora_operand &o) {
  if (o.arena >= m.arena_count)
    return damaged("arena {} of {}", o.arena, m.arena_count);
  const qlora_arena &arena = m.arenas[o.arena];
  if (o.bytes == 0) // absent: nothing of it is looked at
    return Status::ok();
  if (o.dtype >= QLORA_DTYPE_COUNT)
    return damaged("unknown dtype {}", o.dtype);
  if (o.access < QLORA_READ || o.access > QLORA_READ_WRITE)
    return damaged("unknown access {}", o.access);
  if (!isRange(o.offset, o.bytes, arena.bytes))
    return damaged("bytes {}+{} of the {} arena of {}", o.offset, o.bytes,
                   arenaKindName(arena.kind), arena.bytes);
  if ((o.access & QLORA_WRITE) && isFrozenArena(arena.kind))
    return damaged("writes the {} arena", arenaKindName(arena.kind));
  if (o.skipped >= o.bytes)
    return damaged("{} of {} bytes skipped", o.skipped, o.bytes);
  const uint64_t bytes = dtypeBits(static_cast<qlora_dtype>(o.dtype)) / 8;
  // A decoder reads the scales of an NF4 tensor in place.
  const uint64_t unit = o.dtype == QLORA_DTYPE_NF4 ? 64 : bytes;
  if (o.offset % unit != 0 || (bytes > 0 && o.bytes % bytes != 0))
    return damaged("bytes {}+{} are not a range of {} elements", o.offset,
                   o.bytes, dtypeName(static_cast<qlora_dtype>(o.dtype)));
  return Status::ok();
}

/// On a card vendor libraries are handed parts of it.
static Status checkWorkspace(const qlora_module &m,
                             const qlora_operand &operand) {
  if (m.target != QLORA_TARGET_CUDA)
    return Status::ok();
  const uint64_t base = m.arenas[operand.arena].alignment;
  if (operand.offset % plans::kCudaAlignment != 0 ||
      base % plans::kCudaAlignment != 0)
    return damaged("workspace at byte {} of an arena aligned to {}, not at a "
                   "multiple of {}",
                   operand.offset, base, plans::kCudaAlignment);
  return Status::ok();
}

static Status checkLibraryOperand(const qlora_module &m,
                                  const KernelOperand &mark,
                                  const qlora_operand &operand) {
  // A workspace of no bytes is one that the kernel does not need.
  if (operand.bytes == 0 && !mark.isOptional && mark.name != "workspace")
    return damaged("operand '{}' is absent", mark.name);
  if (operand.bytes == 0)
    return Status::ok();
  if (!mark.isWritten && operand.access != QLORA_READ)
    return damaged("operand '{}' is read only, but its access is {}", mark.name,
                   operand.access);
  if (mark.isWritten && !(operand.access & QLORA_WRITE))
    return damaged("operand '{}' is written, but its access is {}", mark.name,
                   operand.access);
  return mark.name == "workspace" ? checkWorkspace(m, operand) : Status::ok();
}

static Status checkLaunchCommand(const qlora_module &m,
                                 const qlora_command &command) {
  if (command.target >= m.launch_count)
    return damaged("launch {} of {}", command.target, m.launch_count);
  const qlora_launch &launch = m.launches[command.target];
  const qlora_kernel &kernel = m.kernels[launch.kernel];
  // That queue may be a thread that no kernel is prepared for.
  if (command.queue == QLORA_QUEUE_COMMUNICATION)
    return damaged("kernel '{}' on the communication queue", kernel.name);
  if (command.operand_count != kernel.operand_count)
    return damaged("{} operands, but kernel '{}' has {}", command.operand_count,
                   kernel.name, kernel.operand_count);
  if (isGenerated(kernel))
    return Status::ok();
  const KernelOp &op = *findKernelRow(kernel.name)->op;
  for (size_t i = 0; i < op.operands.size(); ++i)
    if (Status status = checkLibraryOperand(
            m, op.operands[i], m.operands[command.first_operand + i]);
        !status.isOk())
      return status.withContext(fmt::format("kernel '{}'", kernel.name));
  return Status::ok();
}

static Status checkOperandCount(const qlora_command &command, uint16_t count) {
  if (command.operand_count == count)
    return Status::ok();
  return damaged("{} operands instead of {}", command.operand_count, count);
}

static Status checkFill(const qlora_command &command,
                        const qlora_operand *operands) {
  QLORA_RETURN_IF_ERROR(checkOperandCount(command, 1));
  if (operands[0].access != QLORA_WRITE)
    return damaged("fills an operand with access {}", operands[0].access);
  return Status::ok();
}

static Status checkCopy(const qlora_command &command,
                        const qlora_operand *operands) {
  QLORA_RETURN_IF_ERROR(checkOperandCount(command, 2));
  const qlora_operand &to = operands[0];
  const qlora_operand &from = operands[1];
  if (to.access != QLORA_WRITE || from.access != QLORA_READ)
    return damaged("access {} and {} instead of {} and {}", to.access,
                   from.access, static_cast<int>(QLORA_WRITE),
                   static_cast<int>(QLORA_READ));
  if (to.bytes != from.bytes || to.dtype != from.dtype)
    return damaged("{} bytes of dtype {} from {} of dtype {}", to.bytes,
                   to.dtype, from.bytes, from.dtype);
  if (overlap(to, from))
    return damaged("source {}+{} and target {}+{} overlap", from.offset,
                   from.bytes, to.offset, to.bytes);
  return Status::ok();
}

static Status checkCommand(const qlora_module &m,
                           const qlora_command &command) {
  if (command.kind >= QLORA_COMMAND_KIND_COUNT)
    return damaged("unknown kind {}", command.kind);
  if (command.queue >= QLORA_QUEUE_COUNT)
    return damaged("unknown queue {}", command.queue);
  if (!isRange(command.first_operand, command.operand_count, m.operand_count))
    return damaged("operands {}+{} of {}", command.first_operand,
                   command.operand_count, m.operand_count);
  QLORA_RETURN_IF_ERROR(checkCollective(m, command));
  const qlora_operand *operands = m.operands + command.first_operand;
  switch (command.kind) {
  case QLORA_COMMAND_LAUNCH:
    return checkLaunchCommand(m, command);
  case QLORA_COMMAND_FILL:
    return checkFill(command, operands);
  case QLORA_COMMAND_COPY:
    return checkCopy(command, operands);
  case QLORA_COMMAND_COLLECTIVE:
    return Status::ok();
  default:
    return checkOperandCount(command, 0);
  }
}

Status checkCommands(const qlora_module &m) {
  for (uint32_t i = 0; i < m.launch_count; ++i)
    if (Status status = checkLaunch(m, m.launches[i]); !status.isOk())
      return status.withContext(
          fmt::format("launch {} ('{}')", i, m.launches[i].label));
  for (uint32_t i = 0; i < m.operand_count; ++i)
    if (Status status = checkOperand(m, m.operands[i]); !status.isOk())
      return status.withContext(fmt::format("operand {}", i));
  for (uint32_t i = 0; i < m.command_count; ++i)
    if (Status status = checkCommand(m, m.commands[i]); !status.isOk())
      return status.withContext(fmt::format(
          "command {} ({})", i, commandName(m.commands[i])));
  return Status::ok();
}

/// The bytes and arenas that a binding may have.
static Status checkBinding(const qlora_module &m, const qlora_entry &entry,
                           const qlora_binding &binding) {
  if (binding.arena >= m.arena_count)
    return damaged("arena {} of {}", binding.arena, m.arena_count);
  const qlora_arena &arena = m.arenas[binding.arena];
  const bool isInput = binding.kind <= QLORA_INPUT_SEGMENTS;
  const bool isScalar = binding.kind == QLORA_RESULT_LOSS_SUM ||
                        binding.kind == QLORA_RESULT_LABEL_COUNT ||
                        binding.kind == QLORA_RESULT_GRAD_NORM;
  if (!isInput && !isScalar && binding.kind != QLORA_RESULT_CORRECT)
    return damaged("unknown kind {}", binding.kind);
  if (isInput != (arena.kind == QLORA_ARENA_INPUT) ||
      (!isInput && arena.kind != QLORA_ARENA_RESULT &&
       arena.kind != QLORA_ARENA_GRADIENT))
    return damaged("kind {} in the {} arena", binding.kind,
                   arenaKindName(arena.kind));
  const uint64_t bytes =
      isScalar ? 4 : 4 * static_cast<uint64_t>(entry.batch * entry.length);
  if (binding.bytes != bytes)
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

/// Every event is recorded once, and before (in command order) it is waited
/// for, so that walking the commands in order can never block for good.
static Status checkEvents(const qlora_module &m, const qlora_entry &entry) {
  if (entry.event_count > kMaxEvents)
    return damaged("{} events are more than {}", entry.event_count, kMaxEvents);
  std::vector<bool> recorded(entry.event_count);
  for (uint32_t i = 0; i < entry.command_count; ++i) {
    const qlora_command &command = m.commands[entry.first_command + i];
    const bool isRecord = command.kind == QLORA_COMMAND_RECORD;
    if (!isRecord && command.kind != QLORA_COMMAND_WAIT)
      continue;
    if (command.target >= entry.event_count)
      return damaged("command {}: event {} of {}", i, command.target,
                     entry.event_count);
    if (recorded[command.target] == isRecord)
      return damaged("command {}: event {} is {}", i, command.target,
                     isRecord ? "recorded twice"
                              : "waited for before it is recorded");
    if (isRecord)
      recorded[command.target] = true;
  }
  return Status::ok();
}

static Status checkEntry(const qlora_module &m, const qlora_entry &entry) {
  if (entry.kind >= QLORA_ENTRY_KIND_COUNT)
    return damaged("unknown kind {}", entry.kind);
  if (!isRange(entry.first_command, entry.command_count, m.command_count))
    return damaged("commands {}+{} of {}", entry.first_command,
                   entry.command_count, m.command_count);
  const bool isUpdate = entry.kind == QLORA_ENTRY_UPDATE;
  const int64_t most = int64_t{1} << 24;
  if (isUpdate ? entry.batch != 0 || entry.length != 0
               : entry.batch < 1 || entry.length < 1 || entry.batch > most ||
                     entry.length > most)
    return damaged("batch {} and length {} for {}", entry.batch, entry.length,
                   entryKindName(entry.kind));
  QLORA_RETURN_IF_ERROR(checkEvents(m, entry));
  return checkBindings(m, entry);
}

Status checkEntries(const qlora_module &m) {
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

} // namespace qlora
