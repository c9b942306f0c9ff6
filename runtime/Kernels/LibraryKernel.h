// SPDX-License-Identifier: MIT

// Interface of library kernels on the CPU device: prepared once at load (oneDNN
// primitives are created), run many times without allocating.

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

/// Logits of `rows` (indices b * T + t) for token ids [firstWord, firstWord +
/// words) of `vocab`; f32 [rows.size(), words]. If the LM head is sharded over
/// ranks, `rows` covers the rows of all ranks.
struct LogitsBlock {
  std::span<const int32_t> rows = {};
  const float *logits = nullptr;
  int64_t firstWord = 0, words = 0, vocab = 0;
  /// 0, or the number of tokens per shard of the LM head. If not 0, firstWord
  /// is relative to the rank's shard, and the last token ids may lie beyond the
  /// vocabulary.
  int64_t piece = 0;
};

/// Observes values that a step does not keep. Used only while `--dump` records
/// the logits.
struct KernelObserver {
  /// Called for each block of logits, by one thread at a time.
  std::function<void(const LogitsBlock &block)> onLogits;
};

struct LibraryKernelArgs {
  std::span<void *const> buffers; ///< one per operand; null when absent
  const qlora_step_block *step = nullptr;
  KernelObserver *observer = nullptr;
};

class LibraryKernel;

/// One launch of a joint run (runTogether). The pointers must outlive the run.
struct LaunchTogether {
  LibraryKernel *kernel = nullptr;
  const LibraryKernelArgs *args = nullptr;
};

/// A prepared launch. Not thread-safe: the compute thread of a rank calls it.
/// The kernel uses the OpenMP threads of that rank.
class LibraryKernel {
public:
  virtual ~LibraryKernel() = default;
  /// Runs the kernel. Must not allocate from the C++ heap and must not throw.
  virtual Status run(const LibraryKernelArgs &args) = 0;

  /// Identifies the preprocessing of a frozen operand that several launches can
  /// share; empty if nothing can be shared.
  virtual std::string sharedForm() const { return {}; }
  /// Runs several launches with equal sharedForm() and the same frozen operand;
  /// the first is of this kernel. Each launch gives the same bits as run().
  virtual Status runTogether(std::span<const LaunchTogether> launches) {
    for (const LaunchTogether &launch : launches)
      QLORA_RETURN_IF_ERROR(launch.kernel->run(*launch.args));
    return Status::ok();
  }
};

/// Returns kUnavailable if `row`, of any target, does not support `request`
/// with `workspaceBytes` of workspace.
inline Status checkPrepared(const KernelRow &row, const KernelRequest &request,
                            uint64_t workspaceBytes) {
  if (const std::optional<std::string> reason = row.reject(request))
    return Status::unavailable("{}: {}", row.fullName(), *reason);
  const uint64_t needed = row.workspaceBytes(request);
  if (workspaceBytes < needed)
    return Status::unavailable("{} needs a workspace of {} bytes, got {}",
                               row.fullName(), needed, workspaceBytes);
  return Status::ok();
}

/// Prepares `row` for `request` with at most `workspaceBytes` of workspace.
/// After kUnavailable the caller tries the op's next row.
StatusOr<std::unique_ptr<LibraryKernel>>
prepareCpuKernel(const KernelRow &row, const KernelRequest &request,
                 uint64_t workspaceBytes);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_LIBRARYKERNEL_H
