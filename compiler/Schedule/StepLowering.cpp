// SPDX-License-Identifier: MIT

// Lowering of one train.step: one command or a few for each op.

#include "compiler/Graph/Overwrite.h"
#include "compiler/Schedule/StepLoweringState.h"

#include "llvm/ADT/TypeSwitch.h"

#include "runtime/Kernels/KernelTable.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;
using program::Arena;

static constexpr int64_t kAlign = kArenaAlignment;
/// Of one load.
static constexpr int64_t kVectorBytes = 16;

int64_t qlora::inputBytes(int64_t tokens) {
  return 4 * llvm::alignTo(4 * tokens, kAlign);
}
int64_t qlora::resultBytes(int64_t tokens) {
  return 3 * kAlign + llvm::alignTo(4 * tokens, kAlign);
}

//===----------------------------------------------------------------------===//
// Commands
//===----------------------------------------------------------------------===//

void StepLowering::launch(FlatSymbolRefAttr kernel, ArrayRef<Value> buffers,
                          ArrayRef<int64_t> access, ArrayRef<int64_t> dtypes,
                          ArrayRef<int64_t> absent,
                          ArrayRef<int64_t> constants, int64_t rows,
                          StringRef label) {
  program::LaunchOp::create(
      b, step.getLoc(), kernel, buffers, b.getDenseI64ArrayAttr(access),
      b.getDenseI64ArrayAttr(dtypes), b.getDenseI64ArrayAttr(absent),
      b.getDenseI64ArrayAttr(constants), b.getI64IntegerAttr(rows),
      b.getStringAttr(label));
}

/// `kernel` is accumulate or copy_rows: to (+)= from.
void StepLowering::launchCopy(StringRef kernel, Value value, const Place &from,
                              const Place &to, qlora_dtype toType,
                              StringRef label) {
  RankedTensorType type = tensorTypeOf(value);
  int64_t columns = matrixColumns(type);
  Value target = program::ViewOp::create(
      b, value.getLoc(), to.buffer, to.offset,
      spanBytes(to, type.clone(toType == QLORA_DTYPE_F32
                                   ? Type(b.getF32Type())
                                   : type.getElementType())));
  launch(kernels.library(kernel), {view(from, value), target},
         {QLORA_READ,
          kernel == "accumulate" ? QLORA_READ_WRITE : QLORA_WRITE},
         {*elementDtype(type.getElementType()), toType}, {},
         {type.getNumElements() / columns, columns, from.stride, to.stride}, 0,
         label);
}

/// Results that are written over an operand which nothing reads afterwards.
void StepLowering::placeOverOperands(RowsOp op) {
  DenseSet<Value> taken;
  for (auto [operand, result] : overwritesOf(op)) {
    Place from = placeOf(operand);
    auto buffer = from.buffer.getDefiningOp<program::BufferOp>();
    if (planned.contains(result) || places.contains(result) ||
        usesLeft[operand] != llvm::count(op.getInputs(), operand) ||
        buffer.getArena() != Arena::Activation ||
        !taken.insert(operand).second)
      continue;
    places[result] = from;
  }
}

/// At most `elements`, such that every row of `columns` at `place` starts at a
/// multiple of them, or of a load.
static int64_t alignedElements(int64_t elements, const Place &place,
                               int64_t columns, int64_t elementBytes) {
  auto buffer = place.buffer.getDefiningOp<program::BufferOp>();
  int64_t start = buffer.getOffset().value_or(0) + place.offset;
  while ((start % std::min(elements * elementBytes, kVectorBytes)) ||
         place.stride % elements || columns % elements)
    elements /= 2;
  return elements;
}

/// True for what a row has an element of in each column.
static bool isByColumn(MapKind kind) {
  return kind != MapKind::Scalar && kind != MapKind::Global;
}

/// The elements of a load of the widest type that has one in each column.
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
    groups.push_back(kind == MapKind::Full
                         ? matrixColumns(type) / columns
                         : 1);
    isScattered |= kind == MapKind::Scalar &&
                   place.stride != matrixColumns(type);
    if (isByColumn(kind))
      aligned = alignedElements(aligned, place, columns,
                                type.getElementTypeBitWidth() / 8);
  };
  for (auto [input, map] : llvm::zip_equal(op.getInputs(), op.getRowMaps()))
    add(input, placeOf(input), QLORA_READ, map.getKind());
  placeOverOperands(op);
  for (OpResult output : op->getResults())
    add(output, places.contains(output) ? placeOf(output)
                                        : resultPlace(output),
        QLORA_WRITE,
        op.isScalarResult(output.getResultNumber()) ? MapKind::Scalar
                                                    : MapKind::Full);
  if (isScattered)
    return op.emitOpError("cannot be lowered: one number a row in a part of "
                          "something wider");
  launch(kernels.generated(op, dtypes, strides, groups, aligned), buffers,
         access, dtypes, {}, {}, rowCount(op), labelOf(op));
  return success();
}

/// True where no other value has a byte of `part`: it is a range of a whole
/// that is split and not read otherwise.
static bool isOnlyOwner(Value part) {
  auto split = part.getDefiningOp<SplitOp>();
  return split && split.getWhole().hasOneUse() &&
         isa_and_nonnull<LibraryOp, RowsOp>(split.getWhole().getDefiningOp());
}

/// The place of a result that continues `operand`: the operand's own if
/// nothing reads that afterwards, else a copy.
Place StepLowering::tiedPlace(OpOperand &operand, Value result,
                              bool &continues) {
  Value init = operand.get();
  Place from = placeOf(init);
  Operation *def = init.getDefiningOp();
  bool shared = !def || isa<WeightOp>(def) ||
                (isa<ViewOp>(def) && !isOnlyOwner(init)) ||
                llvm::any_of(init.getUsers(), llvm::IsaPred<ViewOp>);
  continues = true;
  if (!planned.contains(result) && usesLeft[init] == 1 && !shared)
    return places[result] = from;
  Place to = resultPlace(result);
  launchCopy("copy_rows", init, from, to,
             *elementDtype(tensorTypeOf(result).getElementType()), "copy");
  return to;
}

LogicalResult StepLowering::lowerLibrary(LibraryOp library) {
  Operation *op = library;
  KernelCall call = library.getKernelCall();
  const KernelOp *kernel = findKernelOp(call.op);
  SmallVector<Value> buffers;
  SmallVector<int64_t> access, dtypes, absent;
  SmallVector<int64_t> strides(call.arguments.size(), 0);
  bool added = false;
  for (auto [i, argument] : llvm::enumerate(call.arguments)) {
    const KernelOperand &operand = kernel->operands[i];
    if (argument.kind == KernelArgument::Absent ||
        argument.kind == KernelArgument::Workspace) {
      absent.push_back(i);
      continue;
    }
    bool isResult = argument.kind == KernelArgument::Result;
    Value value = isResult ? op->getResult(argument.index)
                           : op->getOperand(argument.index);
    bool continues = adds.contains(value);
    Place place;
    if (!isResult) {
      place = placeOf(value);
    } else if (OpOperand *tied = library.getTiedOperand(argument.index)) {
      place = tiedPlace(*tied, value, continues);
    } else {
      place = resultPlace(value);
      // A kernel without a beta always adds, so it starts from zero.
      if (operand.isRead && !continues && !isa<AccumulatingOp>(op)) {
        program::FillOp::create(b, op->getLoc(), view(place, value));
        continues = true;
      }
    }
    added |= isResult && continues;
    buffers.push_back(view(place, value));
    access.push_back(!isResult ? QLORA_READ
                               : (continues ? QLORA_READ_WRITE : QLORA_WRITE));
    dtypes.push_back(*elementDtype(tensorTypeOf(value).getElementType()));
    strides[i] = place.stride;
  }
  for (auto [constant, operand] : call.strides)
    call.constants[constant] = strides[operand];
  if (added && isa<AccumulatingOp>(op))
    call.constants[kernel->constantIndex("beta")] = doubleBits(1.0);
  launch(kernels.library(call.op), buffers, access, dtypes, absent,
         call.constants, 0, labelOf(op));
  return success();
}

void StepLowering::lowerSplit(SplitOp op) {
  Place whole = placeOf(op.getWhole());
  int64_t offset = whole.offset;
  for (Value part : op.getParts()) {
    places[part] = {whole.buffer, offset, whole.stride};
    offset += matrixColumns(tensorTypeOf(part)) *
              tensorTypeOf(part).getElementTypeBitWidth() / 8;
  }
}

void StepLowering::lowerConcat(ConcatOp op) {
  Place whole = resultPlace(op.getWhole());
  Place target = whole;
  for (Value part : op.getParts()) {
    Place place = placeOf(part);
    if (place.buffer != whole.buffer)
      launchCopy("copy_rows", part, place, target,
                 *elementDtype(tensorTypeOf(part).getElementType()), labelOf(op));
    target.offset += rangeBytes(op, part);
  }
}

void StepLowering::lowerAccumulate(train::AccumulateOp op) {
  Value gradient = op.getGradient();
  if (adds.contains(gradient))
    return;
  const ParameterPlace &place = layout.lookup(op.getParameter());
  Place slot = {arenaBuffer(Arena::Gradient, place.offset, place.bytes,
                            QLORA_DTYPE_F32),
                0, matrixColumns(tensorTypeOf(gradient))};
  launchCopy("accumulate", gradient, placeOf(gradient), slot, QLORA_DTYPE_F32,
             labelOf(op));
}

void StepLowering::lowerResult(ResultOp op) {
  if (!op.getAccumulate())
    return;
  launchCopy("accumulate", op.getValue(), placeOf(op.getValue()),
             statisticPlace(op.getName() == "loss_sum" ? kLossSumElement
                                                       : kLabelCountElement),
             QLORA_DTYPE_F32, op.getName());
}

void StepLowering::lowerAllReduce(AllReduceOp op) {
  Value buffer = arenaBuffer(Arena::Gradient, 4 * op.getOffset(),
                             4 * op.getElements(), QLORA_DTYPE_F32);
  program::AllReduceOp::create(b, op.getLoc(), op.getBucket(), buffer);
}

LogicalResult StepLowering::lower(Operation &op) {
  return TypeSwitch<Operation *, LogicalResult>(&op)
      .Case<WeightOp, StoreFlatOp>([](auto) { return success(); })
      .Case<RowsOp>([&](auto op) { return lowerRows(op); })
      .Case<LibraryOp>([&](auto op) { return lowerLibrary(op); })
      .Case<SplitOp>([&](auto op) { return lowerSplit(op), success(); })
      .Case<ConcatOp>([&](auto op) { return lowerConcat(op), success(); })
      .Case<train::AccumulateOp>(
          [&](auto op) { return lowerAccumulate(op), success(); })
      .Case<ResultOp>([&](auto op) { return lowerResult(op), success(); })
      .Case<AllReduceOp>(
          [&](auto op) { return lowerAllReduce(op), success(); })
      .Case<FlatOp>([&](FlatOp op) {
        places[op.getResult()] = flatPlace(op.getFlat(), op.getStatistics());
        return success();
      })
      .Case<ClearOp>([&](ClearOp op) {
        program::FillOp::create(b, op.getLoc(),
                                flatPlace(op.getFlat(), true).buffer);
        return success();
      })
      .Default([](Operation *op) {
        return op->emitOpError("cannot be lowered: it is neither a row, "
                               "library nor view op (did fuse-rows run?)");
      });
}

FailureOr<program::EntryOp> StepLowering::run(OpBuilder &outer) {
  auto kind = step.getKind() == StepKind::Accumulate
                  ? program::EntryKind::AccumulateLast
              : step.getKind() == StepKind::Update
                  ? program::EntryKind::Update
                  : program::EntryKind::Evaluate;
  auto entry = program::EntryOp::create(outer, step.getLoc(), kind,
                                        step.getBatch(), step.getLength());
  b.setInsertionPointToEnd(&entry.getBody().emplaceBlock());
  int64_t inputStride = llvm::alignTo(4 * tokens, kAlign);
  for (auto [argument, input] :
       llvm::zip_equal(step.getBody().getArguments(),
                       step.getInputs().getAsValueRange<StringAttr>())) {
    auto kind = llvm::StringSwitch<qlora_binding_kind>(input)
                    .Case("ids", QLORA_INPUT_IDS)
                    .Case("targets", QLORA_INPUT_TARGETS)
                    .Case("positions", QLORA_INPUT_POSITIONS)
                    .Default(QLORA_INPUT_SEGMENTS);
    RankedTensorType type = tensorTypeOf(argument);
    Value buffer = arenaBuffer(Arena::Input, kind * inputStride,
                               tensorBytes(type), QLORA_DTYPE_I32);
    places[argument] = {buffer, 0, matrixColumns(type)};
    bind(kind, buffer);
  }
  countUses();
  placeResults();
  for (Operation &op : step.getBody().front()) {
    if (failed(lower(op)))
      return failure();
    markSaved(op);
    for (Value operand : op.getOperands())
      --usesLeft[operand];
  }
  return entry;
}

FailureOr<program::EntryOp> qlora::lowerStep(StepOp step, OpBuilder &builder,
                                             const ParameterLayout &layout,
                                             KernelSymbols &kernels,
                                             int64_t tokens) {
  return StepLowering(step, layout, kernels, tokens).run(builder);
}
