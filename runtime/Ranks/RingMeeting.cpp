// SPDX-License-Identifier: MIT

// Listens, connects to the next rank and accepts the previous one.

#include "runtime/Ranks/RingMeeting.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>

#include "runtime/Ranks/ConnectionLoop.h"
#include "runtime/Ranks/Socket.h"

namespace qlora {

using Clock = std::chrono::steady_clock;

namespace {
/// A rank's text for the exchange: where it listens, and the random bytes over
/// which a client must prove the secret.
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
    return Status::invalid("the address of the next rank is invalid");
  std::copy_n(text.begin(), place.drawn.size(), place.drawn.begin());
  std::from_chars(text.data() + place.drawn.size(), text.data() + space,
                  place.port);
  place.host = text.substr(space + 1);
  return place;
}

static Digest proofOfRank(std::string_view secret, int rank, int lane,
                          const Digest &drawn) {
  return proofOf(
      secret, fmt::format("{} {}", lane == kData ? "ring" : "heartbeat", rank),
      drawn);
}

namespace {
/// Keeps one connection per lane from the previous rank, and closes all others.
class Previous : public ConnectionLoop::Protocol {
public:
  Previous(const RingMeeting &meeting, const Digest &drawn,
           std::array<RingSockets, kLanes> &found)
      : meeting(meeting), drawn(drawn), found(found), missing(meeting.lanes) {}

  bool isThere() const { return missing == 0; }

private:
  using Connection = ConnectionLoop::Connection;
  void accept(Connection &connection) override {
    connection.wanted = sizeof(Digest);
  }
  void receive(Connection &connection) override;
  void close(Connection &) override {}

  const RingMeeting &meeting;
  const Digest &drawn;
  std::array<RingSockets, kLanes> &found;
  int missing;
};
} // namespace

void Previous::receive(Connection &connection) {
  Digest proof;
  std::copy_n(connection.received.begin(), proof.size(), proof.begin());
  const int on = 1;
  setsockopt(connection.socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  connection.isLast = true;
  for (int lane = 0; lane < meeting.lanes; ++lane) {
    FileDescriptor &place = found[lane][Ring::kPrevious];
    if (place.isOpen() || !connection.socket.isOpen() ||
        !isSame(proof,
                proofOfRank(meeting.secret, meeting.previous, lane, drawn)))
      continue;
    place = std::move(connection.socket);
    --missing;
  }
}

/// How often a rank that waits checks whether another one has failed.
static constexpr auto kCheck = std::chrono::milliseconds(50);

static Status acceptPrevious(FileDescriptor listening, const Digest &drawn,
                             const RingMeeting &meeting,
                             std::array<RingSockets, kLanes> &found) {
  QLORA_ASSIGN_OR_RETURN(
      ConnectionLoop loop,
      ConnectionLoop::create(std::move(listening), meeting.handshakeTimeout));
  Previous previous(meeting, drawn, found);
  const Clock::time_point deadline = Clock::now() + meeting.patience;
  while (!previous.isThere() && Clock::now() < deadline) {
    QLORA_RETURN_IF_ERROR(meeting.checkOthers());
    loop.turn(previous, std::min(deadline, Clock::now() + kCheck));
  }
  if (previous.isThere())
    return Status::ok();
  const double seconds = meeting.patience.count() / 1000.0;
  if (!loop.shortage().empty())
    return Status::unavailable(
        "cannot accept the connection of the previous rank, tried for {} s: {}",
        seconds, loop.shortage());
  return Status::unavailable("the previous rank has not connected in {} s. "
                             "Fix: open all ports between the hosts of the job",
                             seconds);
}

StatusOr<std::array<RingSockets, kLanes>> meet(const RingMeeting &meeting) {
  std::array<RingSockets, kLanes> found;
  Place own;
  own.host = meeting.address;
  QLORA_ASSIGN_OR_RETURN(own.drawn, randomDigest());
  QLORA_ASSIGN_OR_RETURN(FileDescriptor listening, listenOn(own.host, 0));
  QLORA_ASSIGN_OR_RETURN(own.port, portOf(listening));
  QLORA_ASSIGN_OR_RETURN(const std::string text, meeting.tellNext(own.text()));
  QLORA_ASSIGN_OR_RETURN(const Place next, Place::parse(text));
  for (int lane = 0; lane < meeting.lanes; ++lane) {
    FileDescriptor &socket = found[lane][Ring::kNext];
    QLORA_ASSIGN_OR_RETURN(
        socket,
        connectTo(next.host, next.port, meeting.patience, meeting.checkOthers));
    // No rank waits for an answer here, so all ranks can connect at once.
    const Digest proof =
        proofOfRank(meeting.secret, meeting.rank, lane, next.drawn);
    QLORA_RETURN_IF_ERROR(sendAll(socket, proof.data(), proof.size()));
  }
  QLORA_RETURN_IF_ERROR(
      acceptPrevious(std::move(listening), own.drawn, meeting, found));
  return found;
}

} // namespace qlora
