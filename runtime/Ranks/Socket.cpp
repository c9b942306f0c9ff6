// SPDX-License-Identifier: MIT

// Implements Socket.h with POSIX sockets.

#include "runtime/Ranks/Socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

namespace qlora {

using Clock = std::chrono::steady_clock;
bool isOver(int error) {
  return error != EAGAIN && error != EWOULDBLOCK && error != EINTR;
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

void raiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max)
    return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::string socketErrorText(int error) {
  rlimit limit = {};
  if (error == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
    return fmt::format("this process has no file descriptor left, its limit is "
                       "{}. Fix: raise the hard limit of open files on this "
                       "host (ulimit -Hn)",
                       limit.rlim_cur);
  if (error == ENFILE)
    return "the system has no file descriptor left. Fix: raise fs.file-max "
           "with sysctl on this host";
  return std::strerror(error);
}

static Status systemError(std::string_view what, int error) {
  return Status::unavailable("{}: {}", what, socketErrorText(error));
}

/// Returns the error of a connection; kAborted if the other side has closed it.
static Status connectionError(std::string_view what, int error) {
  const Status status = systemError(what, error);
  return error == ECONNRESET || error == EPIPE
             ? Status(StatusCode::kAborted, status.message())
             : status;
}

static StatusOr<Addresses> resolve(const std::string &host, int port,
                                   bool isPassive) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (isPassive ? AI_PASSIVE : 0);
  addrinfo *found = nullptr;
  int error = getaddrinfo(host.empty() ? nullptr : host.c_str(),
                          std::to_string(port).c_str(), &hints, &found);
  if (error != 0)
    return Status::unavailable("cannot find the host '{}': {}", host,
                               gai_strerror(error));
  return Addresses(found, freeaddrinfo);
}

StatusOr<FileDescriptor> listenOn(const std::string &host, int port) {
  QLORA_ASSIGN_OR_RETURN(Addresses addresses, resolve(host, port, true));
  int error = 0;
  for (addrinfo *a = addresses.get(); a; a = a->ai_next) {
    FileDescriptor socket(
        ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    int on = 1;
    if (socket.isOpen() &&
        setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ==
            0 &&
        bind(socket.get(), a->ai_addr, a->ai_addrlen) == 0 &&
        listen(socket.get(), SOMAXCONN) == 0)
      return socket;
    error = errno;
  }
  const std::string place = fmt::format("{}:{}", host, port);
  if (error == EADDRINUSE)
    return Status::error(StatusCode::kResourceExhausted, "{} is in use", place);
  return systemError(fmt::format("cannot listen on {}", place), error);
}

/// Waits until `event` occurs; returns false at the deadline.
static bool waitFor(const FileDescriptor &socket, short event,
                    Clock::time_point deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  pollfd events = {socket.get(), event, 0};
  return poll(&events, 1,
              static_cast<int>(std::max<int64_t>(0, left.count()))) > 0;
}

/// Connects by the deadline; the system itself would wait two minutes for a
/// host that does not answer. Sets errno on failure.
static bool connectBy(const FileDescriptor &socket, const addrinfo &address,
                      Clock::time_point deadline) {
  fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  if (connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS)
      return false;
    int error = ETIMEDOUT;
    socklen_t bytes = sizeof error;
    if (waitFor(socket, POLLOUT, deadline))
      getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    errno = error;
    if (error != 0)
      return false;
  }
  fcntl(socket.get(), F_SETFL, 0);
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return true;
}

StatusOr<FileDescriptor> connectTo(const std::string &host, int port,
                                   std::chrono::milliseconds timeout,
                                   const std::function<Status()> &check) {
  const Clock::time_point deadline = Clock::now() + timeout;
  std::string last = "no address";
  do {
    auto addresses = resolve(host, port, false);
    if (!addresses.isOk())
      last = addresses.status().message();
    for (addrinfo *a = addresses.isOk() ? addresses->get() : nullptr; a;
         a = a->ai_next) {
      FileDescriptor socket(::socket(
          a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
      if (socket.isOpen() && connectBy(socket, *a, deadline))
        return socket;
      last = socketErrorText(errno);
    }
    if (check)
      QLORA_RETURN_IF_ERROR(check());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (Clock::now() < deadline);
  return Status::unavailable("cannot connect to {}:{} in {} s: {}", host, port,
                             timeout.count() / 1000.0, last);
}

StatusOr<int> portOf(const FileDescriptor &socket) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof address;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr *>(&address),
                  &bytes) != 0)
    return systemError("getsockname", errno);
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<sockaddr_in6 *>(&address)->sin6_port);
  return ntohs(reinterpret_cast<sockaddr_in *>(&address)->sin_port);
}

/// Returns the address that `name` (getsockname or getpeername) finds.
static StatusOr<std::string>
numericAddress(const FileDescriptor &socket, std::string_view function,
               int (*name)(int, sockaddr *, socklen_t *)) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof address;
  char host[NI_MAXHOST];
  if (name(socket.get(), reinterpret_cast<sockaddr *>(&address), &bytes) != 0)
    return systemError(function, errno);
  int error = getnameinfo(reinterpret_cast<sockaddr *>(&address), bytes, host,
                          sizeof host, nullptr, 0, NI_NUMERICHOST);
  if (error != 0)
    return Status::unavailable("getnameinfo: {}", gai_strerror(error));
  return std::string(host);
}

StatusOr<std::string> localAddressOf(const FileDescriptor &socket) {
  return numericAddress(socket, "getsockname", getsockname);
}

StatusOr<std::string> peerAddressOf(const FileDescriptor &socket) {
  return numericAddress(socket, "getpeername", getpeername);
}

void dropUnsent(const FileDescriptor &socket) {
  const linger none = {1, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
}

Status setTimeout(const FileDescriptor &socket,
                  std::chrono::milliseconds timeout) {
  timeval value = {};
  value.tv_sec = timeout.count() / 1000;
  value.tv_usec = timeout.count() % 1000 * 1000;
  for (int option : {SO_RCVTIMEO, SO_SNDTIMEO})
    if (setsockopt(socket.get(), SOL_SOCKET, option, &value, sizeof value) != 0)
      return systemError("setsockopt", errno);
  return Status::ok();
}

Status sendAll(const FileDescriptor &socket, const void *data, size_t bytes) {
  const char *next = static_cast<const char *>(data);
  while (bytes > 0) {
    ssize_t sent = send(socket.get(), next, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR)
      continue;
    if (sent <= 0)
      return connectionError("send", errno);
    next += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return Status::ok();
}

/// Handles the result of recv(): advances `next`, or returns an error.
static Status countReceived(ssize_t received, char *&next, size_t &bytes) {
  if (received == 0)
    return Status::error(StatusCode::kAborted,
                         "the other side closed the connection");
  if (received < 0)
    return connectionError("receive", errno);
  next += received;
  bytes -= static_cast<size_t>(received);
  return Status::ok();
}

Status receiveAll(const FileDescriptor &socket, void *data, size_t bytes) {
  char *next = static_cast<char *>(data);
  while (bytes > 0) {
    const ssize_t received = recv(socket.get(), next, bytes, 0);
    if (received < 0 && errno == EINTR)
      continue;
    QLORA_RETURN_IF_ERROR(countReceived(received, next, bytes));
  }
  return Status::ok();
}

Status receiveBy(const FileDescriptor &socket, void *data, size_t bytes,
                 Clock::time_point deadline) {
  char *next = static_cast<char *>(data);
  while (bytes > 0) {
    if (!waitFor(socket, POLLIN, deadline)) {
      if (Clock::now() >= deadline)
        return systemError("receive", ETIMEDOUT);
      continue;
    }
    const ssize_t received = recv(socket.get(), next, bytes, MSG_DONTWAIT);
    if (received < 0 && !isOver(errno))
      continue;
    QLORA_RETURN_IF_ERROR(countReceived(received, next, bytes));
  }
  return Status::ok();
}

} // namespace qlora
