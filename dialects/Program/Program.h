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

/// Index from 0 of the pipeline stage that a module is for.
inline constexpr llvm::StringLiteral kStageAttr = "program.stage";
inline int64_t stageOf(mlir::Operation *module) {
  return model::numberOf(module, kStageAttr, /*ifAbsent=*/0);
}

} // namespace qlora::program

#endif // QLORA_DIALECTS_PROGRAM_PROGRAM_H
