// SPDX-License-Identifier: MIT

// Decides the memory of a train.step's values: which share memory, which may be
// overwritten, and which are written directly into their final place.
//
//   %y    = model.linear %x, %n            // root 0
//   %q, %k = model.split %y                // ranges of root 0
//   %q2   = model.linear %z, %b init %q    // over q, if q is not read again
//   %dw   = train.linear_weight_grad %d, %x
//   train.accumulate @w, %dw               // the op adds to the gradient of w
//
// Only this class decides that: rematerialize computes costs from it,
// concat-siblings plans with it, and lower-to-program emits it. The resulting
// commands are checked byte by byte (runtime/Module/AccessCheck.h). Ops are
// classified by interface (mainly MemoryOp), never by name.
//
// Rules, in this order:
//  1. Weights, flat arenas and arguments are outside of the step. No result
//     overwrites them by rule 5.
//  2. If the only reader of a gradient is a store that adds to outside memory,
//     and the gradient's op has a beta or always adds, that op adds in place.
//  3. A value that is stored outside is computed at its final place if nothing
//     else writes there before the store and all readers of the old content
//     have run. The value's own op may read the old content if it can overwrite
//     its operand (AdamW). Else the store copies.
//  4. A part of a concatenation is computed in its range of the whole if its op
//     can leave space between rows and one of these is true:
//      - part and whole are in the backward or the gradient exchange;
//      - the part is computed only from weights or other outside memory;
//      - the whole is only the start of a sum (reorder-accumulation).
//     Other forward concatenations copy, so that their parts can be dropped and
//     recomputed separately.
//  5. A result overwrites the operand that it is tied to (MemoryTie), unless
//     the operand's bytes are read by another operand of the op or by a later
//     op, or are being copied to the host. A sum may continue in a range of a
//     whole; a row op overwrites only whole buffers, as rematerialize assumes.
//  6. All other values have separate memory.

#ifndef QLORA_COMPILER_MEMORY_STEPMEMORY_H
#define QLORA_COMPILER_MEMORY_STEPMEMORY_H

#include "compiler/Memory/MemoryPlace.h"
#include "dialects/Train/Train.h"

#include "llvm/ADT/SetVector.h"

namespace qlora {

/// A buffer of the step, or memory outside of it.
struct MemoryRoot {
  std::optional<model::OutsideMemory> outside;
  mlir::Value first; ///< value for which the root was created
  llvm::SetVector<mlir::Value> values; ///< all values with bytes in it
};

class StepMemory {
public:
  explicit StepMemory(train::StepOp step);

  MemoryPlace placeOf(mlir::Value value) const {
    return places.find(value)->second;
  }
  const MemoryRoot &root(unsigned index) const { return roots[index]; }
  const MemoryRoot &rootOf(mlir::Value value) const {
    return roots[placeOf(value).root];
  }
  /// Returns true if the value's op adds to the content of its place.
  bool isAdded(mlir::Value value) const { return added.contains(value); }
  /// Returns the place that a store writes.
  MemoryPlace placeOf(const model::MemoryStore &store) const {
    return storePlaces.find(store.value)->second;
  }
  /// Returns whether a value is computed where it is stored, without a copy.
  bool isMadeInPlace(const model::MemoryStore &store) const {
    mlir::Value value = store.value->get();
    return store.adds ? isAdded(value) : placeOf(value) == placeOf(store);
  }
  /// Returns the tie of `result` to the operand into which it is accumulated,
  /// if any.
  static std::optional<model::MemoryTie> continuedBy(mlir::OpResult result);

  // Valid before lifetimes are decided.

  /// Returns the value of the step whose memory contains that of `value`. It is
  /// `value` itself, except for operands or results of views.
  mlir::Value wholeOf(mlir::Value value) const;
  /// Returns the ties of an op between whole buffers of the step.
  llvm::SmallVector<model::MemoryTie> tiesOf(mlir::Operation *op) const;

  // These functions read only the ops, so that passes may change the step.

  /// Returns whether the op that computes `value` could write it into a range
  /// of a wider value. False if `value` is part of one already.
  static bool canBecomePart(mlir::Value value);
  /// Returns true if the backward reads `value`, its copy in host memory, or a
  /// result that is accumulated into the buffer of `value`.
  static bool waitsForBackward(mlir::Value value);

private:
  /// A read or write of outside memory by an op.
  struct OutsideUse {
    model::OutsideMemory memory;
    mlir::Operation *op;
    mlir::Value read; ///< null: a write
    bool adds = false;
  };

  void findOutsideUses(train::StepOp step);
  void planStore(mlir::Operation *op, const model::MemoryStore &store);
  bool canAddAt(mlir::Operation *maker, mlir::Operation *op,
                const model::OutsideMemory &memory) const;
  bool canMakeAt(mlir::OpResult value, mlir::Operation *op,
                 const model::OutsideMemory &memory) const;
  void planParts(mlir::Operation *op);
  void place(mlir::Operation *op);
  void placeResult(mlir::OpResult result, llvm::DenseSet<mlir::Value> &taken);
  bool canTakeOver(mlir::Value operand, mlir::Operation *op) const;
  MemoryPlace newPlace(mlir::Value value,
                       std::optional<model::OutsideMemory> outside = {});
  void setPlace(mlir::Value value, MemoryPlace place);
  void plan(mlir::Value value, MemoryPlace place);

  std::vector<MemoryRoot> roots;
  llvm::DenseMap<mlir::Value, MemoryPlace> places, planned;
  llvm::DenseSet<mlir::Value> added;
  llvm::DenseMap<mlir::OpOperand *, MemoryPlace> storePlaces;
  std::vector<OutsideUse> outsideUses;
  llvm::DenseMap<mlir::Value, unsigned> usesLeft;
};

} // namespace qlora

#endif // QLORA_COMPILER_MEMORY_STEPMEMORY_H
