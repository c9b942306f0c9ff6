// SPDX-License-Identifier: MIT

// Two sockets: how they are found, and messages on them.

#include "runtime/Ranks/Ring.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace qlora {

using Clock = std::chrono::steady_clock;

// Connecting
// ----------------------------------------------------------------------

namespace {
/// What a rank gives at the rendezvous: where it listens, and what whoever
/// connects has to prove the secret over.
struct Place {
  Digest drawn{};
  int port = 0;
  std::string host;

  std::string text() const {
    return std::string(drawn.begin(), drawn.end()) + std::to_string(port) +
           " " + host;
  }
  static StatusOr<Place> parse(std::string_view text);
};
} // namespace

StatusOr<Place> Place::parse(std::string_view text) {
  Place place;
  const size_t space = text.find(' ', place.drawn.size());
  if (space == text.npos)
    return Status::invalid("the next rank's address is damaged");
  std::copy_n(text.begin(), place.drawn.size(), place.drawn.begin());
  std::from_chars(text.data() + place.drawn.size(), text.data() + space,
                  place.port);
  place.host = text.substr(space + 1);
  return place;
}

static Digest proofOfRank(std::string_view secret, int rank,
                          const Digest &drawn) {
  return proofOf(secret, fmt::format("ring {}", rank), drawn);
}

/// Whoever does not prove to be the rank before this one is sent away.
static StatusOr<FileDescriptor>
acceptFrom(const FileDescriptor &listening, const Digest &expected,
           std::chrono::milliseconds patience,
           std::chrono::milliseconds handshakeTimeout) {
  const Clock::time_point deadline = Clock::now() + patience;
  while (Clock::now() < deadline) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - Clock::now());
    pollfd event = {listening.get(), POLLIN, 0};
    if (poll(&event, 1, static_cast<int>(left.count())) <= 0)
      continue;
    FileDescriptor socket(
        accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Digest proof;
    if (!socket.isOpen() || !setTimeout(socket, handshakeTimeout).isOk() ||
        !receiveAll(socket, proof.data(), proof.size()).isOk() ||
        !isSame(proof, expected))
      continue;
    const int on = 1;
    setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return socket;
  }
  return Status::error(StatusCode::kUnavailable,
                       "the rank before it has not connected in {} s",
                       patience.count() / 1000.0);
}

StatusOr<std::unique_ptr<Ring>>
Ring::connect(const std::string &address, const TellNext &tellNext,
              std::string_view secret, const Members &members,
              std::chrono::milliseconds patience,
              std::chrono::milliseconds timeout,
              std::chrono::milliseconds handshakeTimeout) {
  std::unique_ptr<Ring> ring(new Ring(members, timeout));
  Place own;
  own.host = address;
  QLORA_ASSIGN_OR_RETURN(own.drawn, randomDigest());
  QLORA_ASSIGN_OR_RETURN(const FileDescriptor listening, listenOn(own.host, 0));
  QLORA_ASSIGN_OR_RETURN(own.port, portOf(listening));
  QLORA_ASSIGN_OR_RETURN(const std::string found, tellNext(own.text()));
  QLORA_ASSIGN_OR_RETURN(const Place next, Place::parse(found));
  QLORA_ASSIGN_OR_RETURN(ring->sockets[kNext],
                         connectTo(next.host, next.port, patience));
  // Nobody waits for an answer here, so that all can do it at once.
  const Digest proof = proofOfRank(secret, ring->rank(), next.drawn);
  QLORA_RETURN_IF_ERROR(
      sendAll(ring->sockets[kNext], proof.data(), proof.size()));
  QLORA_ASSIGN_OR_RETURN(
      ring->sockets[kPrevious],
      acceptFrom(listening,
                 proofOfRank(secret, ring->numberOf(kPrevious), own.drawn),
                 patience, handshakeTimeout));
  return ring;
}

StatusOr<std::unique_ptr<Ring>>
Ring::connect(Rendezvous &rendezvous, std::string_view secret, int rank,
              int size, std::chrono::milliseconds patience,
              std::chrono::milliseconds timeout,
              std::chrono::milliseconds handshakeTimeout) {
  const auto tellNext = [&](const std::string &own) {
    return rendezvous.exchange(rank, size, own, patience);
  };
  return connect(rendezvous.localAddress(), tellNext, secret, {rank, size},
                 patience, timeout, handshakeTimeout);
}

void Ring::bind(Ring &first, Ring &second) {
  first.bound = &second;
  second.bound = &first;
}

// Messages
// ----------------------------------------------------------------------

Message::Message(uint64_t call) : header{call, 0}, expected{call, 0} {
  parts[0] = {&header, sizeof header};
}

void Message::add(std::span<const uint8_t> part) {
  if (part.empty())
    return;
  parts[count++] = {const_cast<uint8_t *>(part.data()), part.size()};
  header.bytes += part.size();
  expected.bytes = header.bytes;
}

void Message::advance(size_t bytes) {
  while (bytes > 0) {
    iovec &part = parts[next];
    const size_t done = std::min(bytes, part.iov_len);
    part.iov_base = static_cast<uint8_t *>(part.iov_base) + done;
    part.iov_len -= done;
    bytes -= done;
    next += part.iov_len == 0;
  }
}

Status Ring::lost(std::string_view why) {
  abort();
  return Status::error(StatusCode::kAborted, "rank {} lost the other ranks: {}",
                       members.first + rank(), why);
}

void Ring::close() {
  for (const FileDescriptor &socket : sockets)
    shutdown(socket.get(), SHUT_RDWR);
}

void Ring::abort() {
  close();
  if (bound)
    bound->close();
}

static bool isOver(int error) {
  return error != EAGAIN && error != EWOULDBLOCK && error != EINTR;
}

Status Ring::send(Neighbour to, Message &message, bool &hasMoved) {
  msghdr text = {};
  text.msg_iov = &message.parts[message.next];
  text.msg_iovlen = message.count - message.next;
  const ssize_t bytes =
      sendmsg(sockets[to].get(), &text, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (bytes < 0 && isOver(errno))
    return lost(fmt::format("rank {}: {}", rankOf(to), std::strerror(errno)));
  if (bytes > 0) {
    message.advance(static_cast<size_t>(bytes));
    hasMoved = true;
  }
  return Status::ok();
}

Status Ring::receive(Neighbour from, Message &message, bool &hasMoved) {
  msghdr text = {};
  text.msg_iov = &message.parts[message.next];
  // No more than the header before it is known to be the right one.
  text.msg_iovlen = message.next == 0 ? 1 : message.count - message.next;
  const ssize_t bytes = recvmsg(sockets[from].get(), &text, MSG_DONTWAIT);
  if (bytes == 0)
    return lost(fmt::format("rank {} has ended", rankOf(from)));
  if (bytes < 0)
    return isOver(errno) ? lost(fmt::format("rank {}: {}", rankOf(from),
                                            std::strerror(errno)))
                         : Status::ok();
  hasMoved = true;
  const bool wasHeader = message.next == 0;
  message.advance(static_cast<size_t>(bytes));
  if (wasHeader && message.next > 0 && message.header != message.expected)
    return lost(fmt::format("rank {} makes another call ({}, {} bytes, not {}, "
                            "{})",
                            rankOf(from), message.header.call,
                            message.header.bytes, message.expected.call,
                            message.expected.bytes));
  return Status::ok();
}

Status Ring::exchange(Neighbour to, Message *sent, Neighbour from,
                      Message *received) {
  while (true) {
    const bool sends = sent && !sent->isDone();
    const bool receives = received && !received->isDone();
    if (!sends && !receives)
      return Status::ok();
    bool hasMoved = false;
    if (sends)
      QLORA_RETURN_IF_ERROR(send(to, *sent, hasMoved));
    if (receives)
      QLORA_RETURN_IF_ERROR(receive(from, *received, hasMoved));
    if (hasMoved)
      continue;
    pollfd events[2];
    nfds_t count = 0;
    if (sends)
      events[count++] = {sockets[to].get(), POLLOUT, 0};
    if (receives)
      events[count++] = {sockets[from].get(), POLLIN, 0};
    if (poll(events, count, static_cast<int>(limit.count())) == 0)
      return lost(fmt::format("nothing from rank {} in {} s",
                              rankOf(receives ? from : to),
                              limit.count() / 1000.0));
  }
}

Status Ring::checkNeighbours() {
  QLORA_RETURN_IF_ERROR(checkOwn());
  return bound ? bound->checkOwn() : Status::ok();
}

Status Ring::checkOwn() {
  pollfd events[2];
  for (Neighbour side : {kPrevious, kNext})
    events[side] = {sockets[side].get(), POLLRDHUP, 0};
  if (poll(events, 2, 0) <= 0)
    return Status::ok();
  return lost(fmt::format(
      "rank {} has ended", rankOf(events[kNext].revents ? kNext : kPrevious)));
}

} // namespace qlora
