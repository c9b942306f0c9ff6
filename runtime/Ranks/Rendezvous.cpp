// SPDX-License-Identifier: MIT

// Server and client of the rendezvous, and proofs of the job's secret.

#include "runtime/Ranks/Rendezvous.h"

#include "runtime/Base/Exceptions.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/socket.h>

namespace qlora {

namespace {
constexpr std::string_view kClient = "rank";
constexpr std::string_view kServer = "rendezvous";

/// What a client says first.
struct Greeting {
  Digest drawn, proof;
};
/// Before the value that a client gives.
struct Request {
  uint32_t rank, ranks, bytes;
};
/// Before the text of an answer.
struct [[gnu::packed]] Answer {
  uint8_t isRefused;
  uint32_t bytes;
};
} // namespace

// Proofs
// ----------------------------------------------------------------------

StatusOr<Digest> randomDigest() {
  Digest drawn;
  if (RAND_bytes(drawn.data(), drawn.size()) != 1)
    return Status::error(StatusCode::kUnavailable, "no random numbers");
  return drawn;
}

Digest proofOf(std::string_view secret, std::string_view role,
               const Digest &drawn) {
  std::string text(role);
  text.append(reinterpret_cast<const char *>(drawn.data()), drawn.size());
  Digest proof = {};
  unsigned bytes = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char *>(text.data()), text.size(),
       proof.data(), &bytes);
  return proof;
}

bool isSame(const Digest &a, const Digest &b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

/// Over what both have drawn.
static Digest proofOf(std::string_view secret, std::string_view role,
                      const Digest &ofServer, const Digest &ofClient) {
  std::string both(role);
  both.append(reinterpret_cast<const char *>(ofServer.data()), ofServer.size());
  return proofOf(secret, both, ofClient);
}

static StatusOr<std::string> receiveText(const FileDescriptor &socket,
                                         uint32_t bytes) {
  if (bytes > Rendezvous::kMaxValueBytes)
    return Status::invalid("a text of {} bytes is over the limit of {}", bytes,
                           Rendezvous::kMaxValueBytes);
  std::string text(bytes, '\0');
  QLORA_RETURN_IF_ERROR(receiveAll(socket, text.data(), bytes));
  return text;
}

// Server
// ----------------------------------------------------------------------

RendezvousServer::RendezvousServer(FileDescriptor listening, std::string secret,
                                   int ranks,
                                   std::chrono::milliseconds handshakeTimeout)
    : listening(std::move(listening)), secret(std::move(secret)),
      handshakeTimeout(handshakeTimeout),
      values(static_cast<size_t>(ranks)), missing(values.size()) {}

StatusOr<std::unique_ptr<RendezvousServer>>
RendezvousServer::start(FileDescriptor listening, std::string secret, int ranks,
                        std::chrono::milliseconds handshakeTimeout) {
  std::unique_ptr<RendezvousServer> server(new RendezvousServer(
      std::move(listening), std::move(secret), ranks, handshakeTimeout));
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

Status RendezvousServer::authenticate(const FileDescriptor &socket) const {
  QLORA_ASSIGN_OR_RETURN(const Digest drawn, randomDigest());
  QLORA_RETURN_IF_ERROR(setTimeout(socket, handshakeTimeout));
  QLORA_RETURN_IF_ERROR(sendAll(socket, drawn.data(), drawn.size()));
  Greeting greeting;
  QLORA_RETURN_IF_ERROR(receiveAll(socket, &greeting, sizeof greeting));
  if (!isSame(greeting.proof, proofOf(secret, kClient, drawn, greeting.drawn)))
    return Status::error(StatusCode::kUnavailable, "wrong secret");
  const Digest proof = proofOf(secret, kServer, drawn, greeting.drawn);
  return sendAll(socket, proof.data(), proof.size());
}

StatusOr<std::string> RendezvousServer::exchange(uint32_t rank, uint32_t ranks,
                                                 std::string value) {
  std::unique_lock lock(mutex);
  if (ranks != values.size() || rank >= ranks)
    return Status::invalid("it is rank {} of {}, rank 0 is of {}", rank, ranks,
                           values.size());
  if (values[rank])
    return Status::invalid("there are two of rank {}", rank);
  values[rank] = std::move(value);
  if (--missing == 0)
    changed.notify_all();
  changed.wait(lock, [&] { return isStopping || missing == 0; });
  if (missing > 0)
    return Status::error(StatusCode::kAborted, "rank 0 has ended");
  return *values[(rank + 1) % ranks];
}

Status RendezvousServer::serve(const FileDescriptor &socket) {
  QLORA_RETURN_IF_ERROR(authenticate(socket));
  Request request;
  QLORA_RETURN_IF_ERROR(receiveAll(socket, &request, sizeof request));
  QLORA_ASSIGN_OR_RETURN(std::string value, receiveText(socket, request.bytes));
  auto given = exchange(request.rank, request.ranks, std::move(value));
  const std::string &text = given.isOk() ? *given : given.status().message();
  const Answer answer = {!given.isOk(), static_cast<uint32_t>(text.size())};
  QLORA_RETURN_IF_ERROR(sendAll(socket, &answer, sizeof answer));
  return sendAll(socket, text.data(), text.size());
}

// Client
// ----------------------------------------------------------------------

static Status authenticateTo(const FileDescriptor &socket,
                             std::string_view secret,
                             std::chrono::milliseconds timeout) {
  QLORA_RETURN_IF_ERROR(setTimeout(socket, timeout));
  Digest drawn, proof;
  QLORA_RETURN_IF_ERROR(receiveAll(socket, drawn.data(), drawn.size()));
  Greeting greeting;
  QLORA_ASSIGN_OR_RETURN(greeting.drawn, randomDigest());
  greeting.proof = proofOf(secret, kClient, drawn, greeting.drawn);
  QLORA_RETURN_IF_ERROR(sendAll(socket, &greeting, sizeof greeting));
  QLORA_RETURN_IF_ERROR(receiveAll(socket, proof.data(), proof.size()));
  if (isSame(proof, proofOf(secret, kServer, drawn, greeting.drawn)))
    return Status::ok();
  return Status::error(StatusCode::kUnavailable, "it has another secret");
}

StatusOr<Rendezvous>
Rendezvous::connect(const std::string &host, int port, std::string_view secret,
                    std::chrono::milliseconds timeout,
                    std::chrono::milliseconds handshakeTimeout) {
  QLORA_ASSIGN_OR_RETURN(FileDescriptor socket, connectTo(host, port, timeout));
  Status status = authenticateTo(socket, secret, handshakeTimeout);
  if (!status.isOk())
    return Status::error(StatusCode::kUnavailable,
                         "{}:{} refused this rank: is it another job's? ({})",
                         host, port, status.message());
  QLORA_ASSIGN_OR_RETURN(std::string address, localAddressOf(socket));
  return Rendezvous(std::move(socket), std::move(address));
}

StatusOr<std::string> Rendezvous::exchange(int rank, int ranks,
                                           std::string_view value,
                                           std::chrono::milliseconds timeout) {
  QLORA_RETURN_IF_ERROR(setTimeout(socket, timeout));
  const Request request = {static_cast<uint32_t>(rank),
                           static_cast<uint32_t>(ranks),
                           static_cast<uint32_t>(value.size())};
  QLORA_RETURN_IF_ERROR(sendAll(socket, &request, sizeof request));
  QLORA_RETURN_IF_ERROR(sendAll(socket, value.data(), value.size()));
  Answer answer;
  if (Status status = receiveAll(socket, &answer, sizeof answer);
      !status.isOk())
    return status.withContext(fmt::format(
        "not all of the {} ranks have started in {} s", ranks,
        timeout.count() / 1000.0));
  QLORA_ASSIGN_OR_RETURN(std::string text, receiveText(socket, answer.bytes));
  if (answer.isRefused)
    return Status::invalid("rank 0 refused this rank: {}", text);
  return text;
}

} // namespace qlora
