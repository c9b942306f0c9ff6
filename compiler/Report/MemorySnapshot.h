// SPDX-License-Identifier: MIT

// Writes a planned program like torch.cuda.memory._dump_snapshot, for
// pytorch.org/memory_viz and torch's own scripts: a pickle of
//
//   {"segments": [...], "device_traces": [[...]], "allocator_settings": {},
//    "external_annotations": []}
//
// Each arena is a segment of device 0; host memory has none. Permanent content
// (weights, adapters, gradients, moments, inputs, results) are blocks of it.
// Buffers that plan-memory packed are allocated in the trace at their first
// command and freed after their last. Entries follow one another, each from
// empty to empty. The entry of inner micro-batches is omitted: it equals the
// last one without collectives. `time_us` is the predicted time since the trace
// began.
//
// Frames: the kernel that first writes the buffer, then the layer, both at the
// place in model.mlir, then the entry.

#ifndef QLORA_COMPILER_REPORT_MEMORYSNAPSHOT_H
#define QLORA_COMPILER_REPORT_MEMORYSNAPSHOT_H

#include "compiler/Report/EntryTimeline.h"

namespace qlora {

std::string memorySnapshot(mlir::ModuleOp program,
                           llvm::ArrayRef<EntryTimeline> timelines);

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_MEMORYSNAPSHOT_H
