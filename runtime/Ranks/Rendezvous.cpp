// SPDX-License-Identifier: MIT

// Connects to rank 0 and handles its answers.

#include "runtime/Ranks/Rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <thread>

#include "runtime/Ranks/Socket.h"

namespace qlora {

using Clock = std::chrono::steady_clock;

namespace {
constexpr auto kPause = std::chrono::milliseconds(100);

/// Results of connecting to rank 0's address and port.
enum class Met { kRankZero, kClosed, kSilent, kOtherProgram, kOtherSecret };
} // namespace

template <size_t N>
static void copyText(const std::string &text, std::array<char, N> &field) {
  text.copy(field.data(), N - 1);
}

/// Interprets an error while waiting for rank 0's proof: kSilent if the
/// deadline has passed, `ifClosed` if the other side has closed the connection.
/// Returns any other error unchanged.
static StatusOr<Met> metWithout(const Status &status, Met ifClosed,
                                Clock::time_point deadline) {
  if (Clock::now() >= deadline)
    return Met::kSilent;
  if (status.code() == StatusCode::kAborted)
    return ifClosed;
  return status;
}

static StatusOr<Met> authenticateTo(const FileDescriptor &socket,
                                    std::string_view secret, int rank,
                                    Clock::time_point deadline) {
  RendezvousHello hello;
  Status status = receiveBy(socket, &hello, sizeof hello, deadline);
  if (!status.isOk())
    return metWithout(status, Met::kClosed, deadline);
  auto drawn = randomDigest();
  if (hello.magic != kRendezvousMagic || !drawn.isOk())
    return Met::kOtherProgram;
  RendezvousGreeting greeting;
  greeting.rank = static_cast<uint32_t>(rank);
  greeting.drawn = *drawn;
  greeting.proof = proofOf(secret, kClientRole, hello.drawn, greeting.drawn);
  Digest proof;
  status = sendAll(socket, &greeting, sizeof greeting);
  if (!status.isOk())
    return metWithout(status, Met::kClosed, deadline);
  status = receiveBy(socket, proof.data(), proof.size(), deadline);
  if (!status.isOk())
    return metWithout(status, Met::kOtherSecret, deadline);
  return isSame(proof,
                proofOf(secret, kServerRole, hello.drawn, greeting.drawn))
             ? Met::kRankZero
             : Met::kOtherSecret;
}

static Status lostConnection(const Rendezvous::Self &self,
                             std::string_view place, const Status &why) {
  return Status::error(StatusCode::kAborted,
                       "rank {} ({}) lost its connection to rank 0 at {} "
                       "during the rendezvous: {}",
                       self.rank, self.host, place, why.message());
}

StatusOr<Rendezvous> Rendezvous::connect(const std::string &host, int port,
                                         std::string_view secret, Self self,
                                         std::chrono::milliseconds timeout,
                                         const RankTimeLimits &limits) {
  const std::string place = fmt::format("{}:{}", host, port);
  const Clock::time_point start = Clock::now();
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        start + timeout - Clock::now());
    auto socket = connectTo(host, port, left);
    if (!socket.isOk())
      return Status(
          StatusCode::kUnavailable,
          fmt::format(
              "{} ({})",
              notReached(place, std::to_string(self.rank), timeout).message(),
              socket.status().message()));
    QLORA_ASSIGN_OR_RETURN(std::string address, localAddressOf(*socket));
    auto met = authenticateTo(*socket, secret, self.rank,
                              start + timeout + limits.longer);
    if (!met.isOk())
      return lostConnection(self, place, met.status());
    if (*met == Met::kRankZero)
      return Rendezvous(std::move(*socket), std::move(address), place,
                        std::move(self), limits.longer);
    if (*met == Met::kSilent)
      return noAnswer(place, timeout + limits.longer);
    if (*met == Met::kOtherSecret)
      return otherSecret(self.rank, address, place);
    if (*met == Met::kOtherProgram ||
        Clock::now() > start + std::min(limits.closing, timeout))
      return portTaken(place);
    std::this_thread::sleep_for(kPause);
  }
}

StatusOr<std::string> Rendezvous::exchange(const StatusOr<std::string> &own,
                                           std::chrono::milliseconds timeout) {
  QLORA_RETURN_IF_ERROR(check());
  QLORA_RETURN_IF_ERROR(setTimeout(socket, timeout + longer));
  std::string text = own.isOk() ? own.value() : own.status().message();
  text.resize(std::min<size_t>(text.size(), kMaxRendezvousText));
  RendezvousRequest request;
  request.ranks = static_cast<uint32_t>(me.ranks);
  request.isFailure = !own.isOk();
  request.bytes = static_cast<uint32_t>(text.size());
  copyText(me.version, request.version);
  copyText(me.host, request.host);
  Status sent = sendAll(socket, &request, sizeof request);
  if (sent.isOk())
    sent = sendAll(socket, text.data(), text.size());
  if (!sent.isOk()) {
    // Rank 0 may have sent an error before it closed the connection.
    QLORA_RETURN_IF_ERROR(check());
    return lostConnection(me, place, sent);
  }
  return receiveAnswer();
}

StatusOr<std::string> Rendezvous::receiveAnswer() {
  RendezvousAnswer answer;
  if (Status status = receiveAll(socket, &answer, sizeof answer);
      !status.isOk())
    return lostConnection(me, place, status);
  auto given = receiveText(socket, answer.bytes);
  if (!given.isOk())
    return lostConnection(me, place, given.status());
  if (answer.isRefused)
    return Status(StatusCode::kAborted, *given);
  return given;
}

Status Rendezvous::check() {
  pollfd event = {socket.get(), POLLIN, 0};
  if (refusal.isOk() && poll(&event, 1, 0) > 0)
    refusal = receiveAnswer().status();
  return refusal;
}

} // namespace qlora
