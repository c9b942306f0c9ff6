// SPDX-License-Identifier: MIT

// Non-blocking poll, accept, recv and send, with deadlines.

#include "runtime/Ranks/ConnectionLoop.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "runtime/Ranks/Socket.h"

namespace qlora {

/// If file descriptors run out: the pause between calls of accept(), and the
/// maximum age of an unproven connection.
static constexpr auto kLook = std::chrono::milliseconds(100);
static constexpr auto kShortTime = std::chrono::seconds(1);

StatusOr<ConnectionLoop>
ConnectionLoop::create(FileDescriptor listening,
                       std::chrono::milliseconds unprovenTime) {
  FileDescriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.isOpen())
    return Status::unavailable("cannot create an event descriptor: {}",
                               socketErrorText(errno));
  // A blocking accept4 would wait if the client has already disconnected.
  fcntl(listening.get(), F_SETFL, O_NONBLOCK);
  return ConnectionLoop(std::move(listening), std::move(event), unprovenTime);
}

void ConnectionLoop::wake() {
  const uint64_t one = 1;
  while (::write(event.get(), &one, sizeof one) < 0 && errno == EINTR)
    ;
}

ConnectionLoop::Clock::time_point
ConnectionLoop::deadlineOf(const Connection &connection) const {
  const bool isSent = connection.isLast && connection.unsent.empty();
  if (!connection.socket.isOpen() || isSent)
    return Clock::time_point::min();
  return lack.empty() || connection.isProven
             ? connection.deadline
             : std::min(connection.deadline, connection.accepted + kShortTime);
}

void ConnectionLoop::turn(Protocol &protocol, Clock::time_point until) {
  const bool listens = lack.empty() || Clock::now() >= nextLook;
  if (!listens)
    until = std::min(until, nextLook);
  std::vector<pollfd> events = {{event.get(), POLLIN, 0},
                                {listens ? listening.get() : -1, POLLIN, 0}};
  for (const Connection &connection : open) {
    const int wanted = (connection.wanted > 0 ? POLLIN : 0) |
                       (connection.unsent.empty() ? 0 : POLLOUT) | POLLRDHUP;
    events.push_back({connection.socket.get(), static_cast<short>(wanted), 0});
    until = std::min(until, deadlineOf(connection));
  }
  const Clock::time_point now = Clock::now();
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(std::clamp<Clock::duration>(
          std::max(until, now) - now, {}, std::chrono::minutes(1)));
  const int ready =
      poll(events.data(), events.size(), static_cast<int>(left.count()));
  uint64_t count;
  if (ready > 0 && events[0].revents)
    (void)!::read(event.get(), &count, sizeof count);
  size_t next = 2;
  for (Connection &connection : open)
    if (events[next++].revents && ready > 0)
      advance(connection, protocol);
  closeEnded(protocol); // first, to free their descriptors
  if (ready > 0 && events[1].revents)
    acceptAll(protocol);
  else if (ready >= 0 && listens)
    lack.clear();
}

void ConnectionLoop::acceptAll(Protocol &protocol) {
  while (true) {
    // Accept only if another descriptor is free: rank 0 needs one for the ring.
    const FileDescriptor spare(fcntl(listening.get(), F_DUPFD_CLOEXEC, 0));
    FileDescriptor socket(spare.isOpen() ? accept4(listening.get(), nullptr,
                                                   nullptr, SOCK_CLOEXEC)
                                         : -1);
    const int error = errno;
    if (!socket.isOpen() && (error == EINTR || error == ECONNABORTED))
      continue;
    lack.clear();
    if (!socket.isOpen()) {
      if (error != EAGAIN && error != EWOULDBLOCK) {
        lack = socketErrorText(error);
        nextLook = Clock::now() + kLook;
      }
      return;
    }
    Connection &connection = open.emplace_back();
    connection.socket = std::move(socket);
    connection.accepted = Clock::now();
    connection.deadline = connection.accepted + unprovenTime;
    protocol.accept(connection);
    if (open.size() % 64 == 0)
      return; // serve open connections before accepting more
  }
}

/// Sends and receives, also bytes that arrived before the peer closed.
void ConnectionLoop::advance(Connection &connection, Protocol &protocol) {
  write(connection);
  if (connection.socket.isOpen() && connection.wanted > 0)
    read(connection, protocol);
  pollfd event = {connection.socket.get(), POLLRDHUP, 0};
  if (connection.wanted == 0 && !connection.isLast && poll(&event, 1, 0) > 0)
    connection.deadline = Clock::time_point::min();
}

void ConnectionLoop::read(Connection &connection, Protocol &protocol) {
  char buffer[4096];
  while (connection.socket.isOpen() && connection.wanted > 0 &&
         !connection.isLast) {
    const ssize_t bytes = recv(
        connection.socket.get(), buffer,
        std::min(sizeof buffer, connection.wanted - connection.received.size()),
        MSG_DONTWAIT);
    if (bytes < 0 && !isOver(errno))
      return;
    if (bytes <= 0) {
      connection.deadline = Clock::time_point::min();
      return;
    }
    connection.received.append(buffer, static_cast<size_t>(bytes));
    if (connection.received.size() == connection.wanted)
      protocol.receive(connection);
  }
}

void ConnectionLoop::send(Connection &connection, std::string_view bytes) {
  connection.unsent += bytes;
  write(connection);
}

void ConnectionLoop::write(Connection &connection) {
  std::string &unsent = connection.unsent;
  while (!unsent.empty()) {
    const ssize_t bytes = ::send(connection.socket.get(), unsent.data(),
                                 unsent.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (bytes < 0 && !isOver(errno))
      return;
    if (bytes < 0) {
      unsent.clear();
      connection.isLast = false;
      connection.deadline = Clock::time_point::min();
      return;
    }
    unsent.erase(0, static_cast<size_t>(bytes));
  }
}

void ConnectionLoop::closeEnded(Protocol &protocol) {
  for (auto it = open.begin(); it != open.end();) {
    const auto connection = it++;
    if (Clock::now() < deadlineOf(*connection))
      continue;
    if (connection->socket.isOpen())
      protocol.close(*connection);
    open.erase(connection);
  }
}

} // namespace qlora
