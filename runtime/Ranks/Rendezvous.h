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

/// A client of the rendezvous: one rank.
class Rendezvous {
public:
  struct Self {
    int rank = 0;
    int ranks = 1;
    std::string host; ///< this machine's host name
    std::string version;
  };

  /// Tries to connect until `timeout` has passed, because rank 0 may start
  /// later. Once connected, waits for an answer for up to `limits.longer` more,
  /// so that an error of rank 0's server comes before this rank's timeout.
  static StatusOr<Rendezvous> connect(const std::string &host, int port,
                                      std::string_view secret, Self self,
                                      std::chrono::milliseconds timeout,
                                      const RankTimeLimits &limits = {});

  /// Returns this machine's address on the connection to rank 0.
  const std::string &localAddress() const { return address; }
  const Self &self() const { return me; }

  /// Exchanges texts with all ranks. The first call returns the text of the
  /// next rank (cyclically); the second call only confirms that all ranks are
  /// connected. `own` may be an error instead of a text. All ranks then return
  /// the first such error as kAborted.
  StatusOr<std::string> exchange(const StatusOr<std::string> &own,
                                 std::chrono::milliseconds timeout);
  /// Returns the first error of any rank if the start has failed. Called
  /// between exchanges; does not block.
  Status check();
  /// Closes the connection, which ends the start of all ranks that still wait.
  void close() { socket = FileDescriptor(); }

private:
  Rendezvous(FileDescriptor socket, std::string address, std::string place,
             Self self, std::chrono::milliseconds longer)
      : socket(std::move(socket)), address(std::move(address)),
        place(std::move(place)), me(std::move(self)), longer(longer) {}
  StatusOr<std::string> receiveAnswer();

  FileDescriptor socket;
  std::string address;
  std::string place; ///< address and port of rank 0
  Self me;
  std::chrono::milliseconds longer; ///< RankTimeLimits::longer
  Status refusal;                   ///< what check() has received
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RENDEZVOUS_H
