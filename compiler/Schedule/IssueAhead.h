// SPDX-License-Identifier: MIT

// For assign-queues: runs launches that only prepare a frozen weight on the
// copy queue. They run ahead of the first reader of their result.

#ifndef QLORA_COMPILER_SCHEDULE_ISSUEAHEAD_H
#define QLORA_COMPILER_SCHEDULE_ISSUEAHEAD_H

#include "dialects/Program/Program.h"
#include "runtime/Kernels/DeviceProfile.h"

#include "mlir/IR/SymbolTable.h"

namespace qlora {

/// Runs launches that prepare a frozen weight on the copy queue, and earlier.
///
/// A launch qualifies if it reads only frozen parameters (gathered or not) and
/// writes only to one buffer of the activation arena. No earlier command of
/// another kind may touch that buffer. A qualifying launch can run at any time
/// before the buffer's first reader, while the buffer's memory is free.
///
/// To save memory, a launch moves only until the arithmetic between its new and
/// old position hides it, according to the cost model. It does not move before
/// the first reader of the buffer that the previous moved launch prepared. So
/// at most two prepared buffers are alive, if each is read once.
///
///     gemm(.., s0)                          decode -> s1    (copy queue)
///     decode -> s1           becomes        gemm(.., s0)
///     gemm(.., s1)                          gemm(.., s1)
///
/// The caller must add the events between queues. `symbols` contains the
/// program.kernels. Returns the number of moved launches.
unsigned issueAhead(program::EntryOp entry, const mlir::SymbolTable &symbols,
                    const DeviceProfile &device);

} // namespace qlora

#endif // QLORA_COMPILER_SCHEDULE_ISSUEAHEAD_H
