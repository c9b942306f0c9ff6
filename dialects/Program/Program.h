// SPDX-License-Identifier: MIT

// The program dialect: the one header to include. The essay is in
// ProgramOps.td.

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

/// Numbers that are facts of a whole module, under these names.
inline int64_t numberOf(mlir::Operation *module, llvm::StringRef name,
                        int64_t ifAbsent = 1) {
  auto number = module->getAttrOfType<mlir::IntegerAttr>(name);
  return number ? number.getInt() : ifAbsent;
}

/// Among how many ranks the base is divided; 1: among none.
inline constexpr llvm::StringLiteral kShardsAttr = "program.shards";
inline int64_t shardsOf(mlir::Operation *module) {
  return numberOf(module, kShardsAttr);
}

/// Among how many ranks updates are divided; 1: among none.
inline constexpr llvm::StringLiteral kUpdatePiecesAttr =
    "program.update_pieces";
inline int64_t updatePiecesOf(mlir::Operation *module) {
  return numberOf(module, kUpdatePiecesAttr);
}

/// Among how many ranks what is trained is divided, with its gradients and
/// states; 1: among none.
inline constexpr llvm::StringLiteral kTrainedPiecesAttr =
    "program.trained_pieces";
inline int64_t trainedPiecesOf(mlir::Operation *module) {
  return numberOf(module, kTrainedPiecesAttr);
}

/// How many ranks a run has; 0: any number.
inline constexpr llvm::StringLiteral kRunRanksAttr = "program.run_ranks";
inline int64_t runRanksOf(mlir::Operation *module) {
  return numberOf(module, kRunRanksAttr, /*ifAbsent=*/0);
}

/// Ranks of group FSDP, whatever they divide.
inline int64_t piecesOf(mlir::Operation *module) {
  return std::max({shardsOf(module), updatePiecesOf(module),
                   trainedPiecesOf(module)});
}

/// How many ranks share each product; 1: none do.
inline constexpr llvm::StringLiteral kTensorRanksAttr = "program.tensor_ranks";
inline int64_t tensorRanksOf(mlir::Operation *module) {
  return numberOf(module, kTensorRanksAttr);
}

/// How many ranks share each line; 1: each has its own.
inline constexpr llvm::StringLiteral kContextRanksAttr =
    "program.context_ranks";
inline int64_t contextRanksOf(mlir::Operation *module) {
  return numberOf(module, kContextRanksAttr);
}

/// How many ranks share the experts; 1: each has all of them.
inline constexpr llvm::StringLiteral kExpertRanksAttr = "program.expert_ranks";
inline int64_t expertRanksOf(mlir::Operation *module) {
  return numberOf(module, kExpertRanksAttr);
}

/// How many ranks are the stages of a pipeline, and which of them the module is
/// the program of; 1: there is none.
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
