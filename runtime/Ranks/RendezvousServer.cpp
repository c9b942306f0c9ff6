// SPDX-License-Identifier: MIT

// Who has come, who is missing, and what all are told.

#include "runtime/Ranks/RendezvousServer.h"

#include "runtime/Base/Exceptions.h"
#include "runtime/Ranks/Socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace qlora {

using Clock = std::chrono::steady_clock;

/// How often who waits looks after its client and the time.
static constexpr auto kLook = std::chrono::milliseconds(100);

template <size_t N>
static std::string textOf(const std::array<char, N> &field) {
  return std::string(field.data(), strnlen(field.data(), N));
}

RendezvousServer::RendezvousServer(FileDescriptor listening, Terms given)
    : listening(std::move(listening)), terms(std::move(given)),
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
RendezvousServer::start(FileDescriptor listening, Terms terms) {
  std::unique_ptr<RendezvousServer> server(
      new RendezvousServer(std::move(listening), std::move(terms)));
  server->acceptor =
      std::thread([s = server.get()] { s->acceptConnections(); });
  return server;
}

RendezvousServer::~RendezvousServer() {
  {
    std::lock_guard lock(mutex);
    isStopping = true;
    for (Connection &connection : connections)
      shutdown(connection.socket.get(), SHUT_RDWR);
  }
  changed.notify_all();
  // An accept that waits returns, and later ones at once.
  shutdown(listening.get(), SHUT_RDWR);
  if (acceptor.joinable())
    acceptor.join();
  for (Connection &connection : connections)
    connection.thread.join();
}

void RendezvousServer::acceptConnections() {
  while (true) {
    FileDescriptor socket(
        accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    removeFinished();
    std::lock_guard lock(mutex);
    if (isStopping)
      return;
    if (!socket.isOpen())
      continue;
    Connection &connection = connections.emplace_back();
    connection.socket = std::move(socket);
    const Status started = endExceptions("rendezvous", [&] {
      connection.thread = std::thread([this, &connection] {
        // A client's mistake or death ends its connection and nothing else.
        (void)endExceptions("rendezvous",
                            [&] { return serve(connection.socket); });
        shutdown(connection.socket.get(), SHUT_RDWR);
        std::lock_guard lock(mutex);
        connection.isFinished = true;
      });
      return Status::ok();
    });
    // Without a thread for it the client sees its connection closed.
    if (!started.isOk())
      connections.pop_back();
  }
}

void RendezvousServer::removeFinished() {
  std::list<Connection> finished;
  {
    std::lock_guard lock(mutex);
    for (auto it = connections.begin(); it != connections.end();) {
      auto next = std::next(it);
      if (it->isFinished)
        finished.splice(finished.end(), connections, it);
      it = next;
    }
  }
  for (Connection &connection : finished)
    connection.thread.join();
}

void RendezvousServer::waitUntilTold(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex);
  changed.wait_for(lock, patience, [&] {
    return std::find(isTold.begin(), isTold.end(), false) == isTold.end();
  });
}

void RendezvousServer::noteStranger(const FileDescriptor &socket,
                                    uint32_t rank) {
  auto address = peerAddressOf(socket);
  std::lock_guard lock(mutex);
  if (!stranger.empty() || exchanges[0].missing == 0)
    return;
  stranger = otherSecret(static_cast<int>(rank),
                         address.isOk() ? *address : "?", terms.place)
                 .message();
  deadline = std::min(deadline, Clock::now() + terms.strangerPatience);
}

/// The rank that the client says it is.
StatusOr<uint32_t>
RendezvousServer::authenticate(const FileDescriptor &socket) {
  RendezvousHello hello;
  QLORA_ASSIGN_OR_RETURN(hello.drawn, randomDigest());
  QLORA_RETURN_IF_ERROR(setTimeout(socket, terms.handshake));
  QLORA_RETURN_IF_ERROR(sendAll(socket, &hello, sizeof hello));
  RendezvousGreeting greeting;
  QLORA_RETURN_IF_ERROR(receiveAll(socket, &greeting, sizeof greeting));
  if (greeting.magic != kRendezvousMagic)
    return Status::error(StatusCode::kUnavailable, "no rank");
  if (!isSame(greeting.proof, proofOf(terms.secret, kClientRole, hello.drawn,
                                      greeting.drawn))) {
    noteStranger(socket, greeting.rank);
    return Status::error(StatusCode::kUnavailable, "wrong secret");
  }
  const Digest proof =
      proofOf(terms.secret, kServerRole, hello.drawn, greeting.drawn);
  QLORA_RETURN_IF_ERROR(sendAll(socket, proof.data(), proof.size()));
  return greeting.rank;
}

void RendezvousServer::fail(std::string why) {
  if (failure.empty())
    failure = std::move(why);
  changed.notify_all();
}

/// "1, 4 and 6 more".
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

/// False: the ranks cannot start with this one, and are told why.
bool RendezvousServer::isWelcome(const RendezvousRequest &request,
                                 uint32_t rank, size_t number) {
  const std::string host = textOf(request.host);
  const std::string version = textOf(request.version);
  if (request.ranks != hosts.size() || rank >= request.ranks)
    fail(fmt::format(
        "rank {} ({}) was started as one of {} ranks, and rank 0 as "
        "one of {}: start all with the same number",
        rank, host, request.ranks, hosts.size()));
  else if (exchanges[number].values[rank])
    fail(fmt::format(
        "rank {} was started twice, on {} and {}: give each process "
        "a rank of its own",
        rank, hosts[rank], host));
  else if (version != terms.version)
    fail(
        fmt::format("rank {} ({}) has qlora-run {}, and rank 0 has {}: install "
                    "one version on every host",
                    rank, host, version, terms.version));
  else
    hosts[rank] = host;
  return failure.empty();
}

void RendezvousServer::failForMissing(size_t number) {
  const Exchange &current = exchanges[number];
  const std::string ranks = missingText(current);
  if (!stranger.empty())
    fail(stranger);
  else if (number == 0)
    fail(notReached(terms.place, ranks, terms.patience).message());
  else
    fail(fmt::format("rank {} was lost while the ranks met: is its host down?",
                     ranks));
  // Nobody waits to tell them.
  for (size_t rank = 0; rank < isTold.size(); ++rank)
    if (!current.values[rank])
      isTold[rank] = true;
}

static bool isGone(const FileDescriptor &socket) {
  pollfd event = {socket.get(), POLLRDHUP, 0};
  return poll(&event, 1, 0) > 0;
}

StatusOr<std::string> RendezvousServer::exchange(size_t number, uint32_t rank,
                                                 std::string value,
                                                 const FileDescriptor &socket) {
  std::unique_lock lock(mutex);
  Exchange &current = exchanges[number];
  current.values[rank] = std::move(value);
  if (--current.missing == 0) {
    deadline = Clock::now() + terms.ringPatience;
    changed.notify_all();
  }
  while (current.missing > 0 && failure.empty() && !isStopping) {
    changed.wait_for(lock, kLook);
    if (current.missing == 0 || !failure.empty())
      break;
    if (isGone(socket))
      fail(fmt::format("rank {} ({}) has ended while the ranks met: its own "
                       "last lines say why",
                       rank, hosts[rank]));
    else if (Clock::now() >= deadline)
      failForMissing(number);
  }
  if (current.missing > 0 && !failure.empty())
    return Status(StatusCode::kAborted, failure);
  if (current.missing > 0)
    return Status::error(StatusCode::kAborted, "rank 0 has ended");
  return *current.values[(rank + 1) % current.values.size()];
}

/// One exchange of a client. An error: it was the last.
Status RendezvousServer::answer(const FileDescriptor &socket, uint32_t rank,
                                size_t number) {
  RendezvousRequest request;
  QLORA_RETURN_IF_ERROR(receiveAll(socket, &request, sizeof request));
  QLORA_ASSIGN_OR_RETURN(std::string value, receiveText(socket, request.bytes));
  std::string refusal;
  {
    std::lock_guard lock(mutex);
    if (isWelcome(request, rank, number) && request.isFailure)
      fail(value);
    refusal = failure;
  }
  StatusOr<std::string> given =
      refusal.empty() ? exchange(number, rank, std::move(value), socket)
                      : Status(StatusCode::kAborted, refusal);
  const std::string &text = given.isOk() ? *given : given.status().message();
  const RendezvousAnswer answer = {!given.isOk(),
                                   static_cast<uint32_t>(text.size())};
  QLORA_RETURN_IF_ERROR(sendAll(socket, &answer, sizeof answer));
  QLORA_RETURN_IF_ERROR(sendAll(socket, text.data(), text.size()));
  return given.status();
}

Status RendezvousServer::serve(const FileDescriptor &socket) {
  QLORA_ASSIGN_OR_RETURN(const uint32_t rank, authenticate(socket));
  QLORA_RETURN_IF_ERROR(setTimeout(socket, terms.ringPatience));
  Status status;
  for (size_t number = 0; number < kExchanges && status.isOk(); ++number)
    status = answer(socket, rank, number);
  std::lock_guard lock(mutex);
  if (rank < isTold.size())
    isTold[rank] = true;
  if (!status.isOk())
    fail(fmt::format("rank {} was lost while the ranks met: is its host down?",
                     rank));
  changed.notify_all();
  return status;
}

} // namespace qlora
