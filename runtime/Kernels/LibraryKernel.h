// SPDX-License-Identifier: MIT

// How the CPU device runs a library kernel: prepare once at load (oneDNN
// primitives are created here), run many times without allocating.

#ifndef QLORA_RUNTIME_KERNELS_LIBRARYKERNEL_H
#define QLORA_RUNTIME_KERNELS_LIBRARYKERNEL_H

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Kernels/KernelTable.h"

namespace qlora {

/// A block of logits: of the rows `rows` (numbers b * T + t) for the words
/// [firstWord, firstWord + words) of `vocab`; f32 [rows.size(), words]. Where the
/// words lie in pieces on ranks, rows are those of all ranks.
struct LogitsBlock {
  std::span<const int32_t> rows = {};
  const float *logits = nullptr;
  int64_t firstWord = 0, words = 0, vocab = 0;
  /// Not 0: firstWord counts from the shard-th so many words on, and the last
  /// ones may be none of the vocabulary.
  int64_t piece = 0;
};

/// Sees what a step does not keep. Set on a rank only while `--dump` records
/// the logits; null otherwise.
struct KernelObserver {
  /// Called by head_loss and head_part with each finished block, from one thread
  /// at a time.
  std::function<void(const LogitsBlock &block)> onLogits;
};

struct LibraryKernelArgs {
  std::span<void *const> buffers; ///< one per operand; null when absent
  const qlora_step_block *step = nullptr;
  KernelObserver *observer = nullptr;
};

class LibraryKernel;

/// A launch that is made beside others. The arguments outlive it.
struct LaunchTogether {
  LibraryKernel *kernel = nullptr;
  const LibraryKernelArgs *args = nullptr;
};

/// A prepared launch. Not thread-safe: a rank runs it from its compute
/// thread; the kernel itself uses OpenMP with the threads of that rank.
class LibraryKernel {
public:
  virtual ~LibraryKernel() = default;
  /// Must not allocate on the heap of ours and must not throw.
  virtual Status run(const LibraryKernelArgs &args) = 0;

  /// Names what is done with a frozen operand before anything else, where that
  /// can serve the launches of several runs; empty where nothing can.
  virtual std::string sharedForm() const { return {}; }
  /// Makes launches, of which this one is the first, that have one sharedForm()
  /// and the same frozen operand: each with the bits that run() gives it.
  virtual Status runTogether(std::span<const LaunchTogether> launches) {
    for (const LaunchTogether &launch : launches)
      QLORA_RETURN_IF_ERROR(launch.kernel->run(*launch.args));
    return Status::ok();
  }
};

/// Whether `row` can do `request` with so much workspace, on any target;
/// kUnavailable where not.
inline Status checkPrepared(const KernelRow &row, const KernelRequest &request,
                            uint64_t workspaceBytes) {
  if (const std::optional<std::string> reason = row.reject(request))
    return Status::error(StatusCode::kUnavailable, "{}: {}", row.fullName(),
                         *reason);
  const uint64_t needed = row.workspaceBytes(request);
  if (workspaceBytes < needed)
    return Status::error(StatusCode::kUnavailable,
                         "{} needs a workspace of {} bytes, got {}",
                         row.fullName(), needed, workspaceBytes);
  return Status::ok();
}

/// Prepares `row` for `request`, with at most `workspaceBytes` of workspace
/// for whatever the library needs. A refusal (kUnavailable) makes the caller
/// try the op's next row.
StatusOr<std::unique_ptr<LibraryKernel>>
prepareCpuKernel(const KernelRow &row, const KernelRequest &request,
                 uint64_t workspaceBytes);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_LIBRARYKERNEL_H
