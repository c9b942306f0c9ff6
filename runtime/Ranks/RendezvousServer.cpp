// SPDX-License-Identifier: MIT

// Tracks which ranks have connected, and answers all of them.

#include "runtime/Ranks/RendezvousServer.h"

#include "runtime/Base/Exceptions.h"
#include "runtime/Ranks/Socket.h"

#include <algorithm>
#include <cstring>

namespace qlora {

template <size_t N>
static std::string textOf(const std::array<char, N> &field) {
  return std::string(field.data(), strnlen(field.data(), N));
}

template <typename T> static std::string_view bytesOf(const T &value) {
  return {reinterpret_cast<const char *>(&value), sizeof value};
}

/// Returns the message at the start of `received`.
template <typename T> static T readFrom(const std::string &received) {
  T value;
  std::memcpy(&value, received.data(), sizeof value);
  return value;
}

RendezvousServer::RendezvousServer(
    ConnectionLoop given, Terms asked,
    std::function<void(const std::string &)> warn)
    : terms(std::move(asked)), warn(std::move(warn)), loop(std::move(given)),
      deadline(Clock::now() + terms.patience) {
  const auto ranks = static_cast<size_t>(terms.ranks);
  for (Exchange &exchange : exchanges) {
    exchange.values.resize(ranks);
    exchange.missing = ranks;
  }
  hosts.resize(ranks);
  isTold.resize(ranks);
}

StatusOr<std::unique_ptr<RendezvousServer>>
RendezvousServer::start(FileDescriptor listening, Terms terms,
                        std::function<void(const std::string &)> warn) {
  QLORA_ASSIGN_OR_RETURN(
      ConnectionLoop loop,
      ConnectionLoop::create(std::move(listening), terms.limits.handshake));
  std::unique_ptr<RendezvousServer> server(
      new RendezvousServer(std::move(loop), std::move(terms), std::move(warn)));
  QLORA_RETURN_IF_ERROR(endExceptions("rendezvous", [&] {
    server->thread = std::thread([s = server.get()] {
      (void)endExceptions("rendezvous", [s] {
        s->serve();
        return Status::ok();
      });
      // Close all connections, so that clients notice the end.
      s->loop.connections().clear();
    });
    return Status::ok();
  }));
  return server;
}

RendezvousServer::~RendezvousServer() {
  {
    std::lock_guard lock(mutex);
    isStopping = true;
  }
  loop.wake();
  if (thread.joinable())
    thread.join();
}

void RendezvousServer::serve() {
  while (true) {
    {
      std::lock_guard lock(mutex);
      if (isStopping)
        return;
    }
    const size_t current = exchanges[0].missing > 0 ? 0 : 1;
    const bool isOpen = exchanges[current].missing > 0 && failure.empty();
    if (isOpen && Clock::now() >= deadline) {
      failForMissing(current);
      continue;
    }
    loop.turn(*this, isOpen ? deadline : Clock::time_point::max());
    noteShortage();
  }
}

void RendezvousServer::waitUntilTold(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex);
  changed.wait_for(lock, patience, [&] {
    return std::find(isTold.begin(), isTold.end(), false) == isTold.end();
  });
}

void RendezvousServer::noteAnswered(uint32_t rank) {
  std::lock_guard lock(mutex);
  if (rank < isTold.size())
    isTold[rank] = true;
  changed.notify_all();
}

// Connections
// ----------------------------------------------------------------------

void RendezvousServer::accept(Connection &client) {
  RendezvousHello hello;
  auto drawn = randomDigest();
  if (drawn.isOk()) {
    hello.drawn = client.drawn = *drawn;
    client.wanted = sizeof(RendezvousGreeting);
    loop.send(client, bytesOf(hello));
  }
  client.isLast = !drawn.isOk();
}

void RendezvousServer::receive(Connection &client) {
  client.isProven ? answer(client) : authenticate(client);
}

/// Fails the start if a client that has proved to be a rank closes early.
void RendezvousServer::close(Connection &client) {
  if (!client.isProven)
    return;
  if (!client.isLast && client.wanted == 0)
    fail(fmt::format("rank {} ({}) ended during the rendezvous. Fix: see the "
                     "last lines of its output",
                     client.rank, hosts[client.rank]));
  else if (!client.isLast)
    fail(fmt::format("rank {} was lost during the rendezvous. Fix: check "
                     "whether its host is down",
                     client.rank));
  noteAnswered(client.rank);
}

void RendezvousServer::noteStranger(const Connection &client, uint32_t rank) {
  auto address = peerAddressOf(client.socket);
  if (!stranger.empty() || exchanges[0].missing == 0)
    return;
  stranger = otherSecret(static_cast<int>(rank),
                         address.isOk() ? *address : "?", terms.place)
                 .message();
  deadline = std::min(deadline, Clock::now() + terms.limits.stranger);
}

void RendezvousServer::authenticate(Connection &client) {
  const auto greeting = readFrom<RendezvousGreeting>(client.received);
  const bool isRank = greeting.magic == kRendezvousMagic;
  client.isProven =
      isRank && isSame(greeting.proof, proofOf(terms.secret, kClientRole,
                                               client.drawn, greeting.drawn));
  client.isLast = !client.isProven;
  if (isRank && !client.isProven)
    noteStranger(client, greeting.rank);
  if (!client.isProven)
    return;
  client.rank = greeting.rank;
  expectRequest(client);
  loop.send(client, bytesOf(proofOf(terms.secret, kServerRole, client.drawn,
                                    greeting.drawn)));
}

void RendezvousServer::expectRequest(Connection &client) {
  client.received.clear();
  client.wanted = sizeof(RendezvousRequest);
  client.deadline = Clock::now() + ringPatience();
}

static std::string answerOf(bool isRefused, const std::string &text) {
  const RendezvousAnswer answer = {isRefused,
                                   static_cast<uint32_t>(text.size())};
  return std::string(bytesOf(answer)) + text;
}

void RendezvousServer::give(Connection &client, const std::string &text) {
  client.isLast = ++client.step == kExchanges;
  expectRequest(client);
  loop.send(client, answerOf(false, text));
}

/// Sends the error to a client, once. A client that is not waiting for an
/// answer also gets it, and closes the connection itself.
void RendezvousServer::refuse(Connection &client) {
  if (client.step == kExchanges)
    return;
  client.step = kExchanges;
  if (client.wanted == 0) {
    expectRequest(client);
    client.isLast = true;
  }
  loop.send(client, answerOf(true, failure));
}

/// Handles a client's request when it has arrived completely.
void RendezvousServer::answer(Connection &client) {
  if (client.step == kExchanges) { // the error was sent
    client.received.clear();
    client.wanted = sizeof(RendezvousRequest);
    return;
  }
  const auto request = readFrom<RendezvousRequest>(client.received);
  const size_t bytes = sizeof request + request.bytes;
  if (request.bytes <= kMaxRendezvousText && client.wanted < bytes) {
    client.wanted = bytes;
    return;
  }
  // `wanted` differs here only if the text exceeds kMaxRendezvousText. Then
  // close the connection: a rank of this version never sends such a text.
  if (client.wanted != bytes) {
    client.deadline = Clock::time_point::min();
    return;
  }
  std::string value = client.received.substr(sizeof request);
  if (isWelcome(request, client.rank, client.step) && request.isFailure)
    fail(value);
  if (!failure.empty()) {
    refuse(client);
    client.received.clear();
    client.wanted = sizeof(RendezvousRequest);
    return;
  }
  Exchange &current = exchanges[client.step];
  current.values[client.rank] = std::move(value);
  client.received.clear();
  client.wanted = 0; // the client waits for the other ranks
  client.deadline = Clock::time_point::max();
  if (--current.missing == 0)
    complete(client.step);
}

void RendezvousServer::complete(size_t number) {
  deadline = Clock::now() + ringPatience();
  const auto &values = exchanges[number].values;
  for (Connection &client : loop.connections())
    if (client.isProven && client.wanted == 0 && client.step == number)
      give(client, *values[(client.rank + 1) % values.size()]);
}

// Failures
// ----------------------------------------------------------------------

/// Sends the error to all connected ranks. Ranks that connect later get it in
/// answer to their first request.
void RendezvousServer::fail(std::string why) {
  if (!failure.empty())
    return;
  failure = std::move(why);
  for (Connection &client : loop.connections())
    if (client.isProven && !client.isLast)
      refuse(client);
}

void RendezvousServer::noteShortage() {
  if (loop.shortage().empty() || hasWarned || !warn)
    return;
  hasWarned = true;
  warn(fmt::format("rank 0 at {} cannot accept more ranks yet and waits: {}",
                   terms.place, loop.shortage()));
}

/// Returns a list such as "1, 4 and 6 more".
std::string RendezvousServer::missingText(const Exchange &exchange) const {
  constexpr size_t kShown = 8;
  std::string text;
  size_t shown = 0;
  for (size_t rank = 0; rank < exchange.values.size(); ++rank)
    if (!exchange.values[rank] && shown++ < kShown)
      text += fmt::format("{}{}", text.empty() ? "" : ", ", rank);
  return shown <= kShown ? text
                         : fmt::format("{} and {} more", text, shown - kShown);
}

/// Returns whether a rank's request is valid. If not, fails the start.
bool RendezvousServer::isWelcome(const RendezvousRequest &request,
                                 uint32_t rank, size_t number) {
  const std::string host = textOf(request.host);
  const std::string version = textOf(request.version);
  if (request.ranks != hosts.size() || rank >= request.ranks)
    fail(fmt::format("rank {} ({}) was started as one of {} ranks, but rank 0 "
                     "as one of {}. Fix: start all ranks with the same number",
                     rank, host, request.ranks, hosts.size()));
  else if (exchanges[number].values[rank])
    fail(fmt::format("rank {} was started twice, on {} and {}. Fix: give each "
                     "process its own rank",
                     rank, hosts[rank], host));
  else if (version != terms.version)
    fail(fmt::format("rank {} ({}) has qlora-run {}, but rank 0 has {}. Fix: "
                     "install the same version on every host",
                     rank, host, version, terms.version));
  else
    hosts[rank] = host;
  return failure.empty();
}

void RendezvousServer::failForMissing(size_t number) {
  const Exchange &current = exchanges[number];
  const std::string ranks = missingText(current);
  if (!loop.shortage().empty()) {
    // Missing ranks in the accept queue get this error when they are accepted.
    fail(fmt::format("rank 0 at {} cannot accept rank {}: {}", terms.place,
                     ranks, loop.shortage()));
    return;
  }
  if (!stranger.empty())
    fail(stranger);
  else if (number == 0)
    fail(notReached(terms.place, ranks, terms.patience).message());
  else
    fail(fmt::format("rank {} was lost during the rendezvous. Fix: check "
                     "whether its host is down",
                     ranks));
  // Count missing ranks as answered: waitUntilTold() must not wait for them.
  for (uint32_t rank = 0; rank < current.values.size(); ++rank)
    if (!current.values[rank])
      noteAnswered(rank);
}

} // namespace qlora
