// SPDX-License-Identifier: MIT

// Connects to rank 0 and handles its answers.

#include "runtime/Ranks/Rendezvous.h"

#include <algorithm>
#include <thread>

#include "runtime/Ranks/Socket.h"

namespace qlora {

using Clock = std::chrono::steady_clock;

namespace {
/// How long to retry a port that closes connections at once: the server of an
/// earlier start may be about to end.
constexpr auto kClosing = std::chrono::seconds(5);
constexpr auto kPause = std::chrono::milliseconds(100);

/// What may answer at rank 0's address and port.
enum class Met { kRankZero, kClosed, kSilent, kOtherProgram, kOtherSecret };
} // namespace

template <size_t N>
static void copyText(const std::string &text, std::array<char, N> &field) {
  text.copy(field.data(), N - 1);
}

static Met authenticateTo(const FileDescriptor &socket, std::string_view secret,
                          int rank, Clock::time_point deadline) {
  RendezvousHello hello;
  if (!receiveBy(socket, &hello, sizeof hello, deadline).isOk())
    return Clock::now() < deadline ? Met::kClosed : Met::kSilent;
  auto drawn = randomDigest();
  if (hello.magic != kRendezvousMagic || !drawn.isOk())
    return Met::kOtherProgram;
  RendezvousGreeting greeting;
  greeting.rank = static_cast<uint32_t>(rank);
  greeting.drawn = *drawn;
  greeting.proof = proofOf(secret, kClientRole, hello.drawn, greeting.drawn);
  Digest proof;
  if (sendAll(socket, &greeting, sizeof greeting).isOk() &&
      receiveBy(socket, proof.data(), proof.size(), deadline).isOk() &&
      isSame(proof, proofOf(secret, kServerRole, hello.drawn, greeting.drawn)))
    return Met::kRankZero;
  return Clock::now() < deadline ? Met::kOtherSecret : Met::kSilent;
}

StatusOr<Rendezvous> Rendezvous::connect(const std::string &host, int port,
                                         std::string_view secret, Self self,
                                         std::chrono::milliseconds timeout,
                                         std::chrono::milliseconds longer) {
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
    const Met met =
        authenticateTo(*socket, secret, self.rank, start + timeout + longer);
    if (met == Met::kRankZero)
      return Rendezvous(std::move(*socket), std::move(address), place,
                        std::move(self));
    if (met == Met::kSilent)
      return noAnswer(place, timeout + longer);
    if (met == Met::kOtherSecret)
      return otherSecret(self.rank, address, place);
    if (met == Met::kOtherProgram ||
        Clock::now() > start + std::min<Clock::duration>(kClosing, timeout))
      return portTaken(place);
    std::this_thread::sleep_for(kPause);
  }
}

StatusOr<std::string> Rendezvous::exchange(const StatusOr<std::string> &own,
                                           std::chrono::milliseconds timeout) {
  QLORA_RETURN_IF_ERROR(setTimeout(socket, timeout + kLonger));
  std::string text = own.isOk() ? own.value() : own.status().message();
  text.resize(std::min<size_t>(text.size(), kMaxRendezvousText));
  RendezvousRequest request;
  request.ranks = static_cast<uint32_t>(me.ranks);
  request.isFailure = !own.isOk();
  request.bytes = static_cast<uint32_t>(text.size());
  copyText(me.version, request.version);
  copyText(me.host, request.host);
  RendezvousAnswer answer;
  Status status = sendAll(socket, &request, sizeof request);
  if (status.isOk())
    status = sendAll(socket, text.data(), text.size());
  if (status.isOk())
    status = receiveAll(socket, &answer, sizeof answer);
  if (!status.isOk())
    return Status::error(StatusCode::kAborted,
                         "rank {} ({}) lost its connection to rank 0 at {} "
                         "during the rendezvous: {}",
                         me.rank, me.host, place, status.message());
  QLORA_ASSIGN_OR_RETURN(std::string given, receiveText(socket, answer.bytes));
  if (answer.isRefused)
    return Status(StatusCode::kAborted, given);
  return given;
}

} // namespace qlora
