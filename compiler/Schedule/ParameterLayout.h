// SPDX-License-Identifier: MIT

// Where every parameter lives: frozen ones in the frozen arena in the order of
// the module, or in the host arena where assign-shards has put them; trainable
// ones, or a rank's pieces of them, at the element offsets that
// bucket-gradients gave them.

#ifndef QLORA_COMPILER_SCHEDULE_PARAMETERLAYOUT_H
#define QLORA_COMPILER_SCHEDULE_PARAMETERLAYOUT_H

#include "dialects/Program/Program.h"
#include "dialects/Train/LowRank.h"

#include "mlir/IR/BuiltinOps.h"

namespace qlora {

struct ParameterPlace {
  program::Arena arena;
  int64_t offset; ///< bytes
  int64_t bytes;  ///< of the whole
  int64_t piece = 0; ///< of it, what a rank has; 0: all

  int64_t arenaBytes() const { return piece ? piece : bytes; }
};

class ParameterLayout {
public:
  /// Reads `train.layout` and `train.offsets`; an error if they are missing.
  static llvm::FailureOr<ParameterLayout> of(mlir::ModuleOp module);

  const ParameterPlace &lookup(mlir::StringRef parameter) const {
    return places.find(parameter)->second;
  }
  /// Of one that is gathered: of pieces all of them, behind each other.
  int64_t gatheredBytes(mlir::StringRef parameter) const {
    const ParameterPlace &place = lookup(parameter);
    return place.piece ? pieces * place.piece : place.bytes;
  }
  int64_t getFrozenBytes() const { return frozenBytes; }
  int64_t getHostBytes() const { return hostBytes; }
  /// Bytes of each of the flat f32 arenas.
  int64_t getFlatBytes() const { return flatBytes; }

  int64_t getStateBytes() const { return lowRank.stateBytes; }

  /// Writes one `program.parameter` per named tensor, and per state of one.
  void emit(mlir::OpBuilder &builder, mlir::ModuleOp module) const;

private:
  void emitStates(mlir::OpBuilder &builder, mlir::ModuleOp module) const;
  void emitBases(mlir::OpBuilder &builder, mlir::ModuleOp module) const;

  llvm::StringMap<ParameterPlace> places;
  train::UpdatePlan update;
  train::LowRankPlan lowRank;
  int64_t pieces = 1; ///< of what lies in pieces
  int64_t frozenBytes = 0;
  int64_t hostBytes = 0;
  int64_t flatBytes = 0;
};

} // namespace qlora

#endif // QLORA_COMPILER_SCHEDULE_PARAMETERLAYOUT_H
