// SPDX-License-Identifier: MIT

// The program dialect: the one header to include. See ProgramOps.td.

#ifndef QLORA_DIALECTS_PROGRAM_PROGRAM_H
#define QLORA_DIALECTS_PROGRAM_PROGRAM_H

#include "dialects/Model/Model.h"

#include "mlir/IR/BuiltinOps.h"

#include "dialects/Program/ProgramDialect.h.inc"
#include "dialects/Program/ProgramEnums.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Program/ProgramAttrs.h.inc"
#define GET_TYPEDEF_CLASSES
#include "dialects/Program/ProgramTypes.h.inc"
#define GET_OP_CLASSES
#include "dialects/Program/ProgramOps.h.inc"

namespace qlora::program {

using model::numberOf;

/// Number of ranks that shard the base; 1: unsharded.
inline constexpr llvm::StringLiteral kShardsAttr = "program.shards";
inline int64_t shardsOf(mlir::Operation *module) {
  return numberOf(module, kShardsAttr);
}

/// Number of ranks that shard optimizer updates; 1: unsharded.
inline constexpr llvm::StringLiteral kUpdatePiecesAttr =
    "program.update_pieces";
inline int64_t updatePiecesOf(mlir::Operation *module) {
  return numberOf(module, kUpdatePiecesAttr);
}

/// Number of ranks that shard trainable parameters, their gradients and
/// optimizer states; 1: unsharded.
inline constexpr llvm::StringLiteral kTrainedPiecesAttr =
    "program.trained_pieces";
inline int64_t trainedPiecesOf(mlir::Operation *module) {
  return numberOf(module, kTrainedPiecesAttr);
}

/// Number of ranks of a run; 0: any number.
inline constexpr llvm::StringLiteral kRunRanksAttr = "program.run_ranks";
inline int64_t runRanksOf(mlir::Operation *module) {
  return numberOf(module, kRunRanksAttr, /*ifAbsent=*/0);
}

/// Number of ranks in the group FSDP, whatever they shard.
inline int64_t piecesOf(mlir::Operation *module) {
  return std::max({shardsOf(module), updatePiecesOf(module),
                   trainedPiecesOf(module)});
}

/// Number of tensor-parallel ranks; 1: no tensor parallelism.
inline constexpr llvm::StringLiteral kTensorRanksAttr = "program.tensor_ranks";
inline int64_t tensorRanksOf(mlir::Operation *module) {
  return numberOf(module, kTensorRanksAttr);
}

/// Number of context-parallel ranks; 1: each rank has its own sequences.
inline constexpr llvm::StringLiteral kContextRanksAttr =
    "program.context_ranks";
inline int64_t contextRanksOf(mlir::Operation *module) {
  return numberOf(module, kContextRanksAttr);
}

/// Number of expert-parallel ranks; 1: each rank has all experts.
inline constexpr llvm::StringLiteral kExpertRanksAttr = "program.expert_ranks";
inline int64_t expertRanksOf(mlir::Operation *module) {
  return numberOf(module, kExpertRanksAttr);
}

/// Number of pipeline stages, 1 without a pipeline, and the index from 0 of the
/// stage that this module is for.
inline constexpr llvm::StringLiteral kStagesAttr = "program.stages";
inline constexpr llvm::StringLiteral kStageAttr = "program.stage";
inline int64_t stagesOf(mlir::Operation *module) {
  return numberOf(module, kStagesAttr);
}
inline int64_t stageOf(mlir::Operation *module) {
  return numberOf(module, kStageAttr, /*ifAbsent=*/0);
}

} // namespace qlora::program

#endif // QLORA_DIALECTS_PROGRAM_PROGRAM_H
