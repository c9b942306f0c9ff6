// SPDX-License-Identifier: MIT

// How neighbours in a ring connect.

#ifndef QLORA_RUNTIME_RANKS_RINGMEETING_H
#define QLORA_RUNTIME_RANKS_RINGMEETING_H

#include <array>
#include <chrono>
#include <string>
#include <string_view>

#include "runtime/Ranks/Ring.h"

namespace qlora {

/// The connections of two neighbours, in the order in which they are made.
enum RingLane { kData, kControl, kLanes };
using RingSockets = std::array<FileDescriptor, 2>; ///< by Ring::Neighbour

/// How this rank comes to its neighbours.
struct RingMeeting {
  const std::string &address;
  const Ring::TellNext &tellNext;
  std::string_view secret;
  int rank, previous;
  int lanes; ///< kData alone, or both
  std::chrono::milliseconds patience, handshakeTimeout;
};

/// By RingLane. All members of a ring call it.
StatusOr<std::array<RingSockets, kLanes>> meet(const RingMeeting &meeting);

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RINGMEETING_H
