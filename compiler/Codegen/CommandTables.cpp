// SPDX-License-Identifier: MIT

// Writes one command per op, and the table rows that it refers to.

#include "compiler/Codegen/CommandTables.h"

#include "compiler/Schedule/Commands.h"

#include "runtime/Kernels/KernelTable.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

//===----------------------------------------------------------------------===//
// Operands
//===----------------------------------------------------------------------===//

FailureOr<uint32_t> CommandTables::arenaOf(Operation *op, Arena arena) {
  auto it = arenaIndex.find(arena);
  if (it == arenaIndex.end())
    return op->emitOpError("is in the arena ")
           << stringifyArena(arena) << ", which the module does not have";
  return it->second;
}

FailureOr<BufferRange> CommandTables::rangeOf(Value buffer) {
  BufferOp op = rootOf(buffer);
  ByteRange range = qlora::rangeOf(buffer);
  if (range.unplaced)
    return op.emitOpError("has no offset (did plan-memory run?)");
  FailureOr<uint32_t> arena = arenaOf(op, range.arena);
  if (failed(arena))
    return failure();
  BufferRange found{*arena, range.offset, ownBytes(buffer),
                    static_cast<uint32_t>(op.getDtype())};
  if (op.getPieces() > 1) {
    found.pieces = static_cast<uint32_t>(op.getPieces()) |
                   static_cast<uint32_t>(op.getPiecesOf()) << 16;
    found.step = static_cast<uint64_t>(op.getStepBytes());
  }
  return found;
}

static uint64_t operandWord(uint32_t arena, uint32_t dtype,
                            qlora_access access) {
  return arena | uint64_t(dtype) << 16 | uint64_t(access) << 24;
}

FailureOr<ArrayRef<RowOperand>> CommandTables::rowsOf(LaunchOp op) {
  auto [known, isNew] = rowOperandsOf.try_emplace(op.getKernel());
  if (!isNew)
    return ArrayRef<RowOperand>(known->second);
  auto kernel = symbols.lookup<program::KernelOp>(op.getKernel());
  if (!kernel.getOp()) {
    FailureOr<SmallVector<RowOperand>> rows = rowOperands(kernel);
    if (failed(rows))
      return failure();
    known->second = *rows;
  }
  return ArrayRef<RowOperand>(known->second);
}

LogicalResult CommandTables::addOperand(Value buffer, qlora_access access,
                                        uint32_t dtype, const RowOperand *row) {
  FailureOr<BufferRange> range = rangeOf(buffer);
  if (failed(range))
    return failure();
  operands.row({operandWord(range->arena, dtype, access) |
                    uint64_t(range->pieces) << 32,
                range->offset, range->bytes,
                row ? row->skippedBytes(range->bytes) : 0, range->step});
  return success();
}

uint32_t CommandTables::constantsOf(ArrayRef<int64_t> values) {
  if (values.empty())
    return 0;
  auto [it, isNew] = constantIndex.try_emplace(values.vec(), constants.size());
  if (isNew)
    for (int64_t value : values)
      constants.row({static_cast<uint64_t>(value)});
  return it->second;
}

//===----------------------------------------------------------------------===//
// Commands
//===----------------------------------------------------------------------===//

void CommandTables::command(Operation &op, qlora_command_kind kind,
                            uint32_t target, uint32_t firstOperand,
                            uint32_t collective) {
  uint32_t count = operands.size() - firstOperand;
  commands.row({kind | uint64_t(queueOf(&op)) << 8 | uint64_t(count) << 16 |
                    uint64_t(target) << 32,
                wordOf(firstOperand, collective)});
}

uint32_t CommandTables::launchOf(LaunchOp op, uint32_t kernel) {
  uint32_t first = constantsOf(op.getConstants());
  auto [it, isNew] = launchIndex.try_emplace(
      {op.getLabel().str(), kernel, first, op.getRows()}, launches.size());
  if (isNew)
    launches.row({strings.label(op.getLabel().str()),
                  std::to_string(wordOf(kernel, first)),
                  std::to_string(op.getConstants().size()),
                  std::to_string(op.getRows())});
  return it->second;
}

/// Adds an operand of 0 bytes for the absent operand at `position`, with the
/// access that the library op declares.
LogicalResult CommandTables::addAbsent(LaunchOp op, unsigned position) {
  auto kernel = symbols.lookup<program::KernelOp>(op.getKernel());
  const qlora::KernelOp *library =
      kernel.getOp() ? findKernelOp(*kernel.getOp()) : nullptr;
  if (!library || position >= library->operands.size())
    return op.emitOpError("has no operand ") << position << " to be absent";
  const KernelOperand &mark = library->operands[position];
  auto access = static_cast<qlora_access>((mark.isRead ? QLORA_READ : 0) |
                                          (mark.isWritten ? QLORA_WRITE : 0));
  operands.row({operandWord(0, QLORA_DTYPE_U8, access), 0, 0, 0, 0});
  return success();
}

/// Adds the launch's operands, including absent ones, in the kernel's order.
LogicalResult CommandTables::addLaunch(LaunchOp op) {
  uint32_t first = operands.size();
  unsigned next = 0;
  unsigned count = op.getOperands().size() + op.getAbsent().size();
  FailureOr<ArrayRef<RowOperand>> rows = rowsOf(op);
  if (failed(rows))
    return failure();
  for (unsigned i = 0; i < count; ++i) {
    if (llvm::is_contained(op.getAbsent(), static_cast<int64_t>(i))) {
      if (failed(addAbsent(op, i)))
        return failure();
      continue;
    }
    if (next == op.getOperands().size())
      return op.emitOpError("names absent operands out of range");
    if (failed(addOperand(op.getOperands()[next],
                          static_cast<qlora_access>(op.getAccess()[next]),
                          op.getDtypes()[next],
                          i < rows->size() ? &(*rows)[i] : nullptr)))
      return failure();
    ++next;
  }
  uint32_t index = kernelIndex.lookup(op.getKernel());
  command(*op, QLORA_COMMAND_LAUNCH, launchOf(op, index), first);
  return success();
}

/// Adds a command whose operands are the buffers that the op accesses.
LogicalResult CommandTables::addTransfer(Operation &op, qlora_command_kind kind,
                                         uint32_t target, uint32_t collective) {
  uint32_t first = operands.size();
  for (auto [buffer, mode] : accessesOf(&op)) {
    FailureOr<BufferRange> range = rangeOf(buffer);
    if (failed(range) || failed(addOperand(buffer, mode, range->dtype)))
      return failure();
  }
  return command(op, kind, target, first, collective), success();
}

LogicalResult CommandTables::addCommand(Operation &op) {
  return llvm::TypeSwitch<Operation &, LogicalResult>(op)
      .Case<BufferOp, ViewOp, BindOp>([](auto) { return success(); })
      .Case<LaunchOp>([&](auto launch) { return addLaunch(launch); })
      .Case<FillOp>([&](auto) { return addTransfer(op, QLORA_COMMAND_FILL); })
      .Case<CopyOp>([&](auto) { return addTransfer(op, QLORA_COMMAND_COPY); })
      .Case<CollectiveOp>([&](CollectiveOp together) {
        // Packed as in the last word of qlora_command.
        uint32_t how = uint32_t(together.getKind()) |
                       uint32_t(together.getGroup()) << 8 |
                       uint32_t(uint16_t(together.getPeer())) << 16;
        return addTransfer(op, QLORA_COMMAND_COLLECTIVE, together.getNumber(),
                           how);
      })
      .Case<RecordOp>([&](auto record) {
        return addTransfer(op, QLORA_COMMAND_RECORD, record.getEvent());
      })
      .Case<WaitOp>([&](auto wait) {
        return addTransfer(op, QLORA_COMMAND_WAIT, wait.getEvent());
      })
      .Default([](Operation &other) {
        return other.emitOpError("is not a command of a module");
      });
}
