// SPDX-License-Identifier: MIT

// Lowering of one train.step: buffers for values, commands for ops.

#include "compiler/Schedule/StepLowering.h"

#include "llvm/ADT/TypeSwitch.h"

#include "runtime/ABI/module.h"
#include "runtime/Kernels/KernelTable.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;
using program::Arena;

static constexpr int64_t kAlign = kArenaAlignment;

int64_t qlora::inputBytes(int64_t tokens) {
  return 4 * llvm::alignTo(4 * tokens, kAlign);
}
int64_t qlora::resultBytes(int64_t tokens) {
  return 3 * kAlign + llvm::alignTo(4 * tokens, kAlign);
}

namespace {

/// A value in memory: part of a buffer, with a row stride in elements.
struct Place {
  Value buffer;        ///< of a program.buffer
  int64_t offset = 0;  ///< bytes into it
  int64_t stride = 0;  ///< elements from one matrix row to the next
};

class StepLowering {
public:
  StepLowering(StepOp step, const ParameterLayout &layout,
               KernelSymbols &kernels, int64_t tokens)
      : step(step), layout(layout), kernels(kernels), tokens(tokens) {}

  FailureOr<program::EntryOp> run(OpBuilder &outer);

private:
  // Before: what decides where a result is written.
  void countUses();
  void placeResults();
  void placeGradient(train::AccumulateOp op);
  void placeParts(ConcatOp op);

  // Ops.
  LogicalResult lower(Operation &op);
  LogicalResult lowerRows(RowsOp op);
  LogicalResult lowerLibrary(LibraryOp op);
  void lowerSplit(SplitOp op);
  void lowerConcat(ConcatOp op);
  void lowerAccumulate(train::AccumulateOp op);
  void lowerResult(ResultOp op);
  void lowerAllReduce(AllReduceOp op);

  // Buffers.
  Place allocate(Value value);
  Place placeOf(Value value);
  Place resultPlace(Value value);
  Place tiedPlace(OpOperand &operand, Value result, bool &continues);
  Value arenaBuffer(Arena arena, int64_t offset, int64_t bytes, qlora_dtype);
  Value view(const Place &place, Value value);
  int64_t spanBytes(const Place &place, RankedTensorType type) const;
  Place flatPlace(FlatKind kind, bool statistics);
  Place statisticPlace(int64_t element);
  void bind(qlora_binding_kind kind, Value buffer);

  // Commands.
  void launch(FlatSymbolRefAttr kernel, ArrayRef<Value> buffers,
              ArrayRef<int64_t> access, ArrayRef<int64_t> dtypes,
              ArrayRef<int64_t> absent, ArrayRef<int64_t> constants,
              int64_t rows, StringRef label);
  void launchCopy(StringRef kernel, Value value, const Place &from,
                  const Place &to, qlora_dtype toType, StringRef label);

  StepOp step;
  const ParameterLayout &layout;
  KernelSymbols &kernels;
  int64_t tokens;
  OpBuilder b{step.getContext()};
  DenseMap<Value, Place> places;
  DenseMap<Value, Place> planned; ///< where a result has to be written
  DenseSet<Value> adds;           ///< gradients that their op adds itself
  DenseMap<Value, unsigned> usesLeft;
};

} // namespace

static RankedTensorType tensorOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}

/// The op's place in the model, for traces and errors.
static std::string labelOf(Operation *op) {
  if (auto name = op->getLoc()->findInstanceOf<NameLoc>())
    return name.getName().str();
  return op->getName().getStringRef().str();
}

//===----------------------------------------------------------------------===//
// Buffers
//===----------------------------------------------------------------------===//

Value StepLowering::arenaBuffer(Arena arena, int64_t offset, int64_t bytes,
                                qlora_dtype dtype) {
  return program::BufferOp::create(b, step.getLoc(), arena, offset, bytes,
                                   dtype);
}

/// A new buffer of the activation arena for `value`.
Place StepLowering::allocate(Value value) {
  RankedTensorType type = tensorOf(value);
  Operation *def = value.getDefiningOp();
  bool saved = !def->hasAttr(kBackwardAttr) &&
               llvm::any_of(value.getUsers(), [](Operation *user) {
                 return user->hasAttr(kBackwardAttr) && !isa<ResultOp>(user);
               });
  Value buffer = program::BufferOp::create(
      b, def->getLoc(), Arena::Activation, std::nullopt, tensorBytes(type),
      *elementDtype(type.getElementType()), labelOf(def), saved);
  return {buffer, 0, matrixColumns(type)};
}

/// Where a value is. Weights get their buffer on first use.
Place StepLowering::placeOf(Value value) {
  if (auto known = places.find(value); known != places.end())
    return known->second;
  auto weight = cast<WeightOp>(value.getDefiningOp());
  const ParameterPlace &place = layout.lookup(weight.getParameter());
  RankedTensorType type = tensorOf(value);
  Value buffer = arenaBuffer(place.arena, place.offset, place.bytes,
                             *elementDtype(type.getElementType()));
  return places[value] = {buffer, 0, matrixColumns(type)};
}

/// Where a result is to be written.
Place StepLowering::resultPlace(Value value) {
  auto it = planned.find(value);
  return places[value] = it != planned.end() ? it->second : allocate(value);
}

/// Bytes from a place's start to the end of its last row.
int64_t StepLowering::spanBytes(const Place &place,
                                RankedTensorType type) const {
  int64_t columns = matrixColumns(type);
  if (place.stride == columns || type.getRank() < 2)
    return tensorBytes(type);
  int64_t width = type.getElementTypeBitWidth() / 8;
  return ((matrixRows(type) - 1) * place.stride + columns) * width;
}

Value StepLowering::view(const Place &place, Value value) {
  int64_t bytes = spanBytes(place, tensorOf(value));
  auto buffer = place.buffer.getDefiningOp<program::BufferOp>();
  if (!place.offset && bytes == static_cast<int64_t>(buffer.getBytes()))
    return place.buffer;
  return program::ViewOp::create(b, value.getLoc(), place.buffer, place.offset,
                                 bytes);
}

Place StepLowering::flatPlace(FlatKind kind, bool statistics) {
  static constexpr Arena arenas[] = {Arena::Trainable, Arena::Gradient,
                                     Arena::Moment1, Arena::Moment2};
  int64_t skip = statistics ? 0 : 4 * kFlatColumns;
  return {arenaBuffer(arenas[static_cast<int>(kind)], skip,
                      layout.getFlatBytes() - skip, QLORA_DTYPE_F32),
          0, kFlatColumns};
}

Place StepLowering::statisticPlace(int64_t element) {
  return {arenaBuffer(Arena::Gradient, 4 * element, 4, QLORA_DTYPE_F32), 0, 1};
}

void StepLowering::bind(qlora_binding_kind kind, Value buffer) {
  program::BindOp::create(b, step.getLoc(), kind, buffer);
}

//===----------------------------------------------------------------------===//
// Placement before lowering
//===----------------------------------------------------------------------===//

void StepLowering::countUses() {
  for (Operation &op : step.getBody().front())
    for (Value operand : op.getOperands())
      ++usesLeft[operand];
}

/// True where the op that makes `value` can write it into memory of our
/// choice: it writes every element itself and nothing else shares the buffer.
static bool isPlaceable(Value value) {
  Operation *def = value.getDefiningOp();
  return def && isa<LibraryOp, RowsOp>(def);
}

/// Kernels.def's operand for result `number`.
static unsigned kernelOperand(const KernelCall &call, unsigned number) {
  for (auto [i, argument] : llvm::enumerate(call.arguments))
    if (argument.kind == KernelArgument::Result && argument.index == number)
      return i;
  llvm_unreachable("a library op's results are in its kernel call");
}

/// True where the op can add `value` to what is there: it has a beta, or its
/// kernel always adds.
static bool canAdd(Value value) {
  auto library = value.getDefiningOp<LibraryOp>();
  if (!library)
    return false;
  if (auto accumulating = dyn_cast<AccumulatingOp>(library.getOperation()))
    return !accumulating.getAccumulator();
  KernelCall call = library.getKernelCall();
  const KernelOp *kernel = findKernelOp(call.op);
  unsigned operand =
      kernelOperand(call, cast<OpResult>(value).getResultNumber());
  return kernel->operands[operand].isRead && kernel->operands[operand].isWritten;
}

void StepLowering::placeGradient(train::AccumulateOp op) {
  Value gradient = op.getGradient();
  if (!gradient.hasOneUse() || !canAdd(gradient))
    return;
  const ParameterPlace &place = layout.lookup(op.getParameter());
  Value buffer = arenaBuffer(Arena::Gradient, place.offset, place.bytes,
                             QLORA_DTYPE_F32);
  planned[gradient] = {buffer, 0, matrixColumns(tensorOf(gradient))};
  adds.insert(gradient);
}

void StepLowering::placeParts(ConcatOp op) {
  Place whole = allocate(op.getWhole());
  planned[op.getWhole()] = whole;
  int64_t offset = 0;
  int64_t width =
      tensorOf(op.getWhole()).getElementTypeBitWidth() / 8;
  for (Value part : op.getParts()) {
    if (part.hasOneUse() && isPlaceable(part) && !planned.contains(part))
      planned[part] = {whole.buffer, offset, whole.stride};
    offset += matrixColumns(tensorOf(part)) * width;
  }
}

void StepLowering::placeResults() {
  int64_t resultOffset[] = {0, kAlign, 2 * kAlign, 3 * kAlign};
  for (Operation &op : step.getBody().front()) {
    TypeSwitch<Operation *>(&op)
        .Case<train::AccumulateOp>([&](auto op) { placeGradient(op); })
        .Case<ConcatOp>([&](auto op) { placeParts(op); })
        .Case<StoreFlatOp>([&](StoreFlatOp op) {
          planned[op.getValue()] = flatPlace(op.getFlat(), false);
        })
        .Case<ResultOp>([&](ResultOp op) {
          auto kind = llvm::StringSwitch<qlora_binding_kind>(op.getName())
                          .Case("loss_sum", QLORA_RESULT_LOSS_SUM)
                          .Case("label_count", QLORA_RESULT_LABEL_COUNT)
                          .Case("correct", QLORA_RESULT_CORRECT)
                          .Default(QLORA_RESULT_GRAD_NORM);
          if (op.getAccumulate()) {
            int64_t element = kind == QLORA_RESULT_LOSS_SUM
                                  ? kLossSumElement
                                  : kLabelCountElement;
            return bind(kind, statisticPlace(element).buffer);
          }
          static constexpr int order[] = {0, 1, 3, 2};
          RankedTensorType type = tensorOf(op.getValue());
          Value buffer = arenaBuffer(
              Arena::Result, resultOffset[order[kind - QLORA_RESULT_LOSS_SUM]],
              tensorBytes(type), *elementDtype(type.getElementType()));
          planned[op.getValue()] = {buffer, 0, matrixColumns(type)};
          bind(kind, buffer);
        });
  }
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
  RankedTensorType type = tensorOf(value);
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

LogicalResult StepLowering::lowerRows(RowsOp op) {
  SmallVector<Value> buffers;
  SmallVector<int64_t> access, dtypes, strides, groups;
  auto add = [&](Value value, const Place &place, qlora_access mode,
                 MapKind kind) {
    RankedTensorType type = tensorOf(value);
    buffers.push_back(view(place, value));
    access.push_back(mode);
    dtypes.push_back(*elementDtype(type.getElementType()));
    strides.push_back(place.stride);
    groups.push_back(kind == MapKind::Full
                         ? matrixColumns(type) / op.getColumns()
                         : 1);
  };
  for (auto [input, map] : llvm::zip_equal(op.getInputs(), op.getRowMaps()))
    add(input, placeOf(input), QLORA_READ, map.getKind());
  for (Value output : op.getOutputs())
    add(output, resultPlace(output), QLORA_WRITE, MapKind::Full);
  int64_t rows =
      tensorOf(op.getResult(0)).getNumElements() / op.getColumns();
  launch(kernels.generated(op, dtypes, strides, groups), buffers, access,
         dtypes, {}, {}, rows, labelOf(op));
  return success();
}

/// The place of a result that continues `operand`: the operand's own if
/// nothing reads that afterwards, else a copy.
Place StepLowering::tiedPlace(OpOperand &operand, Value result,
                              bool &continues) {
  Value init = operand.get();
  Place from = placeOf(init);
  Operation *def = init.getDefiningOp();
  bool shared = !def || isa<ViewOp, WeightOp>(def) ||
                llvm::any_of(init.getUsers(), llvm::IsaPred<ViewOp>);
  continues = true;
  if (!planned.contains(result) && usesLeft[init] == 1 && !shared)
    return places[result] = from;
  Place to = resultPlace(result);
  launchCopy("copy_rows", init, from, to,
             *elementDtype(tensorOf(result).getElementType()), "copy");
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
    dtypes.push_back(*elementDtype(tensorOf(value).getElementType()));
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
    offset += matrixColumns(tensorOf(part)) *
              tensorOf(part).getElementTypeBitWidth() / 8;
  }
}

void StepLowering::lowerConcat(ConcatOp op) {
  Place whole = resultPlace(op.getWhole());
  Place target = whole;
  for (Value part : op.getParts()) {
    Place place = placeOf(part);
    if (place.buffer != whole.buffer)
      launchCopy("copy_rows", part, place, target,
                 *elementDtype(tensorOf(part).getElementType()), labelOf(op));
    target.offset += matrixColumns(tensorOf(part)) *
                     tensorOf(part).getElementTypeBitWidth() / 8;
  }
}

void StepLowering::lowerAccumulate(train::AccumulateOp op) {
  Value gradient = op.getGradient();
  if (adds.contains(gradient))
    return;
  const ParameterPlace &place = layout.lookup(op.getParameter());
  Place slot = {arenaBuffer(Arena::Gradient, place.offset, place.bytes,
                            QLORA_DTYPE_F32),
                0, matrixColumns(tensorOf(gradient))};
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
    RankedTensorType type = tensorOf(argument);
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
