// SPDX-License-Identifier: MIT

// A poll loop over a listening socket and all connections that it has accepted.
//
// Any program that reaches the port of a rank can connect: port scanners,
// probes of a service mesh, another job. So the loop waits for no single
// connection. Each is a small state machine that advances when its bytes
// arrive; one thread serves all. A connection that has not proved the job's
// secret is closed a fixed time after it was accepted, whatever it sends.
//
// If the process runs out of file descriptors, waiting connections stay in the
// system's queue. The loop then closes unproven connections after a second and
// tries again every 100 ms. shortage() returns the reason.

#ifndef QLORA_RUNTIME_RANKS_CONNECTIONLOOP_H
#define QLORA_RUNTIME_RANKS_CONNECTIONLOOP_H

#include <chrono>
#include <list>
#include <string>
#include <string_view>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Ranks/RendezvousProtocol.h"

namespace qlora {

/// Only wake() may be called from several threads.
class ConnectionLoop {
public:
  using Clock = std::chrono::steady_clock;

  /// An accepted connection. The protocol writes `unsent` only with send().
  struct Connection {
    FileDescriptor socket; ///< the protocol may move it out and keep it
    /// Size in bytes of the message that is read next. 0: nothing is read.
    size_t wanted = 0;
    std::string received; ///< never more than `wanted` bytes
    std::string unsent;   ///< bytes to send when the socket accepts them
    bool isProven = false;
    bool isLast = false; ///< close the connection once `unsent` is empty
    /// When the loop closes the connection. The protocol may change it.
    Clock::time_point deadline;
    Clock::time_point accepted;
    // Fields that only the protocol uses.
    uint32_t rank = 0;
    size_t step = 0;
    Digest drawn{};
  };

  /// Interprets the messages. Its functions must not block.
  class Protocol {
  public:
    virtual ~Protocol() = default;
    virtual void accept(Connection &connection) = 0;
    /// Handles the `wanted` bytes in `received`. Must clear `received`, or
    /// raise `wanted` for a longer message with the same beginning.
    virtual void receive(Connection &connection) = 0;
    /// Called before the loop closes a connection. `isLast` is false if the
    /// other end has closed it, or its deadline has passed.
    virtual void close(Connection &connection) = 0;
  };

  /// `unprovenTime`: how long a connection may take to become proven.
  static StatusOr<ConnectionLoop>
  create(FileDescriptor listening, std::chrono::milliseconds unprovenTime);

  /// Waits for an event, at most until `until`, and handles it.
  void turn(Protocol &protocol, Clock::time_point until);
  /// Makes turn() return. May be called from any thread.
  void wake();

  void send(Connection &connection, std::string_view bytes);
  std::list<Connection> &connections() { return open; }
  /// Returns why the latest connection could not be accepted, with the remedy;
  /// empty if it was accepted.
  const std::string &shortage() const { return lack; }

private:
  ConnectionLoop(FileDescriptor listening, FileDescriptor event,
                 std::chrono::milliseconds unprovenTime)
      : listening(std::move(listening)), event(std::move(event)),
        unprovenTime(unprovenTime) {}
  void acceptAll(Protocol &protocol);
  void advance(Connection &connection, Protocol &protocol);
  void read(Connection &connection, Protocol &protocol);
  void write(Connection &connection);
  void closeEnded(Protocol &protocol);
  Clock::time_point deadlineOf(const Connection &connection) const;

  FileDescriptor listening, event;
  std::chrono::milliseconds unprovenTime;
  std::list<Connection> open;
  std::string lack;
  Clock::time_point nextLook; ///< next accept attempt during a shortage
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_CONNECTIONLOOP_H
