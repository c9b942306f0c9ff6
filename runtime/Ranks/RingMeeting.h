// SPDX-License-Identifier: MIT

// Connects the neighbours in a ring.

#ifndef QLORA_RUNTIME_RANKS_RINGMEETING_H
#define QLORA_RUNTIME_RANKS_RINGMEETING_H

#include <array>
#include <chrono>
#include <string>
#include <string_view>

#include "runtime/Ranks/Ring.h"

namespace qlora {

/// The connections of two neighbours, in the order in which they are opened.
enum RingLane { kData, kControl, kLanes };
using RingSockets = std::array<FileDescriptor, 2>; ///< index: Ring::Neighbour

/// Arguments of meet().
struct RingMeeting {
  const std::string &address;
  const Ring::TellNext &tellNext;
  std::string_view secret;
  int rank, previous;
  int lanes; ///< 1: only kData; 2: both
  std::chrono::milliseconds patience, handshakeTimeout;
  /// Returns an error once another rank has failed.
  const Ring::CheckOthers &checkOthers;
};

/// Connects this rank to its neighbours and returns the sockets, indexed by
/// RingLane. All members of a ring call it.
StatusOr<std::array<RingSockets, kLanes>> meet(const RingMeeting &meeting);

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RINGMEETING_H
