// SPDX-License-Identifier: MIT

// Places a step's values in memory (StepMemory.h has the rules).

#include "compiler/Memory/StepMemory.h"

#include "runtime/Kernels/KernelTable.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

/// Calls a getter of MemoryOp. The result is empty if `op` is null or has no
/// MemoryOp interface.
template <typename Fact>
static Fact factOf(Operation *op, Fact (MemoryOp::*fact)()) {
  auto memory = dyn_cast_or_null<MemoryOp>(op);
  return memory ? (memory.*fact)() : Fact();
}
static auto memoryTiesOf(Operation *op) {
  return factOf(op, &MemoryOp::getMemoryTies);
}
static auto partsOf(Operation *op) {
  return factOf(op, &MemoryOp::getMemoryRanges);
}
static auto storesOf(Operation *op) {
  return factOf(op, &MemoryOp::getMemoryStores);
}
static auto outsideOf(Operation *op) {
  return factOf(op, &MemoryOp::getOutsideMemory);
}

//===----------------------------------------------------------------------===//
// Properties of ops
//===----------------------------------------------------------------------===//

/// Returns whether the op that computes `value` writes every element of it.
static bool isWritten(Value value) {
  return isa_and_nonnull<LibraryOp, RowOp>(value.getDefiningOp());
}

/// Returns true if the op that computes `value` can leave space between rows.
static bool canHaveStride(Value value) {
  auto result = cast<OpResult>(value);
  if (auto rows = dyn_cast<RowOp>(result.getOwner()))
    return !rows.isScalarResult(result.getResultNumber());
  KernelCall call = cast<LibraryOp>(result.getOwner()).getKernelCall();
  std::optional<unsigned> operand = call.indexOf(value);
  return operand && call.mayHaveStride(*operand);
}

/// Returns true for a gradient that its op can add to outside memory: its only
/// reader is a store, and the op has a beta or its kernel always adds.
static bool isAddedInPlace(Value value) {
  auto library = value.getDefiningOp<LibraryOp>();
  if (!library || !value.hasOneUse() ||
      !tensorOf(value).getElementType().isF32())
    return false;
  if (auto sum = dyn_cast<AccumulatingOp>(library.getOperation()))
    return !sum.getAccumulator();
  KernelCall call = library.getKernelCall();
  std::optional<unsigned> operand = call.indexOf(value);
  return operand && call.op->operands[*operand].isRead &&
         call.op->operands[*operand].isWritten;
}

/// Returns whether the op is forward or recomputed.
static bool isForward(Operation *op) {
  const StepPhase phase = phaseOf(op);
  return phase != StepPhase::Backward && phase != StepPhase::Exchange;
}

/// Returns whether the only reader continues the value in place (a tie).
static bool isOnlyContinued(Value value) {
  if (!value.hasOneUse())
    return false;
  OpOperand &use = *value.use_begin();
  return llvm::any_of(use.getOwner()->getResults(), [&](OpResult result) {
    std::optional<MemoryTie> tie = StepMemory::continuedBy(result);
    return tie && tie->operand == &use;
  });
}

/// Implements rule 4: whether a part is written into its range of the whole.
static bool isMadeAsRange(const MemoryRange &part) {
  if (!isWritten(part.part) || (columnsOf(part.part) != columnsOf(part.whole) &&
                                !canHaveStride(part.part)))
    return false;
  Operation *maker = part.part.getDefiningOp();
  if (!isForward(maker) && !isForward(part.whole.getDefiningOp()))
    return true;
  if (part.part.hasOneUse() && isOnlyContinued(part.whole))
    return true;
  return llvm::all_of(maker->getOperands(), [](Value operand) {
    Operation *source = operand.getDefiningOp();
    return outsideOf(source) || isa_and_nonnull<GatherWeightOp>(source);
  });
}

std::optional<MemoryTie> StepMemory::continuedBy(OpResult result) {
  for (const MemoryTie &tie : memoryTiesOf(result.getOwner()))
    if (tie.continues && tie.result == result)
      return tie;
  return std::nullopt;
}

bool StepMemory::canBecomePart(Value value) {
  return isWritten(value) && canHaveStride(value) &&
         !continuedBy(cast<OpResult>(value)) &&
         llvm::none_of(value.getUsers(), isView);
}

bool StepMemory::waitsForBackward(Value value) {
  return llvm::any_of(value.getUses(), [](OpOperand &use) {
    Operation *user = use.getOwner();
    if (isBackward(user) || isa<CopyToHostOp>(user))
      return true;
    return llvm::any_of(user->getResults(), [&](OpResult result) {
      std::optional<MemoryTie> tie = continuedBy(result);
      return tie && tie->operand == &use && waitsForBackward(result);
    });
  });
}

//===----------------------------------------------------------------------===//
// First: values computed in their final place
//===----------------------------------------------------------------------===//

/// Returns the start of `outside` if given, else of new memory.
MemoryPlace StepMemory::newPlace(Value value,
                                 std::optional<OutsideMemory> outside) {
  const int64_t stride =
      outside && outside->part && outside->part.getDimension() > 0
          ? outside->part.getSize()
          : columnsOf(value);
  if (outside)
    for (auto [i, root] : llvm::enumerate(roots))
      if (root.outside == outside)
        return {unsigned(i), 0, stride};
  roots.push_back({outside, value, {}});
  return {unsigned(roots.size() - 1), 0, stride};
}

void StepMemory::setPlace(Value value, MemoryPlace place) {
  places[value] = place;
  roots[place.root].values.insert(value);
}

void StepMemory::plan(Value value, MemoryPlace place) {
  planned[value] = place;
  roots[place.root].values.insert(value);
}

/// Calls `found` for each reader of `value`, also through its ranges.
static void forEachReader(Value value, function_ref<void(Operation *)> found) {
  for (Operation *user : value.getUsers()) {
    found(user);
    for (const MemoryRange &part : partsOf(user))
      if (part.whole == value)
        forEachReader(part.part, found);
  }
}

void StepMemory::findOutsideUses(StepOp step) {
  for (Operation &op : step.getBody().front()) {
    if (std::optional<OutsideMemory> memory = outsideOf(&op)) {
      Value value = op.getResult(0);
      forEachReader(value, [&](Operation *reader) {
        outsideUses.push_back({*memory, reader, value});
      });
    }
    for (const MemoryStore &store : storesOf(&op))
      outsideUses.push_back({store.memory, &op, {}, store.adds});
  }
}

/// Returns whether `maker` can add to `memory` instead of the later store `op`:
/// all other uses between them only add.
bool StepMemory::canAddAt(Operation *maker, Operation *op,
                          const OutsideMemory &memory) const {
  return llvm::none_of(outsideUses, [&](const OutsideUse &use) {
    return !use.adds && use.memory.overlaps(memory) &&
           !use.op->isBeforeInBlock(maker) && use.op->isBeforeInBlock(op);
  });
}

/// Implements rule 3: whether `value` can be computed where `op` stores it.
bool StepMemory::canMakeAt(OpResult value, Operation *op,
                           const OutsideMemory &memory) const {
  Operation *maker = value.getOwner();
  return llvm::none_of(outsideUses, [&](const OutsideUse &use) {
    if (use.op == op || !use.memory.overlaps(memory))
      return false;
    // A use after `op` must find the new value.
    if (op->isBeforeInBlock(use.read ? use.read.getDefiningOp() : use.op))
      return false;
    // A use before `maker` finds the old value.
    if (!use.read)
      return !use.op->isBeforeInBlock(maker);
    if (use.op != maker)
      return !use.op->isBeforeInBlock(maker);
    return use.memory != memory ||
           llvm::none_of(memoryTiesOf(maker), [&](const MemoryTie &tie) {
             return tie.result == value && tie.operand->get() == use.read;
           });
  });
}

void StepMemory::planStore(Operation *op, const MemoryStore &store) {
  if (!store.value)
    return;
  MemoryPlace place = newPlace(store.value->get(), store.memory);
  storePlaces[store.value] = place;
  if (!isWritten(store.value->get()) || planned.contains(store.value->get()))
    return;
  auto value = cast<OpResult>(store.value->get());
  bool isPlanned = store.adds ? isAddedInPlace(value) &&
                                    canAddAt(value.getOwner(), op, store.memory)
                              : canMakeAt(value, op, store.memory);
  if (!isPlanned)
    return;
  plan(value, place);
  if (store.adds)
    added.insert(value);
}

void StepMemory::planParts(Operation *op) {
  for (const MemoryRange &part : partsOf(op)) {
    if (part.whole.getDefiningOp() != op)
      return;
    if (!planned.contains(part.whole))
      plan(part.whole, newPlace(part.whole));
    if (!planned.contains(part.part) && isMadeAsRange(part))
      plan(part.part, placeWithin(planned.lookup(part.whole), part));
  }
}

//===----------------------------------------------------------------------===//
// Then: all values in program order
//===----------------------------------------------------------------------===//

/// Returns whether a copy to the host may read `value` while later ops run.
static bool isCopiedToHost(Value value) {
  return llvm::any_of(value.getUsers(), llvm::IsaPred<CopyToHostOp>);
}

/// Implements rule 5: whether a result of `op` can overwrite `operand`.
bool StepMemory::canTakeOver(Value operand, Operation *op) const {
  MemoryPlace place = placeOf(operand);
  RankedTensorType type = tensorOf(operand);
  const MemoryRoot &memory = roots[place.root];
  if (memory.outside ||
      usesLeft.lookup(operand) != llvm::count(op->getOperands(), operand))
    return false;
  return llvm::none_of(memory.values, [&](Value other) {
    auto known = places.find(other);
    if (isCopiedToHost(other))
      return true;
    if (other == operand)
      return false;
    // A planned value that is not computed yet will be written to its place.
    if (known == places.end())
      return overlap(tensorOf(other), planned.lookup(other), type, place);
    return usesLeft.lookup(other) &&
           overlap(tensorOf(other), known->second, type, place);
  });
}

void StepMemory::placeResult(OpResult result, DenseSet<Value> &taken) {
  if (auto known = planned.find(result); known != planned.end())
    return setPlace(result, known->second);
  Operation *op = result.getOwner();
  for (const MemoryTie &tie : memoryTiesOf(op)) {
    Value operand = tie.operand->get();
    bool fits = tie.continues ? llvm::count(op->getOperands(), operand) == 1
                              : wholeOf(operand) == operand;
    if (tie.result != result || !fits || taken.contains(operand) ||
        !canTakeOver(operand, op))
      continue;
    taken.insert(operand);
    return setPlace(result, placeOf(operand));
  }
  setPlace(result, newPlace(result));
}

void StepMemory::place(Operation *op) {
  if (std::optional<OutsideMemory> outside = outsideOf(op)) {
    Value value = op->getResult(0);
    return setPlace(value, newPlace(value, outside));
  }
  bool isSplit = false;
  for (const MemoryRange &part : partsOf(op))
    if (part.part.getDefiningOp() == op) {
      setPlace(part.part, placeWithin(placeOf(part.whole), part));
      isSplit = true;
    }
  DenseSet<Value> taken;
  if (!isSplit)
    for (OpResult result : op->getResults())
      placeResult(result, taken);
}

StepMemory::StepMemory(StepOp step) {
  Block &body = step.getBody().front();
  for (auto [argument, name] :
       llvm::zip_equal(body.getArguments(), step.getInputs()))
    setPlace(argument,
             newPlace(argument, OutsideMemory{MemorySpace::Input, name}));
  findOutsideUses(step);
  for (Operation &op : body) {
    for (const MemoryStore &store : storesOf(&op))
      planStore(&op, store);
    planParts(&op);
    for (Value operand : op.getOperands())
      ++usesLeft[operand];
  }
  for (Operation &op : body) {
    place(&op);
    for (Value operand : op.getOperands())
      --usesLeft[operand];
  }
}

//===----------------------------------------------------------------------===//
// Independent of lifetimes
//===----------------------------------------------------------------------===//

Value StepMemory::wholeOf(Value value) const {
  if (auto known = planned.find(value); known != planned.end()) {
    const MemoryRoot &memory = roots[known->second.root];
    return memory.outside ? value : memory.first;
  }
  if (Operation *maker = value.getDefiningOp())
    for (const MemoryRange &part : partsOf(maker))
      if (part.part == value)
        return wholeOf(part.whole);
  return value;
}

SmallVector<MemoryTie> StepMemory::tiesOf(Operation *op) const {
  return llvm::filter_to_vector(memoryTiesOf(op), [&](const MemoryTie &tie) {
    Value operand = tie.operand->get();
    return !planned.contains(tie.result) && wholeOf(operand) == operand &&
           !rootOf(operand).outside && !isCopiedToHost(operand);
  });
}
