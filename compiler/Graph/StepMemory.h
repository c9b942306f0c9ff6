// SPDX-License-Identifier: MIT

// What the values of a train.step are made of: which of them share memory, who
// may overwrite whom, and what is written straight where it has to end up.
//
//   %y    = model.linear %x, %n            // root 0
//   %q, %k = model.split %y                // ranges of root 0
//   %q2   = model.linear %z, %b init %q    // over q, if q is not read again
//   %dw   = train.linear_weight_grad %d, %x
//   train.accumulate @w, %dw               // the op adds to the gradient of w
//
// The only place that decides this. rematerialize prices with it,
// concat-siblings plans with it, and lower-to-program emits it; the commands
// that come out are checked byte by byte (runtime/Module/AccessCheck.h). It asks ops
// by their interfaces (MemoryOp foremost), never by name.
//
// Rules, in the order in which they are tried:
//  1. What an op says is outside of the step, is there: weights, flat arenas,
//     arguments. Nothing is ever written over it by a tie.
//  2. A gradient that only a store adds to outside memory is added there by its
//     op, if that has a beta or always adds (isAddedInPlace).
//  3. A value that is stored outside is made there, if nothing else writes that
//     memory since, and whatever reads what was there has done so, or is the op
//     itself and may write over it (AdamW). Else it is copied when it is stored.
//  4. A part of a concatenation is made in its range of the whole, if its op can
//     leave room between rows, and both belong to the backward, or to the
//     exchange of gradients, or it is made of outside memory alone (a decoded
//     weight, gathered or not), or the whole is the beginning of a sum and
//     nothing else (order-sums). What else the forward concatenates is copied, so
//     that it can be dropped, and made again for the backward, by itself.
//  5. A result takes over an operand that it is tied to, if no value that shares
//     a byte of it is read at the op (but by the tie) or afterwards, nor is on its
//     way to the host. A sum may go on in a range of a whole; a row op takes over
//     whole buffers only, which is what rematerialize counts with.
//  6. Else it has memory of its own.

#ifndef QLORA_COMPILER_GRAPH_STEPMEMORY_H
#define QLORA_COMPILER_GRAPH_STEPMEMORY_H

#include "compiler/Graph/MemoryPlace.h"
#include "dialects/Train/Train.h"

#include "llvm/ADT/SetVector.h"

namespace qlora {

/// Memory that values are made of: a buffer of the step, or outside of it.
struct MemoryRoot {
  std::optional<model::OutsideMemory> outside;
  mlir::Value first; ///< the value that it is there for; outside, one of them
  llvm::SetVector<mlir::Value> values; ///< all that have bytes in it
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
  /// True where the value's op adds to what is in its place.
  bool isAdded(mlir::Value value) const { return added.contains(value); }
  /// Where a value is stored.
  MemoryPlace placeOf(const model::MemoryStore &store) const {
    return storePlaces.find(store.value)->second;
  }
  /// True where it was made there.
  bool isMadeInPlace(const model::MemoryStore &store) const {
    mlir::Value value = store.value->get();
    return store.adds ? isAdded(value) : placeOf(value) == placeOf(store);
  }
  /// The tie whose operand the result continues, if there is one.
  static std::optional<model::MemoryTie> continuedBy(mlir::OpResult result);

  // For who lives how long is not decided yet.

  /// The value of the step whose memory has all of `value`'s: itself, but for
  /// a part of a view.
  mlir::Value wholeOf(mlir::Value value) const;
  /// The ties of an op between whole buffers of the step.
  llvm::SmallVector<model::MemoryTie> tiesOf(mlir::Operation *op) const;

  // For who changes the step. These look at the ops only.

  /// True where the op that makes `value` could write it into a range of
  /// something wider, of which it is no part yet.
  static bool canBecomePart(mlir::Value value);
  /// True where the backward reads `value`: its memory, a sum that continues it
  /// there, or its copy in host memory.
  static bool waitsForBackward(mlir::Value value);

private:
  /// Outside memory that an op reads or writes.
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

#endif // QLORA_COMPILER_GRAPH_STEPMEMORY_H
