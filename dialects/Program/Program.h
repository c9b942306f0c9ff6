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

/// Of a module: among how many ranks its base is divided; 1: among none.
inline constexpr llvm::StringLiteral kShardsAttr = "program.shards";
inline int64_t shardsOf(mlir::ModuleOp module) {
  auto shards = module->getAttrOfType<mlir::IntegerAttr>(kShardsAttr);
  return shards ? shards.getInt() : 1;
}
/// Of a module: among how many ranks its updates are divided; 1: among none.
inline constexpr llvm::StringLiteral kUpdatePiecesAttr =
    "program.update_pieces";
inline int64_t updatePiecesOf(mlir::Operation *module) {
  auto pieces = module->getAttrOfType<mlir::IntegerAttr>(kUpdatePiecesAttr);
  return pieces ? pieces.getInt() : 1;
}

/// Of a module: how many ranks share each product; 1: none do.
inline constexpr llvm::StringLiteral kTensorRanksAttr = "program.tensor_ranks";
inline int64_t tensorRanksOf(mlir::Operation *module) {
  auto ranks = module->getAttrOfType<mlir::IntegerAttr>(kTensorRanksAttr);
  return ranks ? ranks.getInt() : 1;
}

/// Of a module: how many ranks share each line; 1: each has its own.
inline constexpr llvm::StringLiteral kContextRanksAttr =
    "program.context_ranks";
inline int64_t contextRanksOf(mlir::Operation *module) {
  auto ranks = module->getAttrOfType<mlir::IntegerAttr>(kContextRanksAttr);
  return ranks ? ranks.getInt() : 1;
}

} // namespace qlora::program

#endif // QLORA_DIALECTS_PROGRAM_PROGRAM_H
