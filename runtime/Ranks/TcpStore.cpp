// SPDX-License-Identifier: MIT

// Server and client of the rendezvous store.

#include "runtime/Ranks/TcpStore.h"

#include "runtime/Base/Exceptions.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace qlora {

namespace {

constexpr uint32_t kMaxKeyBytes = 1024;
constexpr uint32_t kMaxValueBytes = 16 << 20;
constexpr auto kHandshakeTimeout = std::chrono::seconds(10);
/// A client waits this much longer for the answer "timeout" of a get.
constexpr auto kAnswerSlack = std::chrono::seconds(5);

using Digest = std::array<unsigned char, 32>;

Digest hmac(std::string_view secret, const Digest &challenge) {
  Digest answer = {};
  unsigned bytes = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       challenge.data(), challenge.size(), answer.data(), &bytes);
  return answer;
}

/// The two lengths that follow a request's first byte.
struct RequestHead {
  uint32_t keyBytes = 0;
  uint32_t second = 0;
};

} // namespace

TcpStoreServer::TcpStoreServer(FileDescriptor listening, std::string secret)
    : listening(std::move(listening)), secret(std::move(secret)) {}

StatusOr<std::unique_ptr<TcpStoreServer>>
TcpStoreServer::start(FileDescriptor listening, std::string secret) {
  std::unique_ptr<TcpStoreServer> server(
      new TcpStoreServer(std::move(listening), std::move(secret)));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return Status::error(StatusCode::kUnavailable, "pipe: {}",
                         std::strerror(errno));
  server->wakeReader = FileDescriptor(ends[0]);
  server->wakeWriter = FileDescriptor(ends[1]);
  server->acceptor =
      std::thread([s = server.get()] { s->acceptConnections(); });
  return server;
}

TcpStoreServer::~TcpStoreServer() {
  {
    std::lock_guard lock(mutex);
    isStopping = true;
    for (Connection &connection : connections)
      shutdown(connection.socket.get(), SHUT_RDWR);
  }
  changed.notify_all();
  wakeWriter = FileDescriptor();
  if (acceptor.joinable())
    acceptor.join();
  for (Connection &connection : connections)
    connection.thread.join();
}

void TcpStoreServer::acceptConnections() {
  while (true) {
    pollfd events[] = {{listening.get(), POLLIN, 0},
                       {wakeReader.get(), POLLIN, 0}};
    if (poll(events, 2, -1) < 0 && errno == EINTR)
      continue;
    if (events[1].revents)
      return;
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
        serve(connection);
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

void TcpStoreServer::removeFinished() {
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

void TcpStoreServer::serve(Connection &connection) {
  const FileDescriptor &socket = connection.socket;
  // A client's mistake or death ends its connection and nothing else.
  (void)endExceptions("rendezvous", [&]() -> Status {
    QLORA_RETURN_IF_ERROR(authenticate(socket));
    while (true)
      QLORA_RETURN_IF_ERROR(answerOne(socket));
  });
  shutdown(socket.get(), SHUT_RDWR);
}

Status TcpStoreServer::authenticate(const FileDescriptor &socket) const {
  Digest challenge, answer;
  if (RAND_bytes(challenge.data(), challenge.size()) != 1)
    return Status::error(StatusCode::kUnavailable, "no random numbers");
  QLORA_RETURN_IF_ERROR(setTimeout(socket, kHandshakeTimeout));
  QLORA_RETURN_IF_ERROR(sendAll(socket, challenge.data(), challenge.size()));
  QLORA_RETURN_IF_ERROR(receiveAll(socket, answer.data(), answer.size()));
  Digest expected = hmac(secret, challenge);
  if (CRYPTO_memcmp(expected.data(), answer.data(), expected.size()) != 0)
    return Status::error(StatusCode::kUnavailable, "wrong secret");
  QLORA_RETURN_IF_ERROR(sendAll(socket, "\0", 1));
  return setTimeout(socket, std::chrono::milliseconds(0));
}

Status TcpStoreServer::answerOne(const FileDescriptor &socket) {
  char request = 0;
  QLORA_RETURN_IF_ERROR(receiveAll(socket, &request, 1));
  if (request == 'S')
    return answerSet(socket);
  if (request == 'G')
    return answerGet(socket);
  return Status::invalid("unknown request {}", static_cast<int>(request));
}

static StatusOr<std::string> receiveText(const FileDescriptor &socket,
                                         uint32_t bytes, uint32_t limit) {
  if (bytes > limit)
    return Status::invalid("a text of {} bytes is over the limit of {}", bytes,
                           limit);
  std::string text(bytes, '\0');
  QLORA_RETURN_IF_ERROR(receiveAll(socket, text.data(), bytes));
  return text;
}

Status TcpStoreServer::answerSet(const FileDescriptor &socket) {
  RequestHead head;
  QLORA_RETURN_IF_ERROR(receiveAll(socket, &head, sizeof head));
  QLORA_ASSIGN_OR_RETURN(std::string key,
                         receiveText(socket, head.keyBytes, kMaxKeyBytes));
  QLORA_ASSIGN_OR_RETURN(std::string value,
                         receiveText(socket, head.second, kMaxValueBytes));
  {
    std::lock_guard lock(mutex);
    values[key] = std::move(value);
  }
  changed.notify_all();
  return sendAll(socket, "\0", 1);
}

Status TcpStoreServer::answerGet(const FileDescriptor &socket) {
  RequestHead head;
  QLORA_RETURN_IF_ERROR(receiveAll(socket, &head, sizeof head));
  QLORA_ASSIGN_OR_RETURN(std::string key,
                         receiveText(socket, head.keyBytes, kMaxKeyBytes));
  std::string answer("\1", 1);
  {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::milliseconds(head.second),
                     [&] { return isStopping || values.count(key); });
    if (auto found = values.find(key); found != values.end()) {
      uint32_t bytes = static_cast<uint32_t>(found->second.size());
      answer.assign(1, '\0');
      answer.append(reinterpret_cast<const char *>(&bytes), sizeof bytes);
      answer += found->second;
    }
  }
  return sendAll(socket, answer.data(), answer.size());
}

static Status answerChallenge(const FileDescriptor &socket,
                              std::string_view secret) {
  QLORA_RETURN_IF_ERROR(setTimeout(socket, kHandshakeTimeout));
  Digest challenge;
  QLORA_RETURN_IF_ERROR(receiveAll(socket, challenge.data(), challenge.size()));
  Digest answer = hmac(secret, challenge);
  QLORA_RETURN_IF_ERROR(sendAll(socket, answer.data(), answer.size()));
  char accepted = 1;
  return receiveAll(socket, &accepted, 1);
}

StatusOr<std::unique_ptr<TcpStore>>
TcpStore::connect(const std::string &host, int port, std::string_view secret,
                  std::chrono::milliseconds timeout) {
  QLORA_ASSIGN_OR_RETURN(FileDescriptor socket, connectTo(host, port, timeout));
  Status status = answerChallenge(socket, secret);
  if (!status.isOk())
    return Status::error(StatusCode::kUnavailable,
                         "{}:{} refused this rank: is it another job's? ({})",
                         host, port, status.message());
  QLORA_ASSIGN_OR_RETURN(std::string address, localAddressOf(socket));
  return std::unique_ptr<TcpStore>(
      new TcpStore(std::move(socket), std::move(address)));
}

static std::string request(char kind, std::string_view key, uint32_t second,
                           std::string_view value) {
  RequestHead head = {static_cast<uint32_t>(key.size()), second};
  std::string bytes(1, kind);
  bytes.append(reinterpret_cast<const char *>(&head), sizeof head);
  bytes += key;
  bytes += value;
  return bytes;
}

Status TcpStore::set(std::string_view key, std::string_view value) {
  if (key.size() > kMaxKeyBytes || value.size() > kMaxValueBytes)
    return Status::invalid("'{}' with {} bytes is too large for the store", key,
                           value.size());
  std::lock_guard lock(mutex);
  QLORA_RETURN_IF_ERROR(setTimeout(socket, kAnswerSlack));
  std::string bytes =
      request('S', key, static_cast<uint32_t>(value.size()), value);
  QLORA_RETURN_IF_ERROR(sendAll(socket, bytes.data(), bytes.size()));
  char answer = 1;
  return receiveAll(socket, &answer, 1);
}

StatusOr<std::string> TcpStore::get(std::string_view key,
                                    std::chrono::milliseconds timeout) {
  std::lock_guard lock(mutex);
  QLORA_RETURN_IF_ERROR(setTimeout(socket, timeout + kAnswerSlack));
  std::string bytes =
      request('G', key, static_cast<uint32_t>(timeout.count()), "");
  QLORA_RETURN_IF_ERROR(sendAll(socket, bytes.data(), bytes.size()));
  char answer = 1;
  QLORA_RETURN_IF_ERROR(receiveAll(socket, &answer, 1));
  if (answer != 0)
    return Status::error(StatusCode::kUnavailable,
                         "no rank has set '{}' in {} s", key,
                         timeout.count() / 1000.0);
  uint32_t size = 0;
  QLORA_RETURN_IF_ERROR(receiveAll(socket, &size, sizeof size));
  return receiveText(socket, size, kMaxValueBytes);
}

} // namespace qlora
