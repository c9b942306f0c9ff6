// SPDX-License-Identifier: MIT

// Writes a planned program like torch.cuda.memory._dump_snapshot, for
// pytorch.org/memory_viz and torch's own scripts: a pickle of
//
//   {"segments": [...], "device_traces": [[...]], "allocator_settings": {},
//    "external_annotations": []}
//
// Each arena in device memory is a segment of device 0. Permanent content
// (weights, adapters, gradients, moments, inputs, results) consists of blocks
// of its arena's segment. Other buffers are allocated in the trace at their
// first command and freed after their last. The trace lists the entries one
// after the other. It omits `accumulate`, which runs the micro-batches before a
// step's last: it equals the last micro-batch's entry without collectives.
// `time_us` is the predicted time since the trace began.
//
// The stack frames of a buffer are the kernel that first writes it and the
// layer, both with their location in model.mlir, and then the entry.

#ifndef QLORA_COMPILER_REPORT_MEMORYSNAPSHOT_H
#define QLORA_COMPILER_REPORT_MEMORYSNAPSHOT_H

#include "compiler/Report/EntryTimeline.h"

namespace qlora {

/// Returns the pickle.
std::string memorySnapshot(mlir::ModuleOp program,
                           llvm::ArrayRef<EntryTimeline> timelines);

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_MEMORYSNAPSHOT_H
