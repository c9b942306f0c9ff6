// SPDX-License-Identifier: MIT

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

#ifndef QLORA_RUNTIME_BASE_PROCESSMEMORY_H
#define QLORA_RUNTIME_BASE_PROCESSMEMORY_H

#include <cstdint>

namespace qlora {

struct ProcessMemory {
  uint64_t residentBytes = 0; ///< VmRSS
  uint64_t peakBytes = 0;     ///< VmHWM: the largest since the start
};

/// Zeros where /proc does not say.
ProcessMemory readProcessMemory();

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

#endif // QLORA_RUNTIME_BASE_PROCESSMEMORY_H
