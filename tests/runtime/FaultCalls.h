// SPDX-License-Identifier: MIT

// What Faults.cpp and the entry points that it replaces tell each other.

#ifndef QLORA_TESTS_RUNTIME_FAULTCALLS_H
#define QLORA_TESTS_RUNTIME_FAULTCALLS_H

#include "tests/runtime/Faults.h"

namespace qlora {

// Traits of a call, as bits added to its kind in FaultCalls.

/// Fails on a full disk.
inline constexpr unsigned kNeedsSpace = 1 << 8;
/// May write fewer bytes than it was given.
inline constexpr unsigned kWrites = 1 << 9;
/// Fails with EINTR if a signal arrives.
inline constexpr unsigned kIsInterrupted = 1 << 10;

/// Result of faultAt() for a write that writes only half of its bytes.
inline constexpr int kShortWrite = -1;

/// Returns whether calls are counted or recorded.
bool areFaultsArmed();

/// Returns whether fsync() need not wait for the disk.
bool isDiskSpared();

/// Returns the error of this call, 0 or kShortWrite. `place`: path or symbol,
/// may be empty. `from`: old path of a rename.
int faultAt(const char *function, unsigned traits, const std::string &place,
            const std::string &from = {});

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_FAULTCALLS_H
