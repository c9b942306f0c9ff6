// SPDX-License-Identifier: MIT

// Moves launches that only prepare a frozen weight to the copy queue, ahead of
// who reads what they make, for assign-queues.

#ifndef QLORA_COMPILER_SCHEDULE_ISSUEAHEAD_H
#define QLORA_COMPILER_SCHEDULE_ISSUEAHEAD_H

#include "dialects/Program/Program.h"
#include "runtime/Kernels/DeviceProfile.h"

#include "mlir/IR/SymbolTable.h"

namespace qlora {

/// Which launches. One that reads frozen parameters and nothing else, be they
/// gathered, and
/// writes one buffer of the activation arena, whole or a part, and nothing
/// else; and before it nothing but such launches touches that buffer. So it
/// can run at any time before the buffer's first reader, but for the memory
/// of the buffer.
///
/// When. Late, for that memory: right before the last commands whose
/// arithmetic hides it, by the cost model, and not before the reader of the
/// previous such buffers. So one is made while at most the one before it
/// waits to be read or is: two buffers in turn, if each is read once.
///
///     gemm(.., s0)                          decode -> s1    (copy queue)
///     decode -> s1           becomes        gemm(.., s0)
///     gemm(.., s1)                          gemm(.., s1)
///
/// Sets the queue and moves the launches, in the order of their readers;
/// events are the caller's. `symbols` has the program.kernels. Returns how
/// many launches were moved.
unsigned issueAhead(program::EntryOp entry, const mlir::SymbolTable &symbols,
                    const DeviceProfile &device);

} // namespace qlora

#endif // QLORA_COMPILER_SCHEDULE_ISSUEAHEAD_H
