// SPDX-License-Identifier: MIT

// Page-aligned, zero-initialized memory for arenas, which is unmapped when its
// owner is destroyed. Also predicts and measures a process's resident memory.

#ifndef QLORA_RUNTIME_BASE_HOSTMEMORY_H
#define QLORA_RUNTIME_BASE_HOSTMEMORY_H

#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/Base/Status.h"

namespace qlora {

/// Owns a range of mapped memory. Movable; may be empty.
class HostMemory {
public:
  HostMemory() = default;
  /// Maps private memory, with huge pages if the system has them.
  static StatusOr<HostMemory> anonymous(uint64_t bytes);
  /// Creates shared memory without a path, which exists until the last process
  /// closes it. `name` is shown in /proc. The caller closes the descriptor.
  static StatusOr<int> createShared(const char *name, uint64_t bytes);
  /// Maps the shared memory of `descriptor`, which must have `bytes` bytes.
  static StatusOr<HostMemory> shared(int descriptor, uint64_t bytes);
  /// Maps the first `bytes` of a file read-only. The file must not be shorter.
  static StatusOr<HostMemory> readOnly(int descriptor, uint64_t bytes);
  /// Advises the system to read a mapped file's pages now, not at first use.
  void populate() const;

  HostMemory(HostMemory &&other) noexcept;
  HostMemory &operator=(HostMemory &&other) noexcept;
  ~HostMemory();

  std::span<uint8_t> bytes() const { return {base, size}; }
  /// Forbids further writes from this process.
  Status protect();

private:
  HostMemory(uint8_t *base, uint64_t size) : base(base), size(size) {}
  static StatusOr<HostMemory> map(uint64_t bytes, int protection, int flags,
                                  int descriptor);

  uint8_t *base = nullptr;
  uint64_t size = 0;
};

// Resident memory of this process, as Linux counts it. If local ranks share the
// pages of a base, every rank's count includes them. The peak of a CPU rank is
// the sum of
//
//   arenas            in a plan, all bytes; in a run, the bytes that the run
//                     will touch (Predict/ResidentMemoryEstimate.h)
//   process memory    before the arenas: code of the program and its libraries,
//                     their allocations, prepared kernels, train.so, tokens.
//                     qlora-run measures it before it reads weights.
//   kFirstStepBytes   code that first runs in a step, with generated kernels
//
// The buffers for reading weights do not add to the peak: they are freed before
// the first step touches the arenas that hold no weights.

struct ProcessMemory {
  uint64_t residentBytes = 0; ///< VmRSS
  uint64_t peakBytes = 0;     ///< VmHWM: the peak since the start
};

/// Returns zeros if /proc lacks the values.
ProcessMemory readProcessMemory();

/// Reads the line "NAME:   123 kB" of a /proc file, in bytes; 0 if missing.
uint64_t procBytes(const char *file, std::string_view name);

/// The compiler's estimate of the process memory before the arenas.
inline constexpr uint64_t kTypicalProcessBytes = uint64_t{24} << 20;

/// Bytes that the first step adds to a process.
inline constexpr uint64_t kFirstStepBytes = uint64_t{8} << 20;

/// Returns the predicted peak resident bytes of a rank with `arenaBytes` of
/// arenas and `processBytes` before them. The measured peak may differ by 5 %
/// of the prediction plus 64 MiB (bench/ours.py).
constexpr uint64_t predictedPeakBytes(uint64_t arenaBytes,
                                      uint64_t processBytes) {
  return arenaBytes + processBytes + kFirstStepBytes;
}

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_HOSTMEMORY_H
