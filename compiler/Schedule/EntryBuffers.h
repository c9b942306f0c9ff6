// SPDX-License-Identifier: MIT

// The buffers of an entry and when each of them lives: what plan-memory packs
// and the report draws.

#ifndef QLORA_COMPILER_SCHEDULE_ENTRYBUFFERS_H
#define QLORA_COMPILER_SCHEDULE_ENTRYBUFFERS_H

#include "compiler/Support/Liveness.h"
#include "dialects/Program/Program.h"

namespace qlora {

/// Those that a command uses, of all arenas, in the order of their first use.
/// A life is in positions among commandsOf(entry): it begins no later than the
/// first command that may use the buffer beside the compute queue, and ends no
/// earlier than the last (QueueOrder.h).
struct EntryBuffers {
  llvm::SmallVector<program::BufferOp> ops;
  std::vector<BufferLife> lives; ///< of ops
};
EntryBuffers buffersOf(program::EntryOp entry);

} // namespace qlora

#endif // QLORA_COMPILER_SCHEDULE_ENTRYBUFFERS_H
