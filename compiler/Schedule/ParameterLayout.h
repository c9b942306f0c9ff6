// SPDX-License-Identifier: MIT

// Where every parameter and every cache of a generation is stored. Frozen
// parameters are in the frozen arena, in module order, or in the host arena if
// place-frozen-weights put them there. Trainable parameters, or a rank's fsdp
// shards of them, are at the element offsets that bucket-gradients assigned.
// Caches are in the cache arena, in module order.

#ifndef QLORA_COMPILER_SCHEDULE_PARAMETERLAYOUT_H
#define QLORA_COMPILER_SCHEDULE_PARAMETERLAYOUT_H

#include "dialects/Program/Program.h"
#include "dialects/Train/LowRank.h"

#include "mlir/IR/BuiltinOps.h"

namespace qlora {

struct ParameterPlace {
  program::Arena arena;
  int64_t offset; ///< bytes
  int64_t bytes;  ///< unsharded size
  int64_t piece = 0; ///< bytes of a rank's fsdp shard; 0: not sharded

  int64_t arenaBytes() const { return piece ? piece : bytes; }
};

class ParameterLayout {
public:
  /// Reads the attributes `train.layout` and `train.offsets`. Emits an error if
  /// the module lacks them.
  static llvm::FailureOr<ParameterLayout> of(mlir::ModuleOp module);

  /// Returns the place of a parameter or a cache.
  const ParameterPlace &lookup(mlir::StringRef name) const {
    return places.find(name)->second;
  }
  /// Returns the bytes of a gathered parameter, with the last shard's padding.
  int64_t gatheredBytes(mlir::StringRef parameter) const {
    const ParameterPlace &place = lookup(parameter);
    return place.piece ? pieces * place.piece : place.bytes;
  }
  int64_t getFrozenBytes() const { return frozenBytes; }
  int64_t getHostBytes() const { return hostBytes; }
  int64_t getCacheBytes() const { return cacheBytes; }
  /// Returns the bytes of one f32 per trainable value of this rank. The arenas
  /// of parameters, gradients and residuals each have this size.
  int64_t getFlatBytes() const { return flatBytes; }
  bool hasTrainable() const { return flatBytes > 4 * train::kFlatColumns; }

  int64_t getStateBytes() const { return lowRank.stateBytes; }
  /// Returns whether there are gradients and optimizer states.
  bool isOfTraining() const { return trains; }

  /// Creates a `program.parameter` for each named tensor and optimizer state.
  void emit(mlir::OpBuilder &builder, mlir::ModuleOp module) const;

private:
  void emitStates(mlir::OpBuilder &builder, mlir::ModuleOp module) const;
  void emitBases(mlir::OpBuilder &builder, mlir::ModuleOp module) const;

  llvm::StringMap<ParameterPlace> places;
  bool trains = false;
  train::UpdatePlan update;    ///< empty if nothing is trained
  train::LowRankPlan lowRank;  ///< empty if nothing is trained
  int64_t pieces = 1; ///< ranks that share a sharded parameter
  int64_t frozenBytes = 0;
  int64_t hostBytes = 0;
  int64_t cacheBytes = 0;
  int64_t flatBytes = 0;
};

} // namespace qlora

#endif // QLORA_COMPILER_SCHEDULE_PARAMETERLAYOUT_H
