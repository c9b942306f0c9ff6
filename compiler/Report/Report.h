// SPDX-License-Identifier: MIT

// `--report FILE`: the memory plan and every decision with its reason, in the
// format that the file's name ends in.
//
// plan.json, for programs:
//
//   {"arenas": {...}, "total_bytes": ...,                     // plan-memory
//    "process_bytes", "resident_bytes",       // on a CPU: Base/HostMemory.h
//    "entries": [{"kind", "activation_bytes", "activation_live_bytes",
//                 "peak": {"saved": ..., ...}, // of these, EntryTimeline.h
//                 ...,
//                 "seconds",                  // predicted: CommandTimes.h
//                 "seconds_low"}],            // of a card: DeviceProfile.h
//    "rematerialize": {"policy", "budget", "recompute_seconds", "steps"},
//    "plan-dequant": [{"weight", "resident_bytes", "groups": [{"form",
//                      "reason", "panel_seconds", ...}]}],
//    "bucket-gradients": [{"bytes", "parameters", "starts_after"}],
//    "select-kernels": [{"kernel", "launches", "refused": [...]}]}
//
// A pass that was switched off has no entry. Sizes are bytes, times seconds.
// An arena is as large as its live bytes, the most at one command, and what
// the packing loses. `qlora-opt --rematerialize=problem` adds to each step of
// "rematerialize" what was decided upon (Graph/StepProblem.h).
//
// plan.html, for a browser: the same and the arenas over the commands, in one
// file that asks for nothing from outside (HtmlReport.h).
//
// plan.pickle, for pytorch.org/memory_viz: the program as the snapshot of an
// allocator (MemorySnapshot.h).

#ifndef QLORA_COMPILER_REPORT_REPORT_H
#define QLORA_COMPILER_REPORT_REPORT_H

#include "llvm/Support/JSON.h"
#include "mlir/IR/BuiltinOps.h"

#include "runtime/Kernels/DeviceProfile.h"

namespace qlora {

enum class ReportFormat { Json, Html, Pickle };

/// By the extension; an error names those that are known.
StatusOr<ReportFormat> reportFormatOf(llvm::StringRef path);

/// The plan alone, without times: arenas and entries, which train.so carries
/// (plan_json), and what the passes decided.
std::string planJson(mlir::ModuleOp program, bool withDecisions);

/// Of a planned program, with times as on `device`. Errors are diagnostics.
mlir::FailureOr<std::string> reportText(mlir::ModuleOp program,
                                        ReportFormat format,
                                        const DeviceProfile &device);

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_REPORT_H
