// SPDX-License-Identifier: MIT

// Lowers one train.step: creates the commands of each op.

#include "compiler/Schedule/StepLowering.h"

#include "llvm/ADT/TypeSwitch.h"

#include "runtime/Kernels/KernelTable.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;
using program::Arena;

/// Bytes of one vector load.
static constexpr int64_t kVectorBytes = 16;

//===----------------------------------------------------------------------===//
// Commands
//===----------------------------------------------------------------------===//

void StepLowering::launch(FlatSymbolRefAttr kernel, ArrayRef<Value> buffers,
                          ArrayRef<int64_t> access, ArrayRef<int64_t> dtypes,
                          ArrayRef<int64_t> absent, ArrayRef<int64_t> constants,
                          int64_t rows, StringRef label) {
  program::LaunchOp::create(
      b, step.getLoc(), kernel, buffers, b.getDenseI64ArrayAttr(access),
      b.getDenseI64ArrayAttr(dtypes), b.getDenseI64ArrayAttr(absent),
      b.getDenseI64ArrayAttr(constants), b.getI64IntegerAttr(rows),
      b.getStringAttr(label));
}

/// Launches accumulate (to += from) or copy_rows (to = from).
void StepLowering::launchCopy(StringRef kernel, Value value, const Place &from,
                              const Place &to, StringRef label) {
  RankedTensorType type = tensorTypeOf(value);
  int64_t columns = matrixColumns(type);
  int64_t dtype = *elementDtype(type.getElementType());
  launch(kernels.library(kernel), {view(from, value), view(to, value)},
         {QLORA_READ, kernel == "accumulate" ? QLORA_READ_WRITE : QLORA_WRITE},
         {dtype, dtype}, {},
         {type.getNumElements() / columns, columns, from.stride, to.stride}, 0,
         label);
}

/// Halves `elements` until it divides `columns` and the row stride of `place`,
/// and the first row is aligned. The alignment is the size of `elements`
/// elements, at most kVectorBytes.
static int64_t alignedElements(int64_t elements, const Place &place,
                               int64_t columns, int64_t elementBytes) {
  auto buffer = place.buffer.getDefiningOp<program::BufferOp>();
  // The step between shards is included, so that the shards of all ranks are
  // aligned.
  int64_t start =
      (buffer.getOffset().value_or(0) + place.offset) | buffer.getStep();
  while ((start % std::min(elements * elementBytes, kVectorBytes)) ||
         place.stride % elements || columns % elements)
    elements /= 2;
  return elements;
}

/// True if an operand of this kind has one element per column of a row.
static bool isByColumn(MapKind kind) {
  return kind != MapKind::Scalar && kind != MapKind::Global;
}

/// Returns how many elements of the widest element type a vector load covers.
/// Considers only operands for which isByColumn() is true.
static int64_t elementsOfLoad(RowsOp op) {
  int64_t bits = 8;
  auto look = [&](Value value) {
    bits = std::max<int64_t>(bits,
                             tensorTypeOf(value).getElementTypeBitWidth());
  };
  for (auto [input, map] : llvm::zip_equal(op.getInputs(), op.getRowMaps()))
    if (isByColumn(map.getKind()))
      look(input);
  for (OpResult output : op->getResults())
    if (!op.isScalarResult(output.getResultNumber()))
      look(output);
  return 8 * kVectorBytes / bits;
}

LogicalResult StepLowering::lowerRows(RowsOp op) {
  SmallVector<Value> buffers;
  SmallVector<int64_t> access, dtypes, strides, groups;
  int64_t aligned = elementsOfLoad(op), columns = op.getColumns();
  bool isScattered = false;
  auto add = [&](Value value, const Place &place, qlora_access mode,
                 MapKind kind) {
    RankedTensorType type = tensorTypeOf(value);
    buffers.push_back(view(place, value));
    access.push_back(mode);
    dtypes.push_back(*elementDtype(type.getElementType()));
    strides.push_back(place.stride);
    groups.push_back(kind == MapKind::Full ? matrixColumns(type) / columns : 1);
    isScattered |=
        kind == MapKind::Scalar && place.stride != matrixColumns(type);
    if (isByColumn(kind))
      aligned = alignedElements(aligned, place, columns,
                                type.getElementTypeBitWidth() / 8);
  };
  for (auto [input, map] : llvm::zip_equal(op.getInputs(), op.getRowMaps()))
    add(input, placeOf(input), QLORA_READ, map.getKind());
  for (OpResult output : op->getResults())
    add(output, placeOf(output), QLORA_WRITE,
        op.isScalarResult(output.getResultNumber()) ? MapKind::Scalar
                                                    : MapKind::Full);
  if (isScattered)
    return op.emitOpError("cannot be lowered: a result of one number per row "
                          "is a range of a wider tensor");
  launch(kernels.generated(op, dtypes, strides, groups, aligned), buffers,
         access, dtypes, {}, {}, rowCount(op), labelOf(op));
  return success();
}

LogicalResult StepLowering::lowerLibrary(LibraryOp library) {
  Operation *op = library;
  KernelCall call = library.getKernelCall();
  SmallVector<Value> buffers;
  SmallVector<int64_t> access, dtypes, absent;
  bool added = false;
  for (auto [i, value] : llvm::enumerate(call.operands)) {
    if (!value) {
      absent.push_back(i);
      continue;
    }
    const KernelOperand &operand = call.op->operands[i];
    const bool isResult = value.getDefiningOp() == op;
    const bool hasStride = call.mayHaveStride(i);
    Place place = isResult || hasStride ? placeOf(value) : densePlaceOf(value);
    bool continues = isResult && startResult(cast<OpResult>(value), operand);
    added |= continues;
    buffers.push_back(view(place, value));
    access.push_back(!isResult ? QLORA_READ
                               : (continues ? QLORA_READ_WRITE : QLORA_WRITE));
    dtypes.push_back(*elementDtype(tensorTypeOf(value).getElementType()));
    if (hasStride)
      call.constants[*operand.stride] = place.stride;
  }
  if (added && isa<AccumulatingOp>(op))
    call.constants[call.op->constantIndex("beta")] = doubleBits(1.0);
  launch(kernels.library(call.op->name), buffers, access, dtypes, absent,
         call.constants, 0, labelOf(op));
  return success();
}

/// Prepares the memory of a result that a library op adds to: copies the
/// initial value there, or fills the memory with zeros. Returns false, and does
/// nothing, if the op overwrites the memory.
bool StepLowering::startResult(OpResult result, const KernelOperand &operand) {
  if (memory.isAdded(result))
    return true;
  if (std::optional<MemoryTie> tie = StepMemory::continuedBy(result)) {
    Value init = tie->operand->get();
    if (memory.placeOf(init) != memory.placeOf(result))
      launchCopy("copy_rows", init, placeOf(init), placeOf(result), "copy");
    return true;
  }
  // A kernel without a beta always adds, so its result must start at zero.
  if (!operand.isRead || isa<AccumulatingOp>(result.getOwner()))
    return false;
  program::FillOp::create(b, result.getLoc(), view(placeOf(result), result));
  return true;
}

/// Copies the operands that were not written directly into the result.
void StepLowering::lowerConcat(ConcatOp op) {
  for (const MemoryRange &part : op.getMemoryRanges()) {
    MemoryPlace to = placeWithin(memory.placeOf(part.whole), part);
    if (memory.placeOf(part.part) != to)
      launchCopy("copy_rows", part.part, placeOf(part.part), at(to),
                 labelOf(op));
  }
}

/// Adds or copies each value that was not computed directly in its destination.
void StepLowering::lowerStores(MemoryOp op) {
  for (const MemoryStore &store : op.getMemoryStores()) {
    if (memory.isMadeInPlace(store))
      continue;
    Value value = store.value->get();
    auto name = dyn_cast_or_null<StringAttr>(store.memory.name);
    launchCopy(store.adds ? "accumulate" : "copy_rows", value, placeOf(value),
               at(memory.placeOf(store)), name ? name.str() : labelOf(op));
  }
}

LogicalResult StepLowering::lower(Operation &op) {
  return TypeSwitch<Operation *, LogicalResult>(&op)
      .Case<RowsOp>([&](auto op) { return lowerRows(op); })
      .Case<LibraryOp>([&](auto op) { return lowerLibrary(op); })
      .Case<ConcatOp>([&](auto op) { return lowerConcat(op), success(); })
      .Case<AllReduceOp>([&](auto op) { return lowerAllReduce(op), success(); })
      .Case<AllGatherOp, ReduceScatterOp, AllToAllOp>(
          [&](auto op) { return lowerTogether(*op, op.getRanks()), success(); })
      .Case<AllSumOp>([&](auto op) { return lowerAllSum(op), success(); })
      .Case<SendOp>([&](auto op) { return lowerSend(op), success(); })
      .Case<ReceiveOp>([&](auto op) { return lowerReceive(op), success(); })
      .Case<ScatterGradientOp>(
          [&](auto op) { return lowerScatter(op), success(); })
      .Case<GatherWeightOp, GatherFlatOp>(
          [&](auto op) { return lowerGather(op), success(); })
      .Case<CopyToHostOp, CopyFromHostOp>(
          [&](auto op) { return lowerCopy(op), success(); })
      .Case<ClearOp>([&](ClearOp op) {
        program::FillOp::create(
            b, op.getLoc(),
            outsidePlace(op.getMemoryStores().front().memory, {}).buffer);
        return success();
      })
      .Case<WeightOp, WeightPieceOp, SplitOp, FlatOp>(
          [](auto) { return success(); })
      .Case<AccumulateOp, ResultOp, StoreFlatOp, InitializeOp>([&](auto op) {
        return lowerStores(cast<MemoryOp>(op.getOperation())), success();
      })
      .Default([](Operation *op) {
        return op->emitOpError("cannot be lowered: it is neither a row, "
                               "library nor view op (did fuse-rows run?)");
      });
}

FailureOr<program::EntryOp> StepLowering::run(OpBuilder &outer) {
  const auto kind = step.getKind() == StepKind::Accumulate
                        ? program::EntryKind::AccumulateLast
                        : *program::symbolizeEntryKind(
                              stringifyStepKind(step.getKind()));
  auto entry = program::EntryOp::create(outer, step.getLoc(), kind,
                                        step.getBatch(), step.getLength());
  b.setInsertionPointToEnd(&entry.getBody().emplaceBlock());
  bindInputs();
  bindResults();
  for (Operation &op : step.getBody().front()) {
    Block &block = entry.getBody().front();
    Operation *before = block.empty() ? nullptr : &block.back();
    if (failed(lower(op)))
      return failure();
    if (phaseOf(&op) != StepPhase::Exchange)
      continue;
    for (Operation *made = before ? before->getNextNode() : &block.front();
         made; made = made->getNextNode())
      if (!isa<program::BufferOp, program::ViewOp>(made))
        made->setAttr(kOnceAStepAttr, b.getUnitAttr());
  }
  return entry;
}
