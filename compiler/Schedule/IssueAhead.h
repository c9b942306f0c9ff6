// SPDX-License-Identifier: MIT

// For assign-queues: moves launches that only prepare a frozen weight to the
// copy queue, ahead of the first reader of their result.

#ifndef QLORA_COMPILER_SCHEDULE_ISSUEAHEAD_H
#define QLORA_COMPILER_SCHEDULE_ISSUEAHEAD_H

#include "dialects/Program/Program.h"
#include "runtime/Kernels/DeviceProfile.h"

#include "mlir/IR/SymbolTable.h"

namespace qlora {

/// Which launches. A launch qualifies if it reads only frozen parameters
/// (gathered or not) and writes only one buffer of the activation arena, or a
/// range of it. Before it, only such launches may touch that buffer. Such a
/// launch can run at any time before the buffer's first reader, except that
/// the buffer's memory must be free.
///
/// When. As late as possible, to save that memory: right before the last
/// commands whose arithmetic hides it, by the cost model, but not before the
/// reader of the previous such buffers. So at most one earlier buffer is
/// waiting or being read: two buffers alternate, if each is read once.
///
///     gemm(.., s0)                          decode -> s1    (copy queue)
///     decode -> s1           becomes        gemm(.., s0)
///     gemm(.., s1)                          gemm(.., s1)
///
/// Sets the queue and moves the launches, in the order of their readers. The
/// caller adds the events. `symbols` has the program.kernels. Returns the
/// number of launches moved.
unsigned issueAhead(program::EntryOp entry, const mlir::SymbolTable &symbols,
                    const DeviceProfile &device);

} // namespace qlora

#endif // QLORA_COMPILER_SCHEDULE_ISSUEAHEAD_H
