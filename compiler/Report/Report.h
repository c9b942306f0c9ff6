// SPDX-License-Identifier: MIT

// `--plan-report FILE`: the memory plan and every decision with its reason, in
// the format given by the file's extension.
//
// plan.json, for programs:
//
//   {"arenas": {...}, "total_bytes": ...,                     // plan-memory
//    "process_bytes", "resident_bytes",       // on a CPU: Base/HostMemory.h
//    "entries": [{"kind", "activation_bytes", "activation_live_bytes",
//                 "peak": {"saved": ..., ...}, // live bytes by BufferCategory
//                 ...,
//                 "seconds",                  // predicted: PlanTimes.h
//                 "seconds_low"}],            // on a GPU: DeviceProfile.h
//    "rematerialize": {"policy", "budget", "recompute_seconds", "steps"},
//    "plan-dequant": [{"weight", "resident_bytes", "groups": [{"form",
//                      "reason", "tiled_seconds", ...}]}],
//    "bucket-gradients": [{"bytes", "parameters", "starts_after"}],
//    "select-kernels": [{"kernel", "launches", "refused": [...]}],
//    "timeline": {...}}                       // TimelineJson.h
//
// A pass that was switched off has no entry. Sizes are bytes, times seconds. An
// arena's size is its maximum of live bytes plus fragmentation. `qlora-opt
// --rematerialize=problem` adds the planner's input to each step of
// "rematerialize" (Memory/StepProblem.h).
//
// plan.html, for a browser: the same data as tables and charts, in one file
// that loads nothing else: Page.html with {"plan": plan.json, "run":
// RunMetadata.h} (runtime/Base/FillPage.h).
//
// tools/qloracc/memory_viz.py converts plan.json for pytorch.org/memory_viz.

#ifndef QLORA_COMPILER_REPORT_REPORT_H
#define QLORA_COMPILER_REPORT_REPORT_H

#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/JSON.h"

#include "runtime/Kernels/DeviceProfile.h"

namespace qlora {

enum class ReportFormat { Json, Html };

/// Returns the format for a file extension. Errors list the known extensions.
StatusOr<ReportFormat> reportFormatOf(llvm::StringRef path);

/// Returns the plan without times: arenas and entries, as in train.so
/// (plan_json), and optionally the passes' decisions.
std::string planJson(mlir::ModuleOp program, bool withDecisions);

/// Reports a planned program, with times on `device`. Errors are diagnostics.
mlir::FailureOr<std::string> reportText(mlir::ModuleOp program,
                                        ReportFormat format,
                                        const DeviceProfile &device);

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_REPORT_H
