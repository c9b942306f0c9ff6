// SPDX-License-Identifier: MIT

// Walks the program once, and makes a table row for each op.

#include "compiler/Codegen/ModuleTables.h"

#include "compiler/Codegen/KernelFunction.h"
#include "compiler/Codegen/RowOperands.h"
#include "compiler/Schedule/Commands.h"

#include "runtime/Kernels/KernelTable.h"

#include <cstring>
#include <map>

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

/// Zeroes padding too, so that equal programs have equal bytes.
ModuleTables::ModuleTables() {
  std::memset(static_cast<void *>(&header), 0, sizeof(header));
}

namespace qlora {

class TableBuilder {
public:
  TableBuilder(ModuleOp module, const KernelSpelling &spelling)
      : module(module), spelling(spelling), symbols(module) {}

  FailureOr<ModuleTables> run();

private:
  LogicalResult addArena(ArenaOp op);
  LogicalResult addParameter(program::ParameterOp op);
  LogicalResult addKernel(program::KernelOp op);
  LogicalResult addEntry(EntryOp op);
  LogicalResult addBinding(BindOp op);
  LogicalResult addCommand(Operation &op);
  FailureOr<qlora_command> commandOf(Operation &op);
  LogicalResult addOperands(Operation &op);
  LogicalResult addOperands(LaunchOp op);
  LogicalResult addAbsent(LaunchOp op, unsigned position);
  FailureOr<qlora_operand> operandOf(Value buffer);
  FailureOr<ArrayRef<RowOperand>> rowsOf(LaunchOp op);
  FailureOr<uint32_t> arenaOf(Operation *op, Arena arena);
  uint32_t constantsOf(ArrayRef<int64_t> values);
  uint32_t launchOf(LaunchOp op);
  void fillHeader();

  ModuleOp module;
  const KernelSpelling &spelling;
  SymbolTable symbols;
  ModuleTables tables;
  std::map<Arena, uint32_t> arenaIndex;
  llvm::StringMap<uint32_t> kernelIndex;
  std::map<std::vector<int64_t>, uint32_t> constantIndex;
  llvm::StringMap<SmallVector<RowOperand>> rowOperandsOf; ///< by kernel
  /// Index of a launch by label, kernel, first constant and row count.
  std::map<std::tuple<std::string, uint32_t, uint32_t, int64_t>, uint32_t>
      launchIndex;
};

} // namespace qlora

//===----------------------------------------------------------------------===//
// Arenas, parameters, kernels
//===----------------------------------------------------------------------===//

LogicalResult TableBuilder::addArena(ArenaOp op) {
  if (!arenaIndex.try_emplace(op.getKind(), tables.arenas.size()).second)
    return op.emitOpError("is the second arena of kind ")
           << stringifyArena(op.getKind());
  tables.arenas.push_back({.kind = uint32_t(op.getKind()),
                           .alignment = uint32_t(op.getAlignment()),
                           .bytes = uint64_t(op.getBytes()),
                           .on_host = op.getOnHost()});
  return success();
}

FailureOr<uint32_t> TableBuilder::arenaOf(Operation *op, Arena arena) {
  auto it = arenaIndex.find(arena);
  if (it == arenaIndex.end())
    return op->emitOpError("is in the arena ")
           << stringifyArena(arena) << ", which the module does not have";
  return it->second;
}

LogicalResult TableBuilder::addParameter(program::ParameterOp op) {
  FailureOr<uint32_t> arena = arenaOf(op, op.getArena());
  if (failed(arena))
    return failure();
  ArrayRef<int64_t> shape = op.getShape();
  if (shape.size() > QLORA_MAX_RANK)
    return op.emitOpError("has ")
           << shape.size() << " dimensions, more than " << QLORA_MAX_RANK;
  // The names of the parts follow the parameter's name, each after a NUL.
  std::string name = op.getName().str();
  ArrayAttr parts = op.getPartsAttr();
  if (parts)
    for (StringRef part : parts.getAsValueRange<StringAttr>())
      name += std::string(1, '\0') + part.str();
  qlora_parameter row = {};
  row.name = tables.text(name);
  row.role = uint32_t(op.getRole());
  row.dtype = uint32_t(op.getDtype());
  row.init = uint32_t(op.getInit());
  row.quantization = uint32_t(op.getQuantization());
  row.block = op.getBlock();
  row.double_quant = op.getDecodedScales() ? 2 : op.getDoubleQuant();
  row.arena = *arena;
  row.rank = shape.size();
  llvm::copy(shape, row.shape);
  row.offset = op.getOffset();
  row.bytes = op.getBytes();
  row.file_dtype = uint32_t(op.getFileDtype());
  row.parts = parts ? parts.size() : 0;
  row.format = uint32_t(op.getFormat().value_or(program::DType::F32));
  row.piece = op.getPiece();
  row.first = op.getFirst();
  row.slices = op.getSlices();
  row.slice_dimension = op.getSliceDimension();
  row.segments = op.getSegments().size();
  row.first_segment = constantsOf(op.getSegments());
  tables.parameters.push_back(row);
  return success();
}

LogicalResult TableBuilder::addKernel(program::KernelOp op) {
  kernelIndex[op.getSymName()] = tables.kernels.size();
  qlora_kernel row = {};
  std::string function;
  if (!op.getOp()) {
    Block &body = op.getBody().front();
    const KernelGeometry geometry = spelling.geometry(*op.getColumns());
    function = functionName(op);
    row.name = tables.text(op.getSymName());
    row.operand_count =
        body.getNumArguments() + body.getTerminator()->getNumOperands();
    row.threads = geometry.threads;
    row.rows_per_block = geometry.rowsPerBlock;
    if (geometry.threads > 0)
      row.symbol = tables.text(std::exchange(function, ""));
  } else {
    if (!op.getImplementation())
      return op.emitOpError("has no implementation (did select-kernels run?)");
    const qlora::KernelOp *library = findKernelOp(*op.getOp());
    row.name = tables.text((*op.getOp() + "." + *op.getImplementation()).str());
    row.operand_count = library->operands.size();
    row.constant_count = library->neededConstants;
  }
  tables.kernels.push_back(row);
  tables.functions.push_back(std::move(function));
  return success();
}

//===----------------------------------------------------------------------===//
// Operands
//===----------------------------------------------------------------------===//

/// Returns the operand for a buffer, without its access.
FailureOr<qlora_operand> TableBuilder::operandOf(Value buffer) {
  BufferOp op = rootOf(buffer);
  const ByteRange range = rangeOf(buffer);
  if (range.unplaced)
    return op.emitOpError("has no offset (did plan-memory run?)");
  FailureOr<uint32_t> arena = arenaOf(op, range.arena);
  if (failed(arena))
    return failure();
  qlora_operand operand = {};
  operand.arena = *arena;
  operand.dtype = uint8_t(op.getDtype());
  operand.offset = range.offset;
  operand.bytes = ownBytes(buffer);
  if (op.getPieces() > 1) {
    operand.pieces = op.getPieces();
    operand.pieces_of = uint8_t(op.getPiecesOf());
    operand.step = op.getStepBytes();
  }
  return operand;
}

/// Adds an operand of 0 bytes for the absent operand at `position`, with the
/// access that the library op declares.
LogicalResult TableBuilder::addAbsent(LaunchOp op, unsigned position) {
  auto kernel = symbols.lookup<program::KernelOp>(op.getKernel());
  const qlora::KernelOp *library =
      kernel.getOp() ? findKernelOp(*kernel.getOp()) : nullptr;
  if (!library || position >= library->operands.size())
    return op.emitOpError("has no operand ") << position << " to be absent";
  const KernelOperand &mark = library->operands[position];
  qlora_operand operand = {};
  operand.dtype = QLORA_DTYPE_U8;
  operand.access =
      (mark.isRead ? QLORA_READ : 0) | (mark.isWritten ? QLORA_WRITE : 0);
  tables.operands.push_back(operand);
  return success();
}

/// Returns the kernel's row operands; empty for a library kernel.
FailureOr<ArrayRef<RowOperand>> TableBuilder::rowsOf(LaunchOp op) {
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

/// Adds `values` to the table of constants, as consecutive rows, unless it has
/// them already. Returns the index of the first row.
uint32_t TableBuilder::constantsOf(ArrayRef<int64_t> values) {
  if (values.empty())
    return 0;
  auto [it, isNew] =
      constantIndex.try_emplace(values.vec(), tables.constants.size());
  if (isNew)
    llvm::append_range(tables.constants, values);
  return it->second;
}

//===----------------------------------------------------------------------===//
// Commands
//===----------------------------------------------------------------------===//

uint32_t TableBuilder::launchOf(LaunchOp op) {
  const uint32_t kernel = kernelIndex.lookup(op.getKernel());
  const uint32_t first = constantsOf(op.getConstants());
  const int64_t rows = op.getRows();
  auto [it, isNew] = launchIndex.try_emplace(
      {op.getLabel().str(), kernel, first, rows}, tables.launches.size());
  if (isNew)
    tables.launches.push_back(
        {.label = tables.text(op.getLabel()),
         .kernel = kernel,
         .first_constant = first,
         .constant_count = uint32_t(op.getConstants().size()),
         .rows = rows});
  return it->second;
}

/// Adds the launch's operands, including absent ones, in the kernel's order.
LogicalResult TableBuilder::addOperands(LaunchOp op) {
  FailureOr<ArrayRef<RowOperand>> rows = rowsOf(op);
  if (failed(rows))
    return failure();
  unsigned next = 0;
  const unsigned count = op.getOperands().size() + op.getAbsent().size();
  for (unsigned i = 0; i < count; ++i) {
    if (llvm::is_contained(op.getAbsent(), static_cast<int64_t>(i))) {
      if (failed(addAbsent(op, i)))
        return failure();
      continue;
    }
    if (next == op.getOperands().size())
      return op.emitOpError("names absent operands out of range");
    FailureOr<qlora_operand> operand = operandOf(op.getOperands()[next]);
    if (failed(operand))
      return failure();
    operand->dtype = op.getDtypes()[next];
    operand->access = op.getAccess()[next++];
    if (i < rows->size())
      operand->skipped = (*rows)[i].skippedBytes(operand->bytes);
    tables.operands.push_back(*operand);
  }
  return success();
}

/// Adds the buffers that the op accesses as operands.
LogicalResult TableBuilder::addOperands(Operation &op) {
  if (auto launch = dyn_cast<LaunchOp>(op))
    return addOperands(launch);
  for (auto [buffer, access] : accessesOf(&op)) {
    FailureOr<qlora_operand> operand = operandOf(buffer);
    if (failed(operand))
      return failure();
    operand->access = access;
    tables.operands.push_back(*operand);
  }
  return success();
}

/// Returns the command for an op, without its operands.
FailureOr<qlora_command> TableBuilder::commandOf(Operation &op) {
  qlora_command row = {};
  if (auto launch = dyn_cast<LaunchOp>(op)) {
    row.kind = QLORA_COMMAND_LAUNCH;
    row.target = launchOf(launch);
  } else if (isa<FillOp>(op)) {
    row.kind = QLORA_COMMAND_FILL;
  } else if (isa<CopyOp>(op)) {
    row.kind = QLORA_COMMAND_COPY;
  } else if (auto together = dyn_cast<CollectiveOp>(op)) {
    row.kind = QLORA_COMMAND_COLLECTIVE;
    row.target = together.getNumber();
    row.collective = uint8_t(together.getKind());
    row.group = uint8_t(together.getGroup());
    row.peer = together.getPeer();
  } else if (auto record = dyn_cast<RecordOp>(op)) {
    row.kind = QLORA_COMMAND_RECORD;
    row.target = record.getEvent();
  } else if (auto wait = dyn_cast<WaitOp>(op)) {
    row.kind = QLORA_COMMAND_WAIT;
    row.target = wait.getEvent();
  } else {
    return op.emitOpError("is not a command of a module");
  }
  row.queue = queueOf(&op);
  return row;
}

LogicalResult TableBuilder::addCommand(Operation &op) {
  if (isa<BufferOp, ViewOp, BindOp>(op))
    return success();
  FailureOr<qlora_command> row = commandOf(op);
  if (failed(row))
    return failure();
  row->first_operand = tables.operands.size();
  if (failed(addOperands(op)))
    return failure();
  row->operand_count = tables.operands.size() - row->first_operand;
  tables.commands.push_back(*row);
  return success();
}

//===----------------------------------------------------------------------===//
// Entries and the module
//===----------------------------------------------------------------------===//

LogicalResult TableBuilder::addBinding(BindOp op) {
  FailureOr<qlora_operand> range = operandOf(op.getBuffer());
  if (failed(range))
    return failure();
  tables.bindings.push_back({.kind = uint32_t(op.getKind()),
                             .arena = range->arena,
                             .offset = range->offset,
                             .bytes = range->bytes});
  return success();
}

LogicalResult TableBuilder::addEntry(EntryOp op) {
  qlora_entry row = {};
  row.kind = uint32_t(op.getKind());
  row.first_command = tables.commands.size();
  row.first_binding = tables.bindings.size();
  row.event_count = eventCountOf(op);
  row.batch = op.getBatch();
  row.length = op.getLength();
  for (Operation &inner : op.getBody().front())
    if (failed(addCommand(inner)))
      return failure();
  for (auto bind : op.getBody().getOps<BindOp>())
    if (failed(addBinding(bind)))
      return failure();
  row.command_count = tables.commands.size() - row.first_command;
  row.binding_count = tables.bindings.size() - row.first_binding;
  tables.entries.push_back(row);
  return success();
}

void TableBuilder::fillHeader() {
  qlora_module &header = tables.header;
  header.magic = QLORA_MODULE_MAGIC;
  header.abi_version = QLORA_ABI_VERSION;
  header.module_bytes = sizeof(qlora_module);
  header.target =
      &spelling == &cudaSpelling() ? QLORA_TARGET_CUDA : QLORA_TARGET_CPU;
  header.producer = tables.text("qloracc " QLORA_VERSION);
  header.cpu_features = tables.text("");
  header.config_json = header.plan_json = tables.text("{}");
  header.mesh = model::meshOf(module);
  header.stage = stageOf(module);
  header.run_ranks = model::runRanksOf(module);
  const auto refer = [](auto &rows, auto *&table, uint32_t &count) {
    table = rows.data();
    count = rows.size();
  };
  refer(tables.arenas, header.arenas, header.arena_count);
  refer(tables.parameters, header.parameters, header.parameter_count);
  refer(tables.kernels, header.kernels, header.kernel_count);
  refer(tables.launches, header.launches, header.launch_count);
  refer(tables.operands, header.operands, header.operand_count);
  refer(tables.constants, header.constants, header.constant_count);
  refer(tables.commands, header.commands, header.command_count);
  refer(tables.entries, header.entries, header.entry_count);
  refer(tables.bindings, header.bindings, header.binding_count);
}

FailureOr<ModuleTables> TableBuilder::run() {
  for (auto op : module.getOps<ArenaOp>())
    if (failed(addArena(op)))
      return failure();
  for (auto op : module.getOps<program::ParameterOp>())
    if (failed(addParameter(op)))
      return failure();
  for (auto op : module.getOps<program::KernelOp>())
    if (failed(addKernel(op)))
      return failure();
  for (auto op : module.getOps<EntryOp>())
    if (failed(addEntry(op)))
      return failure();
  fillHeader();
  return std::move(tables);
}

FailureOr<ModuleTables> ModuleTables::of(ModuleOp program,
                                         const KernelSpelling &spelling) {
  return TableBuilder(program, spelling).run();
}
