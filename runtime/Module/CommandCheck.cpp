// SPDX-License-Identifier: MIT

// Finds compiler bugs in operands and commands.

#include "runtime/Module/ModuleCheck.h"

#include "runtime/ABI/CollectiveForm.h"
#include "runtime/Kernels/KernelTable.h"
#include "runtime/Kernels/Plans/CudaWorkspaces.h"
#include "runtime/Module/ModuleLoader.h"

#include <algorithm>
#include <array>

namespace qlora {

/// Returns the number of ranks over which a group shards operands; 1 if the
/// program does not fix the number.
static int64_t shardingRanks(const qlora_module &m, unsigned group) {
  if (group == QLORA_GROUP_DP)
    return std::max<int64_t>(1, m.run_ranks);
  const bool isOfMesh =
      group < QLORA_GROUP_COUNT && kGroups[group].place != MeshPlace::Run;
  return isOfMesh ? GroupSizes(m.mesh)[group] : 1;
}

static Status checkPieces(const qlora_module &m, const qlora_operand &o,
                          uint64_t arenaBytes) {
  const auto ranks = static_cast<uint64_t>(shardingRanks(m, o.pieces_of));
  if (ranks == 1 || o.pieces != ranks)
    return damaged("{} pieces, but group {} shards over {} ranks", o.pieces,
                   groupName(o.pieces_of), ranks);
  if (o.step == 0 || o.step > arenaBytes / ranks || o.bytes > arenaBytes ||
      !isRange(o.offset, (ranks - 1) * o.step + o.bytes, arenaBytes))
    return damaged("{} x {} bytes, {} apart, from byte {} of an arena of {}",
                   ranks, o.bytes, o.step, o.offset, arenaBytes);
  return Status::ok();
}

static Status checkOperand(const qlora_module &m, const qlora_operand &o) {
  if (o.arena >= m.arena_count)
    return damaged("arena {} of {}", o.arena, m.arena_count);
  const qlora_arena &arena = m.arenas[o.arena];
  if (o.bytes == 0) // an absent operand
    return Status::ok();
  if (o.pieces != 0)
    QLORA_RETURN_IF_ERROR(checkPieces(m, o, arena.bytes));
  else if (o.pieces_of != 0 || o.step != 0)
    return damaged("one piece, but of group {} with a step of {} bytes",
                   groupName(o.pieces_of), o.step);
  else if (!isRange(o.offset, o.bytes, arena.bytes))
    return damaged("bytes {}+{} of the {} arena of {}", o.offset, o.bytes,
                   arenaKindName(arena.kind), arena.bytes);
  if ((o.access & QLORA_WRITE) && isFrozenArena(arena.kind))
    return damaged("writes the {} arena", arenaKindName(arena.kind));
  if (o.skipped >= o.bytes)
    return damaged("{} of {} bytes skipped", o.skipped, o.bytes);
  const uint64_t bytes = dtypeBits(static_cast<qlora_dtype>(o.dtype)) / 8;
  // Decoders read the scales of a quantized tensor in place, aligned to 64.
  const uint64_t unit = storedFormat(o.dtype) ? 64 : bytes;
  if (o.offset % unit != 0 || o.step % unit != 0 ||
      (bytes > 0 && o.bytes % bytes != 0))
    return damaged("bytes {}+{} are not a range of {} elements", o.offset,
                   o.bytes, dtypeName(static_cast<qlora_dtype>(o.dtype)));
  return Status::ok();
}

/// Checks a workspace's alignment, which GPU libraries need.
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
  // An empty workspace means that the kernel does not need one.
  if (operand.bytes == 0 && !mark.isOptional && mark.name != "workspace")
    return damaged("operand '{}' is absent", mark.name);
  if (operand.bytes == 0)
    return Status::ok();
  if (mark.isWritten ? !(operand.access & QLORA_WRITE)
                     : operand.access != QLORA_READ)
    return damaged("operand '{}' is {}, but its access is {}", mark.name,
                   mark.isWritten ? "written" : "read only", operand.access);
  return mark.name == "workspace" ? checkWorkspace(m, operand) : Status::ok();
}

static Status checkLaunchCommand(const qlora_module &m,
                                 const qlora_command &command) {
  if (command.target >= m.launch_count)
    return damaged("launch {} of {}", command.target, m.launch_count);
  const qlora_kernel &kernel = m.kernels[m.launches[command.target].kernel];
  // The communication queue's thread runs no kernels.
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

/// Checks the operands of a FILL, COPY or collective. `mayBePiece`: the source
/// may be this rank's shard of the target.
static Status checkAccess(const qlora_command &command,
                          const qlora_operand *operands,
                          const std::array<uint8_t, 2> &access,
                          bool mayBePiece = false) {
  const uint16_t count = access[1] ? 2 : 1;
  if (command.operand_count != count)
    return damaged("{} operands instead of {}", command.operand_count, count);
  const uint8_t dtype = operands[0].dtype;
  for (uint16_t i = 0; i < count; ++i)
    if (operands[i].access != access[i] || operands[i].dtype != dtype)
      return damaged("operand {} has dtype {} and access {} instead of {} and "
                     "{}",
                     i, operands[i].dtype, operands[i].access, dtype,
                     access[i]);
  const qlora_operand &to = operands[0], &from = operands[count - 1];
  const bool isOwnPiece = from.pieces != 0 && to.pieces == 0 &&
                          from.offset == to.offset && from.step == from.bytes &&
                          from.bytes * from.pieces == to.bytes;
  if (count == 2 && to.arena == from.arena && !(isOwnPiece && mayBePiece) &&
      to.offset < from.offset + from.bytes &&
      from.offset < to.offset + to.bytes)
    return damaged("source {}+{} and target {}+{} overlap", from.offset,
                   from.bytes, to.offset, to.bytes);
  return Status::ok();
}

static Status checkCopy(const qlora_command &command,
                        const qlora_operand *operands) {
  QLORA_RETURN_IF_ERROR(
      checkAccess(command, operands, {QLORA_WRITE, QLORA_READ}));
  if (operands[0].bytes != operands[1].bytes)
    return damaged("{} bytes from {}", operands[0].bytes, operands[1].bytes);
  return Status::ok();
}

static Status checkCollective(const qlora_command &command,
                              const qlora_operand *operands) {
  if (command.collective >= QLORA_COLLECTIVE_COUNT ||
      command.group >= QLORA_GROUP_COUNT)
    return damaged("collective {} over group {}", command.collective,
                   command.group);
  const CollectiveForm &form = kCollectiveForms[command.collective];
  QLORA_RETURN_IF_ERROR(checkAccess(
      command, operands,
      {static_cast<uint8_t>(form.target),
       static_cast<uint8_t>(form.hasSource ? QLORA_READ : 0)},
      command.collective == QLORA_COLLECTIVE_ALL_GATHER &&
          command.group == QLORA_GROUP_FSDP));
  const uint8_t dtype = operands[0].dtype;
  if (storedFormat(dtype) || (form.isSum && dtype > QLORA_DTYPE_I32))
    return damaged("{} of dtype {}", commandName(command), dtype);
  if (form.peer == CollectiveForm::kRank
          ? command.peer < 0
          : (form.peer == CollectiveForm::kPlaces) != (command.peer != 0))
    return damaged("{} with peer {}", commandName(command), command.peer);
  // All collectives must be on this queue, so that all ranks have one order.
  if (command.queue != QLORA_QUEUE_COMMUNICATION)
    return damaged("a collective on the {} queue", queueName(command.queue));
  return Status::ok();
}

static Status checkCommand(const qlora_module &m,
                           const qlora_command &command) {
  if (!isRange(command.first_operand, command.operand_count, m.operand_count))
    return damaged("operands {}+{} of {}", command.first_operand,
                   command.operand_count, m.operand_count);
  const qlora_operand *operands = m.operands + command.first_operand;
  switch (command.kind) {
  case QLORA_COMMAND_LAUNCH:
    return checkLaunchCommand(m, command);
  case QLORA_COMMAND_FILL:
    return checkAccess(command, operands, {QLORA_WRITE, 0});
  case QLORA_COMMAND_COPY:
    return checkCopy(command, operands);
  case QLORA_COMMAND_COLLECTIVE:
    return checkCollective(command, operands);
  default: // events are checked in AccessCheck.h
    return Status::ok();
  }
}

Status checkCommands(const qlora_module &m) {
  for (uint32_t i = 0; i < m.operand_count; ++i)
    if (Status status = checkOperand(m, m.operands[i]); !status.isOk())
      return status.withContext(fmt::format("operand {}", i));
  for (uint32_t i = 0; i < m.command_count; ++i)
    if (Status status = checkCommand(m, m.commands[i]); !status.isOk())
      return status.withContext(
          fmt::format("command {} ({})", i, commandName(m.commands[i])));
  return Status::ok();
}

} // namespace qlora
