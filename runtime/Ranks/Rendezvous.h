// SPDX-License-Identifier: MIT

// How the ranks of a job find each other: rank 0 serves one exchange over TCP.
// Each rank gives a few bytes, and is given those of the rank after it, once
// all are there. With that the ranks are a ring (Ring.h), which carries all
// else.
//
// A connection starts with proof of the job's secret, from both sides, over 32
// random bytes of each. The secret itself never travels. Without the right
// proof the connection is closed. Integers are little endian:
//
//   server: random bytes       client: random bytes, proof
//   server: proof              client: u32 rank, u32 ranks, u32 bytes, bytes
//   server: u8 0, u32 bytes, the bytes of the next rank | u8 1, u32, why not

#ifndef QLORA_RUNTIME_RANKS_RENDEZVOUS_H
#define QLORA_RUNTIME_RANKS_RENDEZVOUS_H

#include <array>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Ranks/Socket.h"

namespace qlora {

/// How long who has connected may take to prove the secret. Whoever says
/// nothing holds up a thread of the server, or the accept of a ring, until then.
inline constexpr std::chrono::milliseconds kHandshakeTimeout =
    std::chrono::seconds(10);

/// Random bytes, or the HMAC-SHA256 of some under the job's secret.
using Digest = std::array<unsigned char, 32>;
StatusOr<Digest> randomDigest();
/// That somebody who knows the secret says `role` of what was drawn.
Digest proofOf(std::string_view secret, std::string_view role,
               const Digest &drawn);
/// In a time that does not tell where they differ.
bool isSame(const Digest &a, const Digest &b);

/// Serves until destroyed: one thread that accepts, one per connection.
class RendezvousServer {
public:
  /// `listening`: from listenOn(), or inherited.
  static StatusOr<std::unique_ptr<RendezvousServer>>
  start(FileDescriptor listening, std::string secret, int ranks,
        std::chrono::milliseconds handshakeTimeout = kHandshakeTimeout);
  ~RendezvousServer();

private:
  struct Connection {
    FileDescriptor socket;
    std::thread thread;
    bool isFinished = false; ///< guarded by `mutex`
  };

  RendezvousServer(FileDescriptor listening, std::string secret, int ranks,
                   std::chrono::milliseconds handshakeTimeout);
  void acceptConnections();
  void removeFinished();
  Status serve(const FileDescriptor &socket);
  Status authenticate(const FileDescriptor &socket) const;
  StatusOr<std::string> exchange(uint32_t rank, uint32_t ranks,
                                 std::string value);

  FileDescriptor listening;
  const std::string secret;
  const std::chrono::milliseconds handshakeTimeout;
  std::mutex mutex; ///< guards everything below
  std::condition_variable changed;
  bool isStopping = false;
  std::vector<std::optional<std::string>> values; ///< by rank
  size_t missing;
  std::list<Connection> connections;
  std::thread acceptor;
};

/// A client.
class Rendezvous {
public:
  static constexpr uint32_t kMaxValueBytes = 1024;

  /// Tries until `timeout` has passed, since rank 0 may start later.
  static StatusOr<Rendezvous>
  connect(const std::string &host, int port, std::string_view secret,
          std::chrono::milliseconds timeout,
          std::chrono::milliseconds handshakeTimeout = kHandshakeTimeout);

  /// The address of this machine that rank 0 is reached from.
  const std::string &localAddress() const { return address; }

  /// What the rank after this one gives, in a circle. Waits for all. Once.
  StatusOr<std::string> exchange(int rank, int ranks, std::string_view value,
                                 std::chrono::milliseconds timeout);

private:
  Rendezvous(FileDescriptor socket, std::string address)
      : socket(std::move(socket)), address(std::move(address)) {}

  FileDescriptor socket;
  std::string address;
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RENDEZVOUS_H
