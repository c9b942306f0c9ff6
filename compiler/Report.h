// SPDX-License-Identifier: MIT

// `--report plan.json`: the memory plan and every decision with its reason.
//
//   {"arenas": {...}, "total_bytes": ..., "entries": [...],   // plan-memory
//    "rematerialize": {"policy", "budget", "recompute_seconds", "steps"},
//    "plan-dequant": [{"weight", "resident_bytes", "groups": [{"form",
//                      "panel_seconds", "scratch_seconds", ...}]}],
//    "bucket-gradients": [{"bytes", "parameters", "starts_after"}],
//    "select-kernels": [{"kernel", "launches", "refused": [...]}]}
//
// A pass that was switched off has no entry. Sizes are bytes, times seconds.

#ifndef QLORA_COMPILER_REPORT_H
#define QLORA_COMPILER_REPORT_H

#include "mlir/IR/BuiltinOps.h"

namespace qlora {

/// Writes what the passes left in the attributes of a planned program.
void writeReport(mlir::ModuleOp program, llvm::raw_ostream &stream);

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_H
