// SPDX-License-Identifier: MIT

// How the ranks of a job find each other: a small key-value store that rank 0
// serves over TCP.
//
// A connection starts with proof of the job's secret: the server sends 32
// random bytes, the client answers with their HMAC-SHA256 under the secret.
// The secret itself never travels. Without the right answer the connection is
// closed. Then requests follow, integers little endian:
//
//   u8 'S', u32 key bytes, u32 value bytes, key, value  -> u8 0
//   u8 'G', u32 key bytes, u32 timeout ms, key          -> u8 0, u32, value
//                                                        | u8 1 (timeout)
//
// Only addresses and other small facts go through it; data goes through the
// collectives.

#ifndef QLORA_RUNTIME_RANKS_TCPSTORE_H
#define QLORA_RUNTIME_RANKS_TCPSTORE_H

#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Ranks/Socket.h"

namespace qlora {

/// Serves until destroyed: one thread that accepts, one per connection.
class TcpStoreServer {
public:
  /// `listening`: from listenOn(), or inherited.
  static StatusOr<std::unique_ptr<TcpStoreServer>>
  start(FileDescriptor listening, std::string secret);
  ~TcpStoreServer();

private:
  struct Connection {
    FileDescriptor socket;
    std::thread thread;
    bool isFinished = false; ///< guarded by `mutex`
  };

  TcpStoreServer(FileDescriptor listening, std::string secret);
  void acceptConnections();
  void removeFinished();
  void serve(Connection &connection);
  Status authenticate(const FileDescriptor &socket) const;
  Status answerOne(const FileDescriptor &socket);
  Status answerSet(const FileDescriptor &socket);
  Status answerGet(const FileDescriptor &socket);

  FileDescriptor listening;
  FileDescriptor wakeReader, wakeWriter; ///< a pipe; closing it ends accept
  const std::string secret;
  std::mutex mutex; ///< guards everything below
  std::condition_variable changed;
  bool isStopping = false;
  std::map<std::string, std::string> values;
  std::list<Connection> connections;
  std::thread acceptor;
};

/// A client. Thread-safe: requests of several threads take turns.
class TcpStore {
public:
  /// Tries until `timeout` has passed, since rank 0 may start later.
  static StatusOr<std::unique_ptr<TcpStore>>
  connect(const std::string &host, int port, std::string_view secret,
          std::chrono::milliseconds timeout);

  Status set(std::string_view key, std::string_view value);

  /// Waits until some rank has set the key.
  StatusOr<std::string> get(std::string_view key,
                            std::chrono::milliseconds timeout);

  /// The address of this machine that rank 0 is reached from.
  const std::string &localAddress() const { return address; }

private:
  TcpStore(FileDescriptor socket, std::string address)
      : socket(std::move(socket)), address(std::move(address)) {}

  FileDescriptor socket;
  std::string address;
  std::mutex mutex;
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_TCPSTORE_H
