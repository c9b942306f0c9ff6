// SPDX-License-Identifier: MIT

// Memory mapped from the system: page-aligned, zero at first, returned when
// the owner ends. Arenas are made of it. And what a process has resident.

#ifndef QLORA_RUNTIME_BASE_HOSTMEMORY_H
#define QLORA_RUNTIME_BASE_HOSTMEMORY_H

#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/Base/Status.h"

namespace qlora {

/// Movable; an empty one owns nothing.
class HostMemory {
public:
  HostMemory() = default;
  /// Private memory, with huge pages where the system has them.
  static StatusOr<HostMemory> anonymous(uint64_t bytes);
  /// A descriptor of shared memory of `bytes`, which the caller closes. It has
  /// no path and ends with its last process. `name`: what /proc shows.
  static StatusOr<int> createShared(const char *name, uint64_t bytes);
  /// Shared memory behind a descriptor of exactly `bytes`.
  static StatusOr<HostMemory> shared(int descriptor, uint64_t bytes);
  /// The first `bytes` of a file that has at least so many, to read.
  static StatusOr<HostMemory> readOnly(int descriptor, uint64_t bytes);
  /// Has the pages of a file read now, at once, and not one by one in its first
  /// use. Advice.
  void populate() const;

  HostMemory(HostMemory &&other) noexcept;
  HostMemory &operator=(HostMemory &&other) noexcept;
  ~HostMemory();

  std::span<uint8_t> bytes() const { return {base, size}; }
  /// No write from this process any more.
  Status protect();

private:
  HostMemory(uint8_t *base, uint64_t size) : base(base), size(size) {}
  static StatusOr<HostMemory> map(uint64_t bytes, int protection, int flags,
                                  int descriptor);

  uint8_t *base = nullptr;
  uint64_t size = 0;
};

// Resident memory of this process, as Linux counts it. Pages of a base that
// is shared by local ranks count in each of them.
//
// Memory of a rank's process that is in no arena. A rank on a CPU has resident
// at most
//
//   its arenas + what is there before them + what its first step adds
//
// A plan has all bytes of the arenas; a run, whose data is known, has those
// that it touches (Predict/TouchedMemory.h). Before them there are the code
// of the program and its libraries, what these have allocated, prepared
// kernels, train.so and the tokens of the data: qlora-run measures that before
// it reads weights. The first step adds the code and the generated kernels
// that run in it. Weights are read through windows that are given back, while
// the arenas of a step are still empty, and so are never on top.

struct ProcessMemory {
  uint64_t residentBytes = 0; ///< VmRSS
  uint64_t peakBytes = 0;     ///< VmHWM: the largest since the start
};

/// Zeros where /proc does not say.
ProcessMemory readProcessMemory();

/// Bytes of a line "Name:   123 kB" of a file of /proc; 0 without it.
uint64_t procBytes(const char *file, std::string_view name);

/// What a compile assumes of the process before its arenas.
inline constexpr uint64_t kTypicalProcessBytes = uint64_t{24} << 20;

/// What the first step adds.
inline constexpr uint64_t kFirstStepBytes = uint64_t{8} << 20;

/// Resident bytes at most, of a rank with `arenaBytes` of its arenas and
/// `processBytes` before them. Good to 5 % and 64 MiB.
constexpr uint64_t predictedPeakBytes(uint64_t arenaBytes,
                                      uint64_t processBytes) {
  return arenaBytes + processBytes + kFirstStepBytes;
}

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_HOSTMEMORY_H
