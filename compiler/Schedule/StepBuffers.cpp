// SPDX-License-Identifier: MIT

// Lowers one train.step: creates the buffers of its values.

#include "compiler/Schedule/StepLowering.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;
using program::Arena;

static constexpr int64_t kAlign = kArenaAlignment;

int64_t qlora::inputBytes(int64_t inputs, int64_t tokens) {
  return inputs * llvm::alignTo(4 * tokens, kAlign);
}

namespace {
/// A result of a step that the runtime reads.
struct StepResult {
  StringLiteral name;
  qlora_binding_kind kind;
  qlora_per per;
};
} // namespace

static constexpr StepResult kResults[] = {
#define QLORA_STATISTIC(NAME, NUMBER, CASE, WORD)                              \
  {#WORD, QLORA_RESULT_##NAME, QLORA_PER_STEP},
#define QLORA_RESULT(NAME, NUMBER, CASE, WORD, PER)                            \
  {#WORD, QLORA_RESULT_##NAME, QLORA_PER_##PER},
#include "runtime/ABI/Enums.def"
};

/// Bytes of the numbers at the start of the result arena. A result of several
/// values follows; no step has two of them.
static constexpr int64_t kNumberBytes =
    llvm::alignTo(4 * std::size(kResults), kAlign);

/// Returns a result's offset in the result arena.
static int64_t offsetOf(const StepResult &result) {
  return result.per == QLORA_PER_STEP ? 4 * (&result - kResults) : kNumberBytes;
}

int64_t qlora::resultArenaBytes(StepOp step) {
  int64_t bytes = 4;
  for (auto result : step.getBody().getOps<ResultOp>())
    bytes = std::max(bytes, tensorBytes(tensorOf(result.getValue())));
  return kNumberBytes + llvm::alignTo(bytes, kAlign);
}

static const StepResult &resultOf(const OutsideMemory &outside) {
  StringRef name = cast<StringAttr>(outside.name).getValue();
  return *llvm::find_if(
      kResults, [&](const StepResult &result) { return result.name == name; });
}

//===----------------------------------------------------------------------===//
// Outside of the step
//===----------------------------------------------------------------------===//

Value StepLowering::arenaBuffer(Arena arena, int64_t offset, int64_t bytes,
                                qlora_dtype dtype, const BufferPieces &pieces) {
  auto buffer =
      program::BufferOp::create(b, step.getLoc(), arena, offset, bytes,
                                program::DType(dtype), /*label=*/"",
                                /*saved=*/false, pieces.count);
  buffer.setPiecesOf(pieces.of);
  buffer.setStep(pieces.step);
  return buffer;
}

Place StepLowering::flatPlace(const OutsideMemory &outside) {
  const MemorySpace space = outside.space;
  const bool isRounded = space == MemorySpace::Rounded;
  const Arena arena = space == MemorySpace::Trainable ? Arena::Trainable
                      : space == MemorySpace::Gradient ? Arena::Gradient
                      : space == MemorySpace::Residual ? Arena::Residual
                                                       : Arena::Rounded;
  const int64_t width = isRounded ? 2 : 4;
  const int64_t rowBytes = width * kFlatColumns;
  const bool isWhole = outside.rows == 0;
  return {arenaBuffer(arena, isWhole ? 0 : rowBytes * (1 + outside.row),
                      isWhole ? layout.getFlatBytes() / 4 * width
                              : rowBytes * outside.rows,
                      isRounded ? QLORA_DTYPE_BF16 : QLORA_DTYPE_F32,
                      {outside.pieces, program::Group(outside.piecesOf)}),
          0, kFlatColumns};
}

/// Returns the part of a parameter that this rank uses (#model.part). `width`
/// is the bytes of an element in `arena`.
Place StepLowering::partPlace(const ParameterPlace &place, Arena arena,
                              int64_t width, PartAttr part,
                              RankedTensorType type) {
  const bool isOfRows = part.getDimension() + 1 < type.getRank();
  const int64_t columns = matrixColumns(type);
  const int64_t stride = part.getDimension() > 0 ? part.getSize() : columns;
  const int64_t unit = width * (isOfRows ? columns : 1);
  return {arenaBuffer(arena, place.offset * width / 4 + part.getFirst() * unit,
                      width * ((matrixRows(type) - 1) * stride + columns),
                      *elementDtype(type.getElementType()),
                      {part.getRanks(), program::Group(part.getOf()),
                       part.getLength() / part.getRanks() * unit}),
          0, stride};
}

/// Returns the place of a tensor of `type` in an arena that outlives the step.
Place StepLowering::outsidePlace(const OutsideMemory &outside,
                                 RankedTensorType type) {
  if (!outside.name && outside.space != MemorySpace::State)
    return flatPlace(outside);
  auto buffer = [&](Arena arena, int64_t offset, int64_t bytes) {
    return Place{arenaBuffer(arena, offset, bytes,
                             *elementDtype(type.getElementType())),
                 0, matrixColumns(type)};
  };
  if (!outside.name)
    return buffer(Arena::State, outside.row, outside.rows);
  if (auto symbol = dyn_cast<FlatSymbolRefAttr>(outside.name)) {
    ParameterPlace place = layout.lookup(symbol.getValue());
    if (outside.part) {
      const bool isRounded = outside.space == MemorySpace::Rounded;
      return partPlace(place,
                       isRounded ? Arena::Rounded
                       : outside.space == MemorySpace::Gradient
                           ? Arena::Gradient
                           : place.arena,
                       isRounded ? 2 : 4, outside.part, type);
    }
    place.bytes = place.arenaBytes();
    if (outside.rows) {
      place.offset += 4 * outside.row * matrixColumns(type);
      place.bytes = 4 * type.getNumElements();
    }
    // The rounded arena has the trainable arena's layout, in half the bytes.
    if (outside.space == MemorySpace::Rounded)
      return buffer(Arena::Rounded, place.offset / 2, place.bytes / 2);
    return buffer(outside.space == MemorySpace::Gradient   ? Arena::Gradient
                  : outside.space == MemorySpace::Residual ? Arena::Residual
                                                           : place.arena,
                  place.offset, place.bytes);
  }
  if (outside.space == MemorySpace::Input) {
    auto input = llvm::find(kStepInputs, cast<StringAttr>(outside.name));
    return buffer(Arena::Input,
                  (input - std::begin(kStepInputs)) *
                      llvm::alignTo(4 * tokens, kAlign),
                  tensorBytes(type));
  }
  const StepResult &result = resultOf(outside);
  if (outside.space != MemorySpace::Gradient)
    return buffer(Arena::Result, offsetOf(result), tensorBytes(type));
  return buffer(Arena::Gradient, 4 * (result.kind - QLORA_RESULT_LOSS_SUM),
                tensorBytes(type));
}

/// Binds the inputs. Bindings and kStepInputs have the same order.
void StepLowering::bindInputs() {
  for (BlockArgument argument : step.getBody().getArguments()) {
    auto name =
        cast<StringAttr>(memory.rootOf(argument).outside->name).getValue();
    program::BindOp::create(b, step.getLoc(),
                            program::Binding(llvm::find(kStepInputs, name) -
                                             std::begin(kStepInputs)),
                            placeOf(argument).buffer);
  }
}

void StepLowering::bindResults() {
  DenseSet<Attribute> bound; // several chunks may add to one result
  for (auto op : step.getBody().getOps<MemoryOp>())
    for (const MemoryStore &store : op.getMemoryStores())
      if (isa_and_nonnull<StringAttr>(store.memory.name) &&
          bound.insert(store.memory.name).second)
        program::BindOp::create(b, step.getLoc(),
                                program::Binding(resultOf(store.memory).kind),
                                at(memory.placeOf(store)).buffer);
}

//===----------------------------------------------------------------------===//
// Inside the step
//===----------------------------------------------------------------------===//

/// Returns the bytes of a buffer for `value`, with the padding of the last
/// shard if it was gathered from shards or will be scattered into them.
int64_t StepLowering::bytesFor(Value value) const {
  if (auto gather = value.getDefiningOp<GatherWeightOp>())
    return layout.gatheredBytes(gather.getParameter()) /
           (gather.getRounded() ? 2 : 1);
  int64_t bytes = tensorBytes(tensorTypeOf(value));
  for (Operation *user : value.getUsers())
    if (auto scatter = dyn_cast<ScatterGradientOp>(user))
      bytes = std::max(bytes, layout.gatheredBytes(scatter.getParameter()));
  return bytes;
}

/// True if the buffer of `value` has space for padding after the value, and
/// nothing else has been written to that space.
bool StepLowering::hasRoomBehind(Value value) {
  const MemoryRoot &root = memory.rootOf(value);
  const int64_t bytes = tensorBytes(tensorTypeOf(value));
  auto buffer = placeOf(value).buffer.getDefiningOp<program::BufferOp>();
  return !root.outside && memory.placeOf(value).offset == 0 &&
         int64_t(buffer.getBytes()) == bytesFor(value) &&
         llvm::all_of(root.values, [&](Value other) {
           return tensorBytes(tensorTypeOf(other)) <= bytes;
         });
}

/// Creates a buffer for `value`: in the saved arena for a copy to the host,
/// else in the activation arena.
Place StepLowering::allocate(Value value, int64_t bytes, bool isSaved) {
  RankedTensorType type = tensorTypeOf(value);
  Operation *def = value.getDefiningOp();
  // A gathered weight is untyped bytes until it is read.
  const qlora_dtype dtype = isa<GatherWeightOp>(def)
                                ? QLORA_DTYPE_U8
                                : *elementDtype(type.getElementType());
  auto buffer = program::BufferOp::create(
      b, def->getLoc(),
      isa<CopyToHostOp>(def) ? Arena::Saved : Arena::Activation, std::nullopt,
      bytes, program::DType(dtype), labelOf(def), isSaved);
  buffer.setBackward(isBackward(def));
  buffer.setRecomputed(phaseOf(def) == StepPhase::Recomputed);
  return {buffer, 0, matrixColumns(type)};
}

/// True if the backward reads the memory of a forward op's result, or a copy
/// of the result that was brought back from host memory.
bool StepLowering::isSaved(const MemoryRoot &root) const {
  return llvm::any_of(root.values, [](Value value) {
    if (value.getDefiningOp<CopyFromHostOp>())
      return true;
    return !isBackward(value.getDefiningOp()) &&
           llvm::any_of(value.getUsers(), [](Operation *user) {
             auto store = dyn_cast<MemoryOp>(user);
             return isBackward(user) &&
                    !(store && !store.getMemoryStores().empty());
           });
  });
}

/// Returns the buffer of a memory root (StepMemory.h). Creates it on first use.
Value StepLowering::bufferOf(unsigned root) {
  Value &buffer = buffers[root];
  if (buffer)
    return buffer;
  const MemoryRoot &memoryRoot = memory.root(root);
  Value first = memoryRoot.first;
  if (memoryRoot.outside)
    return buffer =
               outsidePlace(*memoryRoot.outside, tensorTypeOf(first)).buffer;
  int64_t bytes = 0;
  for (Value value : memoryRoot.values)
    bytes = std::max(bytes, bytesFor(value));
  return buffer = allocate(first, bytes, isSaved(memoryRoot)).buffer;
}

Place StepLowering::at(const MemoryPlace &place) {
  return {bufferOf(place.root), place.offset, place.stride};
}

Place StepLowering::placeOf(Value value) { return at(memory.placeOf(value)); }

/// True if a tensor of `type` at `place` has no gaps between its rows.
bool StepLowering::isDense(const Place &place, RankedTensorType type) {
  return place.stride == matrixColumns(type) || matrixRows(type) == 1;
}

/// Returns the place of `value`, or of a new copy if its rows are not
/// contiguous.
Place StepLowering::densePlaceOf(Value value) {
  Place place = placeOf(value);
  RankedTensorType type = tensorTypeOf(value);
  if (isDense(place, type))
    return place;
  Place dense = allocate(value, tensorBytes(type), /*isSaved=*/false);
  launchCopy("copy_rows", value, place, dense, "copy");
  return dense;
}

Value StepLowering::view(const Place &place, Value value) {
  int64_t bytes = spanBytes(tensorTypeOf(value), place.stride);
  auto buffer = place.buffer.getDefiningOp<program::BufferOp>();
  if (!place.offset && bytes == static_cast<int64_t>(buffer.getBytes()))
    return place.buffer;
  return program::ViewOp::create(b, value.getLoc(), place.buffer, place.offset,
                                 bytes);
}
