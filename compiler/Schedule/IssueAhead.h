// SPDX-License-Identifier: MIT

// For assign-queues: moves launches that only prepare a frozen weight to the
// copy queue, ahead of the first reader of their result.

#ifndef QLORA_COMPILER_SCHEDULE_ISSUEAHEAD_H
#define QLORA_COMPILER_SCHEDULE_ISSUEAHEAD_H

#include "dialects/Program/Program.h"
#include "runtime/Kernels/DeviceProfile.h"

#include "mlir/IR/SymbolTable.h"

namespace qlora {

/// Moves launches that prepare a frozen weight to the copy queue.
///
/// A launch qualifies if it reads only frozen parameters (gathered or not) and
/// writes only to one buffer of the activation arena. No earlier command of
/// another kind may touch that buffer. A qualifying launch can run at any time
/// before the buffer's first reader, while the buffer's memory is free.
///
/// To save memory, launches move only until the arithmetic of the commands in
/// between hides them, according to the cost model. No launch moves before the
/// reader of the previous prepared buffer, so at most two such buffers are
/// alive if each is read once.
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
