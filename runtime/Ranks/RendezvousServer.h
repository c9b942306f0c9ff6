// SPDX-License-Identifier: MIT

// Rank 0's side of the rendezvous (RendezvousProtocol.h).

#ifndef QLORA_RUNTIME_RANKS_RENDEZVOUSSERVER_H
#define QLORA_RUNTIME_RANKS_RENDEZVOUSSERVER_H

#include <array>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Ranks/RendezvousProtocol.h"

namespace qlora {

/// Serves until destroyed: one thread that accepts, one per connection.
class RendezvousServer {
public:
  struct Terms {
    std::string secret;
    int ranks = 1;
    std::string version; ///< that ranks have to have
    std::string place;   ///< that clients reach it by, for messages
    std::chrono::milliseconds patience = std::chrono::minutes(1);
    std::chrono::milliseconds handshake = kHandshakeTimeout;
    /// For the missing ranks once one has come with another secret.
    std::chrono::milliseconds strangerPatience = std::chrono::seconds(5);
    /// For the second exchange, since the first.
    std::chrono::milliseconds ringPatience = std::chrono::seconds(40);
  };

  /// `listening`: from listenOn(), or inherited.
  static StatusOr<std::unique_ptr<RendezvousServer>>
  start(FileDescriptor listening, Terms terms);
  ~RendezvousServer();

  /// Returns when all ranks have been told how the start ended; no later than
  /// `patience` from now.
  void waitUntilTold(std::chrono::milliseconds patience);

private:
  struct Connection {
    FileDescriptor socket;
    std::thread thread;
    bool isFinished = false; ///< guarded by `mutex`
  };
  struct Exchange {
    std::vector<std::optional<std::string>> values; ///< by rank
    size_t missing = 0;
  };
  static constexpr size_t kExchanges = 2;

  RendezvousServer(FileDescriptor listening, Terms terms);
  void acceptConnections();
  void removeFinished();
  Status serve(const FileDescriptor &socket);
  StatusOr<uint32_t> authenticate(const FileDescriptor &socket);
  Status answer(const FileDescriptor &socket, uint32_t rank, size_t number);
  bool isWelcome(const RendezvousRequest &request, uint32_t rank,
                 size_t number);
  StatusOr<std::string> exchange(size_t number, uint32_t rank,
                                 std::string value,
                                 const FileDescriptor &socket);
  void noteStranger(const FileDescriptor &socket, uint32_t rank);
  void fail(std::string why);
  void failForMissing(size_t number);
  std::string missingText(const Exchange &exchange) const;

  FileDescriptor listening;
  const Terms terms;
  std::mutex mutex; ///< guards everything below
  std::condition_variable changed;
  bool isStopping = false;
  std::array<Exchange, kExchanges> exchanges;
  std::chrono::steady_clock::time_point deadline; ///< of the current one
  std::string stranger;           ///< what to say of one with another secret
  std::string failure;            ///< what all are told; the first
  std::vector<std::string> hosts; ///< by rank
  std::vector<bool> isTold;       ///< by rank
  std::list<Connection> connections;
  std::thread acceptor;
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RENDEZVOUSSERVER_H
