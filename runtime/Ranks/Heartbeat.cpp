// SPDX-License-Identifier: MIT

// The thread that sends and receives beats, and the choice among causes.

#include "runtime/Ranks/Heartbeat.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>

#include "runtime/Base/Exceptions.h"
#include "runtime/Ranks/Socket.h"

namespace qlora {

using Clock = std::chrono::steady_clock;

/// Maximum bytes of a cause's text; a longer text is cut.
static constexpr size_t kMaxText = 2048;

/// The start of a message, before a cause's text, if any. Little endian.
struct Heartbeat::Header {
  enum class Kind : uint8_t { kBeat, kCause, kGoodbye };

  Kind kind = Kind::kBeat;
  uint8_t isLoss = 0;
  uint16_t bytes = 0; ///< length of the text that follows
  int32_t rank = 0;   ///< rank of the cause
  /// For a beat, the index of the sender's current collective. For a cause, the
  /// milliseconds since the sender's first cause.
  uint64_t number = 0;
};

std::string hostName() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0)
    return "?";
  return name;
}

Heartbeat::Heartbeat(int rank, std::array<Peer, 2> peers,
                     std::function<void()> abort, const Timing &timing)
    : rank(rank), abort(std::move(abort)), timing(timing),
      wake(eventfd(0, EFD_CLOEXEC)) {
  for (size_t side = 0; side < peers.size(); ++side) {
    sides[side].rank = peers[side].rank;
    sides[side].socket = std::move(peers[side].socket);
  }
}

StatusOr<std::unique_ptr<Heartbeat>>
Heartbeat::start(int rank, std::array<Peer, 2> peers,
                 std::function<void()> abort, const Timing &timing) {
  std::unique_ptr<Heartbeat> heart(
      new Heartbeat(rank, std::move(peers), std::move(abort), timing));
  if (!heart->wake.isOpen())
    return Status::unavailable("cannot create an event descriptor: {}",
                               socketErrorText(errno));
  // Block all signals in the new thread: the session's thread handles them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const Status started = endExceptions("heartbeat", [&] {
    heart->thread = std::thread([h = heart.get()] { h->watch(); });
    return Status::ok();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  QLORA_RETURN_IF_ERROR(started);
  return heart;
}

Heartbeat::~Heartbeat() {
  {
    std::lock_guard lock(mutex);
    isStopping = true;
    for (int side : {0, 1})
      send(side, {.kind = Header::Kind::kGoodbye}, "");
  }
  const uint64_t one = 1;
  if (thread.joinable()) {
    while (write(wake.get(), &one, sizeof one) < 0 && errno == EINTR)
      ;
    thread.join();
  }
}

void Heartbeat::countSilence() {
  std::lock_guard lock(mutex);
  countsSilence = true;
  for (Side &side : sides)
    side.missed = 0;
}

void Heartbeat::nameHosts(std::vector<std::string> names) {
  std::lock_guard lock(mutex);
  hosts = std::move(names);
}

std::string Heartbeat::nameLocked(int ofRank) const {
  const auto number = static_cast<size_t>(ofRank);
  return number < hosts.size()
             ? fmt::format("rank {} ({})", ofRank, hosts[number])
             : fmt::format("rank {}", ofRank);
}

std::string Heartbeat::nameOf(int ofRank) const {
  std::lock_guard lock(mutex);
  return nameLocked(ofRank);
}

bool Heartbeat::hasCause() const {
  std::lock_guard lock(mutex);
  return !causes.empty();
}

// Messages
// ----------------------------------------------------------------------

/// Drops the message if the buffer is full: the neighbour no longer reads.
void Heartbeat::send(int side, Header header, const std::string &text) {
  if (!sides[side].isOpen)
    return;
  header.bytes = static_cast<uint16_t>(text.size());
  std::string message(reinterpret_cast<const char *>(&header), sizeof header);
  message += text;
  const ssize_t sent = ::send(sides[side].socket.get(), message.data(),
                              message.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent > 0 && static_cast<size_t>(sent) < message.size())
    shutdown(sides[side].socket.get(), SHUT_WR);
}

/// Adds a cause. `known`: time since the sender's first cause.
void Heartbeat::add(const Cause &cause, std::chrono::milliseconds known) {
  if (std::find(causes.begin(), causes.end(), cause) != causes.end())
    return;
  const Clock::time_point now = Clock::now();
  if (!causes.empty() && now > firstCause + timing.settle)
    return; // a cause is already chosen
  firstCause = causes.empty() ? now - known : std::min(firstCause, now - known);
  causes.push_back(cause);
  const auto age =
      std::chrono::duration_cast<std::chrono::milliseconds>(now - firstCause);
  for (int side : {0, 1})
    send(side,
         {.kind = Header::Kind::kCause,
          .isLoss = cause.isLoss,
          .rank = cause.rank,
          .number = static_cast<uint64_t>(age.count())},
         cause.text);
  changed.notify_all();
  abort();
}

bool Heartbeat::saidGoodbye(int ofRank) const {
  return std::any_of(sides.begin(), sides.end(), [&](const Side &side) {
    return side.rank == ofRank && side.saidGoodbye;
  });
}

/// Handles all messages that have arrived completely.
void Heartbeat::read(int number) {
  Side &side = sides[static_cast<size_t>(number)];
  Header header;
  while (side.arrived.size() >= sizeof header) {
    std::memcpy(&header, side.arrived.data(), sizeof header);
    if (side.arrived.size() < sizeof header + header.bytes)
      break;
    const std::string text = side.arrived.substr(sizeof header, header.bytes);
    side.arrived.erase(0, sizeof header + header.bytes);
    side.missed = 0;
    if (header.kind == Header::Kind::kBeat)
      peerCalls[static_cast<size_t>(number)] = header.number;
    else if (header.kind == Header::Kind::kCause)
      add({header.rank, header.isLoss != 0, text},
          std::min(timing.settle, std::chrono::milliseconds(header.number)));
    else
      side.saidGoodbye = true;
  }
  if (side.saidGoodbye) {
    side.isOpen = false;
    changed.notify_all();
  }
}

void Heartbeat::receive(int number) {
  Side &side = sides[static_cast<size_t>(number)];
  char buffer[4096];
  ssize_t bytes;
  while ((bytes = recv(side.socket.get(), buffer, sizeof buffer,
                       MSG_DONTWAIT)) > 0) {
    side.arrived.append(buffer, static_cast<size_t>(bytes));
    read(number);
    if (!side.isOpen)
      return;
  }
  if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
    return;
  side.isOpen = false;
  const Status lost =
      Status::error(StatusCode::kAborted,
                    "{} ended without an error message. Fix: check on its host "
                    "whether it was killed, for memory or by its launcher",
                    nameLocked(side.rank));
  add({side.rank, true, lost.message()}, {});
}

void Heartbeat::beat() {
  for (int number : {0, 1}) {
    Side &side = sides[static_cast<size_t>(number)];
    send(number, {.kind = Header::Kind::kBeat, .number = ownCall}, "");
    if (!side.isOpen || !countsSilence || ++side.missed <= timing.missed)
      continue;
    side.isOpen = false;
    dropUnsent(side.socket);
    const auto [low, high] = std::minmax(rank, side.rank);
    const Status lost = Status::error(
        StatusCode::kAborted,
        "no heartbeat between {} and {} for {} s. Fix: check that both "
        "processes run and that their hosts reach each other",
        nameLocked(low), nameLocked(high),
        timing.beat.count() * timing.missed / 1000.0);
    add({low, true, lost.message()}, {});
  }
}

void Heartbeat::watch() {
  Clock::time_point next = Clock::now();
  while (true) {
    pollfd events[3];
    {
      std::lock_guard lock(mutex);
      if (isStopping)
        return;
      if (Clock::now() >= next) {
        beat();
        next = Clock::now() + timing.beat;
      }
      events[2] = {wake.get(), POLLIN, 0};
      for (size_t side : {0, 1}) // poll ignores a socket of -1
        events[side] = {sides[side].isOpen ? sides[side].socket.get() : -1,
                        POLLIN, 0};
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
    poll(events, 3, static_cast<int>(std::max<int64_t>(0, left.count())));
    std::lock_guard lock(mutex);
    // After this rank's goodbye, neighbours may close without a goodbye.
    if (isStopping)
      return;
    for (int side : {0, 1})
      if (events[side].revents && sides[static_cast<size_t>(side)].isOpen)
        receive(side);
  }
}

// The choice
// ----------------------------------------------------------------------

Cause Heartbeat::conclude(Cause seen, bool isSecondHand) {
  seen.text.resize(std::min(seen.text.size(), kMaxText)); // send() cuts too
  std::unique_lock lock(mutex);
  if (isSecondHand)
    changed.wait_for(lock, timing.word,
                     [&] { return !causes.empty() || saidGoodbye(seen.rank); });
  if (causes.empty() ||
      (!isSecondHand && Clock::now() < firstCause + timing.settle / 2))
    add(seen, {});
  // All callers wait until the same time, so no wake-up is needed.
  const Clock::time_point end = firstCause + timing.settle;
  while (Clock::now() < end)
    changed.wait_until(lock, end);
  return *std::min_element(causes.begin(), causes.end(),
                           [](const Cause &a, const Cause &b) {
                             return std::tie(a.isLoss, a.rank, a.text) <
                                    std::tie(b.isLoss, b.rank, b.text);
                           });
}

} // namespace qlora
