// SPDX-License-Identifier: MIT

// Connects the ring, exchanges messages, and handles lost neighbours.

#include "runtime/Ranks/Ring.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "runtime/Ranks/RingMeeting.h"
#include "runtime/Ranks/Socket.h"

namespace qlora {

// Connecting
// ----------------------------------------------------------------------

StatusOr<std::unique_ptr<Ring>>
Ring::connect(const std::string &address, const TellNext &tellNext,
              const CheckOthers &checkOthers, std::string_view secret,
              const Members &members, std::chrono::milliseconds patience,
              std::chrono::milliseconds timeout, const RankTimeLimits &limits) {
  std::unique_ptr<Ring> ring(new Ring(members, timeout));
  QLORA_ASSIGN_OR_RETURN(
      auto lanes,
      meet({address, tellNext, secret, ring->rank(), ring->numberOf(kPrevious),
            1, patience, limits.handshake, checkOthers}));
  ring->sockets = std::move(lanes[kData]);
  return ring;
}

Status Ring::startHeartbeat(std::array<FileDescriptor, 2> controls,
                            const Heartbeat::Timing &timing) {
  std::array<Heartbeat::Peer, 2> peers;
  for (Neighbour side : {kPrevious, kNext})
    peers[side] = {rankOf(side), std::move(controls[side])};
  QLORA_ASSIGN_OR_RETURN(
      heart, Heartbeat::start(
                 rank(), std::move(peers), [this] { abort(); }, timing));
  return Status::ok();
}

StatusOr<std::unique_ptr<Ring>>
Ring::connect(Rendezvous &rendezvous, std::string_view secret,
              std::chrono::milliseconds patience,
              std::chrono::milliseconds timeout, const RankTimeLimits &limits) {
  const Rendezvous::Self &self = rendezvous.self();
  const Members members = {self.rank, self.ranks};
  std::unique_ptr<Ring> ring(new Ring(members, timeout));
  bool haveMet = false;
  const TellNext tellNext = [&](const std::string &own) {
    auto next = rendezvous.exchange(own, patience);
    haveMet = next.isOk();
    return next;
  };
  const CheckOthers checkOthers = [&] { return rendezvous.check(); };
  const RingMeeting meeting = {rendezvous.localAddress(),
                               tellNext,
                               secret,
                               self.rank,
                               ring->numberOf(kPrevious),
                               kLanes,
                               std::min(patience, limits.neighbours),
                               limits.handshake,
                               checkOthers};
  auto lanes = meet(meeting);
  if (!lanes.isOk() && !haveMet)
    return lanes.status();
  Status own = lanes.status();
  if (own.isOk()) {
    ring->sockets = std::move((*lanes)[kData]);
    own = ring->startHeartbeat(std::move((*lanes)[kControl]), limits.heartbeat);
  }
  // All ranks have met at the rendezvous, but some may lack a neighbour.
  const Status shown =
      own.withContext(fmt::format("rank {} ({})", self.rank, self.host));
  QLORA_RETURN_IF_ERROR(
      rendezvous
          .exchange(shown.isOk() ? StatusOr<std::string>(std::string()) : shown,
                    limits.secondExchange())
          .status());
  ring->heart->countSilence();
  return ring;
}

/// Ends the heartbeat first: its thread may close this ring's connections.
Ring::~Ring() { heart.reset(); }

Heartbeat *Ring::heartbeat() const {
  for (const Ring *ring = this;;) {
    if (ring->heart)
      return ring->heart.get();
    ring = ring->bound;
    if (ring == this)
      return nullptr;
  }
}

void Ring::bind(Ring &first, Ring &second) {
  second.bound = first.bound.load();
  first.bound = &second;
  if (first.heart && first.heart->hasCause())
    first.abort(); // its earlier abort did not close `second`
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

std::string Ring::nameOf(Neighbour side) const {
  const Heartbeat *known = heartbeat();
  return known ? known->nameOf(rankOf(side))
               : fmt::format("rank {}", rankOf(side));
}

Status Ring::lost(Neighbour side, const Status &seen, bool hasClosed) {
  abort();
  Heartbeat *known = heartbeat();
  if (!known)
    return seen;
  const Cause cause =
      known->conclude({rankOf(side), true, seen.message()}, hasClosed);
  return Status(StatusCode::kAborted, cause.text);
}

/// The connection closed because the neighbour has ended, or because it has
/// learned of another rank's end. The heartbeat finds the cause.
Status Ring::ended(Neighbour side) {
  return lost(side,
              Status::error(StatusCode::kAborted, "{} has ended", nameOf(side)),
              true);
}

Status Ring::silent(Neighbour side) {
  std::string calls;
  if (heart)
    calls = fmt::format(": it is at its collective {}, and {} waits in {}",
                        heart->callOf(side), heart->nameOf(rank()), call);
  return lost(side,
              Status::error(StatusCode::kAborted,
                            "{} has sent nothing for {} s{}. Fix: check what "
                            "it does, or raise --ddp-timeout",
                            nameOf(side), limit.count() / 1000.0, calls),
              false);
}

void Ring::close() {
  for (const FileDescriptor &socket : sockets) {
    dropUnsent(socket);
    shutdown(socket.get(), SHUT_RDWR);
  }
}

void Ring::abort() {
  close();
  for (Ring *other = bound; other != this; other = other->bound)
    other->close();
}

Status Ring::send(Neighbour to, Message &message, bool &hasMoved) {
  msghdr text = {};
  text.msg_iov = &message.parts[message.next];
  text.msg_iovlen = message.count - message.next;
  const ssize_t bytes =
      sendmsg(sockets[to].get(), &text, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (bytes < 0 && isOver(errno))
    return ended(to);
  if (bytes > 0) {
    message.advance(static_cast<size_t>(bytes));
    hasMoved = true;
  }
  return Status::ok();
}

Status Ring::receive(Neighbour from, Message &message, bool &hasMoved) {
  msghdr text = {};
  text.msg_iov = &message.parts[message.next];
  // At first, receive only the header, to check it.
  text.msg_iovlen = message.next == 0 ? 1 : message.count - message.next;
  const ssize_t bytes = recvmsg(sockets[from].get(), &text, MSG_DONTWAIT);
  if (bytes == 0)
    return ended(from);
  if (bytes < 0)
    return isOver(errno) ? ended(from) : Status::ok();
  hasMoved = true;
  const bool wasHeader = message.next == 0;
  message.advance(static_cast<size_t>(bytes));
  if (wasHeader && message.next > 0 && message.header != message.expected)
    return lost(
        from,
        Status::error(
            StatusCode::kAborted,
            "{} is at another collective ({} of {} bytes, not {} of {}). Fix: "
            "start all ranks with the same program and options",
            nameOf(from), message.header.call, message.header.bytes,
            message.expected.call, message.expected.bytes),
        false);
  return Status::ok();
}

void Ring::noteCall(const Message *message) {
  if (!message || !heart || message->header.call == kBetweenTwo)
    return;
  call = message->header.call;
  heart->setCall(call);
}

Status Ring::exchange(Neighbour to, Message *sent, Neighbour from,
                      Message *received) {
  noteCall(sent ? sent : received);
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
      return silent(receives ? from : to);
  }
}

Status Ring::checkNeighbours() {
  QLORA_RETURN_IF_ERROR(checkOwn());
  for (Ring *other = bound; other != this; other = other->bound)
    QLORA_RETURN_IF_ERROR(other->checkOwn());
  return Status::ok();
}

Status Ring::checkOwn() {
  pollfd events[2];
  for (Neighbour side : {kPrevious, kNext})
    events[side] = {sockets[side].get(), POLLRDHUP, 0};
  if (poll(events, 2, 0) <= 0)
    return Status::ok();
  return ended(events[kNext].revents ? kNext : kPrevious);
}

} // namespace qlora
