// SPDX-License-Identifier: MIT

// Where the values of a step live: buffers of the arenas, and the places that
// are decided before anything is lowered.

#include "compiler/Graph/Accumulate.h"
#include "compiler/Schedule/StepLoweringState.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;
using program::Arena;

static constexpr int64_t kAlign = kArenaAlignment;

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
  RankedTensorType type = tensorTypeOf(value);
  Operation *def = value.getDefiningOp();
  auto buffer = program::BufferOp::create(
      b, def->getLoc(), Arena::Activation, std::nullopt, tensorBytes(type),
      *elementDtype(type.getElementType()), labelOf(def));
  buffer.setBackward(def->hasAttr(kBackwardAttr));
  buffer.setRecomputed(def->hasAttr(kRecomputedAttr));
  return {buffer, 0, matrixColumns(type)};
}

/// Marks the buffers of what the backward reads of a forward op: those that
/// were made for its results, and those that it wrote over or a part of.
void StepLowering::markSaved(Operation &op) {
  if (op.hasAttr(kBackwardAttr))
    return;
  for (Value value : op.getResults()) {
    auto place = places.find(value);
    bool isRead = llvm::any_of(value.getUsers(), [](Operation *user) {
      return user->hasAttr(kBackwardAttr) && !isa<ResultOp>(user);
    });
    if (!isRead || place == places.end())
      continue;
    auto buffer = place->second.buffer.getDefiningOp<program::BufferOp>();
    if (buffer.getArena() == Arena::Activation)
      buffer.setSaved(true);
  }
}

/// Where a value is. Weights get their buffer on first use.
Place StepLowering::placeOf(Value value) {
  if (auto known = places.find(value); known != places.end())
    return known->second;
  auto weight = cast<WeightOp>(value.getDefiningOp());
  ParameterPlace place = layout.lookup(weight.getParameter());
  // The rounded arena has the layout of the trainable one in half the bytes.
  if (weight.getRounded())
    place = {Arena::Rounded, place.offset / 2, place.bytes / 2};
  RankedTensorType type = tensorTypeOf(value);
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
  int64_t bytes = spanBytes(place, tensorTypeOf(value));
  auto buffer = place.buffer.getDefiningOp<program::BufferOp>();
  if (!place.offset && bytes == static_cast<int64_t>(buffer.getBytes()))
    return place.buffer;
  return program::ViewOp::create(b, value.getLoc(), place.buffer, place.offset,
                                 bytes);
}

Place StepLowering::flatPlace(FlatKind kind, bool statistics) {
  static constexpr Arena arenas[] = {Arena::Trainable, Arena::Gradient,
                                     Arena::Moment1, Arena::Moment2,
                                     Arena::Rounded};
  const bool isRounded = kind == FlatKind::Rounded;
  const int64_t width = isRounded ? 2 : 4;
  const int64_t skip = statistics ? 0 : width * kFlatColumns;
  return {arenaBuffer(arenas[static_cast<int>(kind)], skip,
                      layout.getFlatBytes() / 4 * width - skip,
                      isRounded ? QLORA_DTYPE_BF16 : QLORA_DTYPE_F32),
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

void StepLowering::placeGradient(train::AccumulateOp op) {
  Value gradient = op.getGradient();
  if (!isAddedInPlace(gradient))
    return;
  const ParameterPlace &place = layout.lookup(op.getParameter());
  Value buffer = arenaBuffer(Arena::Gradient, place.offset, place.bytes,
                             QLORA_DTYPE_F32);
  planned[gradient] = {buffer, 0, matrixColumns(tensorTypeOf(gradient))};
  adds.insert(gradient);
}

/// From the start of a part to that of the next.
int64_t StepLowering::rangeBytes(ConcatOp op, Value part) const {
  RankedTensorType type = tensorTypeOf(part);
  return op.getRows() ? tensorBytes(type)
                      : matrixColumns(type) * type.getElementTypeBitWidth() / 8;
}

void StepLowering::placeParts(ConcatOp op) {
  Place whole = allocate(op.getWhole());
  planned[op.getWhole()] = whole;
  int64_t offset = 0;
  for (Value part : op.getParts()) {
    if (isPlaceable(part) && !planned.contains(part))
      planned[part] = {whole.buffer, offset, whole.stride};
    offset += rangeBytes(op, part);
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
          RankedTensorType type = tensorTypeOf(op.getValue());
          Value buffer = arenaBuffer(
              Arena::Result, resultOffset[order[kind - QLORA_RESULT_LOSS_SUM]],
              tensorBytes(type), *elementDtype(type.getElementType()));
          planned[op.getValue()] = {buffer, 0, matrixColumns(type)};
          bind(kind, buffer);
        });
  }
}
