// SPDX-License-Identifier: MIT

// The interface between Faults.cpp and the functions that FaultCalls.cpp
// replaces.

#ifndef QLORA_TESTS_RUNTIME_FAULTCALLS_H
#define QLORA_TESTS_RUNTIME_FAULTCALLS_H

#include "tests/runtime/Faults.h"

namespace qlora {

// Traits of a call, as bits in addition to its kind (FaultCalls).

/// The call fails on a full disk.
inline constexpr unsigned kNeedsSpace = 1 << 8;
/// The call may write fewer bytes than it was given.
inline constexpr unsigned kWrites = 1 << 9;
/// The call fails with EINTR if a signal arrives.
inline constexpr unsigned kIsInterrupted = 1 << 10;

/// The call frees a resource. Faults never affect it.
inline constexpr unsigned kFrees = 1 << 11;

/// Result of faultAt() for a write that must write only half of its bytes.
inline constexpr int kShortWrite = -1;

/// Returns whether calls are counted or recorded.
bool areFaultsArmed();

/// Returns whether fsync() may skip waiting for the disk.
bool isDiskSpared();

/// Returns the error with which this call must fail, kShortWrite, or 0 if the
/// call must not fail. `place` is a path or symbol and may be empty. `from` is
/// the old path of a rename.
int faultAt(const char *function, unsigned traits, const std::string &place,
            const std::string &from = {});

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_FAULTCALLS_H
