// SPDX-License-Identifier: MIT

// A rank's side of the rendezvous (RendezvousProtocol.h).

#ifndef QLORA_RUNTIME_RANKS_RENDEZVOUS_H
#define QLORA_RUNTIME_RANKS_RENDEZVOUS_H

#include <chrono>
#include <string>
#include <string_view>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Ranks/RendezvousProtocol.h"

namespace qlora {

/// What a client waits longer than the server, whose word is to come first.
inline constexpr std::chrono::milliseconds kLonger = std::chrono::seconds(10);

/// A client: one rank.
class Rendezvous {
public:
  struct Self {
    int rank = 0;
    int ranks = 1;
    std::string host; ///< what people call this machine
    std::string version;
  };

  /// Tries until `timeout` has passed, since rank 0 may start later. Where the
  /// port accepts, waits for rank 0's word `longer` than that: rank 0 may be out
  /// of descriptors, and its own line is the better one.
  static StatusOr<Rendezvous>
  connect(const std::string &host, int port, std::string_view secret, Self self,
          std::chrono::milliseconds timeout,
          std::chrono::milliseconds longer = kLonger);

  /// The address of this machine that rank 0 is reached from.
  const std::string &localAddress() const { return address; }
  const Self &self() const { return me; }

  /// The first: what the rank after this one gives, in a circle. The second: no
  /// more than that all are there. An error is told in the place of a value;
  /// it, or another rank's that was first, comes back as kAborted.
  StatusOr<std::string> exchange(const StatusOr<std::string> &own,
                                 std::chrono::milliseconds timeout);

private:
  Rendezvous(FileDescriptor socket, std::string address, std::string place,
             Self self)
      : socket(std::move(socket)), address(std::move(address)),
        place(std::move(place)), me(std::move(self)) {}

  FileDescriptor socket;
  std::string address;
  std::string place; ///< of rank 0
  Self me;
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RENDEZVOUS_H
