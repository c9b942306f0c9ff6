// SPDX-License-Identifier: MIT

// A planned program as what torch.cuda.memory._dump_snapshot writes, for
// pytorch.org/memory_viz and torch's own scripts: a pickle of
//
//   {"segments": [...], "device_traces": [[...]], "allocator_settings": {},
//    "external_annotations": []}
//
// Each arena is a segment of device 0; host memory has none. What is there all
// the time (weights, adapters, their gradients and moments, inputs, results)
// are its blocks. What plan-memory packed is allocated and freed in the trace:
// the entries one after another, each from empty to empty, at the first
// command that may use a buffer and after the last. The inner micro-batches'
// entry is left out: it is the last one's without collectives. `time_us` is the
// predicted time since the trace began.
//
// Frames: the kernel that writes the buffer first, then the layer, both at its
// place in model.mlir, then the entry.

#ifndef QLORA_COMPILER_REPORT_MEMORYSNAPSHOT_H
#define QLORA_COMPILER_REPORT_MEMORYSNAPSHOT_H

#include "compiler/Report/EntryTimeline.h"

namespace qlora {

std::string memorySnapshot(mlir::ModuleOp program,
                           llvm::ArrayRef<EntryTimeline> timelines);

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_MEMORYSNAPSHOT_H
