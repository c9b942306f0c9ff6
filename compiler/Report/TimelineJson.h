// SPDX-License-Identifier: MIT

// Writes the `timeline` of plan.json: when commands run, and which bytes each
// buffer and parameter occupies.
//
//   {"categories": ["saved", ...],   // BufferCategory
//    "device_arenas": [...],         // keys of "arenas" in device memory
//    "parameters": {"name": [texts...], "arena": [texts...],
//                   "offset": [...], "bytes": [...], "location": [texts...]},
//    "entries": [                    // in the order of "entries" in plan.json
//      {"peak_command",              // the first with the most live bytes
//       "commands": {"kernel": [texts...], "label": [texts...],
//                    "queue": [...], "start": [us...], "end": [us...]},
//       "buffers": {"arena": [0: activation, 1: workspace...],
//                   "label": [texts...], "category": [categories...],
//                   "offset": [...], "bytes": [...],
//                   "first": [commands...], "last": [commands...],
//                   "writer": [commands...], "location": [texts...]},
//       "collectives": [{"command", "bucket", "bytes"}]}],
//    "texts": ["...", ...]}          // labels, kernels and locations, by index
//
// Arrays per column instead of objects per row keep twelve thousand commands
// with nine thousand buffers within a megabyte. `writer` is the first command
// that writes a buffer. A location is "FILE:LINE" in model.mlir, or empty.

#ifndef QLORA_COMPILER_REPORT_TIMELINEJSON_H
#define QLORA_COMPILER_REPORT_TIMELINEJSON_H

#include "compiler/Report/EntryTimeline.h"

namespace qlora {

/// Returns the JSON on one line. The timelines are those of the program's
/// entries, in order.
std::string timelineJson(mlir::ModuleOp program,
                         llvm::ArrayRef<EntryTimeline> timelines);

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_TIMELINEJSON_H
