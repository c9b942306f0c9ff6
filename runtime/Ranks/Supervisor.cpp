// SPDX-License-Identifier: MIT

// Starts, watches and ends ranks.

#include "runtime/Ranks/Supervisor.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Ranks/RankEnvironment.h"
#include "runtime/Ranks/Socket.h"

#include <fcntl.h>
#include <openssl/rand.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

extern char **environ;

namespace qlora {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

namespace {

/// Signals within this time count as one.
constexpr auto kOneSignal = std::chrono::seconds(1);

struct Child {
  pid_t pid = -1;
  FileDescriptor channel;
  bool hasEnded = false;
  bool hasReported = false;
  int exitCode = 0; ///< as in a shell; 0 if this launcher killed the rank
};

class Supervisor {
public:
  explicit Supervisor(const LaunchRequest &request) : request(request) {}
  ~Supervisor() { sigprocmask(SIG_SETMASK, &oldMask, nullptr); }

  Status start();
  LaunchResult watch();
  void killAll(int signal);

private:
  Status blockSignals();
  Status startRank(int rank);
  [[noreturn]] void becomeRank(int rank, int channel);
  Status sendHello(int rank);
  void handleSignals();
  void reap();
  void readReport(int rank);
  void noteEnd(int rank, int status);
  void noteFailure(int rank, StatusCode code, const std::string &message);
  bool haveAllEnded() const;
  int pollTimeout() const;

  const LaunchRequest &request;
  std::vector<Child> children;
  FileDescriptor signals;
  sigset_t oldMask = {};
  FileDescriptor listening;
  int port = 0;
  std::string secret;

  /// The first error other than kAborted, and the first kAborted.
  struct Failure {
    Status error;
    int rank = -1;
  } firstCause, firstAborted;
  int exitCode = 0; ///< the first nonzero exit code
  int interruptions = 0;
  Clock::time_point firstInterruption;
  bool isKilling = false;
  std::optional<Clock::time_point> deadline;
};

} // namespace

static std::string randomSecret() {
  std::array<unsigned char, 32> bytes;
  if (RAND_bytes(bytes.data(), bytes.size()) != 1)
    return {};
  std::string hex;
  for (unsigned char byte : bytes)
    hex += fmt::format("{:02x}", byte);
  return hex;
}

static Status systemError(const char *what) {
  return Status::unavailable("cannot start the ranks: {}: {}", what,
                             socketErrorText(errno));
}

Status Supervisor::blockSignals() {
  sigset_t mask;
  sigemptyset(&mask);
  for (int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1})
    sigaddset(&mask, signal);
  sigprocmask(SIG_BLOCK, &mask, &oldMask);
  signals = FileDescriptor(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  return signals.isOpen() ? Status::ok() : systemError("signalfd");
}

Status Supervisor::start() {
  raiseDescriptorLimit();
  QLORA_RETURN_IF_ERROR(blockSignals());
  secret = randomSecret();
  if (secret.empty())
    return Status::unavailable(
        "cannot start the ranks: the system has no random numbers");
  QLORA_ASSIGN_OR_RETURN(listening, listenOn("127.0.0.1", 0));
  QLORA_ASSIGN_OR_RETURN(port, portOf(listening));
  for (int rank = 0; rank < request.ranks; ++rank)
    if (Status status = startRank(rank); !status.isOk()) {
      children.resize(rank); // only the ranks that were started
      return status;
    }
  listening = FileDescriptor();
  return Status::ok();
}

Status Supervisor::startRank(int rank) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return systemError("socketpair");
  FileDescriptor ours(ends[0]), theirs(ends[1]);
  children.emplace_back().channel = std::move(ours);
  // Send before the fork: sending to a rank that has already ended would fail.
  QLORA_RETURN_IF_ERROR(sendHello(rank));
  pid_t parent = getpid();
  pid_t pid = fork();
  if (pid < 0)
    return systemError("fork");
  if (pid == 0) {
    // End this rank if the launcher ends, or has ended before this line.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
      _exit(1);
    becomeRank(rank, theirs.get());
  }
  children[rank].pid = pid;
  return Status::ok();
}

void Supervisor::becomeRank(int rank, int channel) {
  setpgid(0, 0);
  fcntl(channel, F_SETFD, 0);
  if (rank == 0)
    fcntl(listening.get(), F_SETFD, 0);
  const std::pair<const char *, std::string> variables[] = {
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(request.ranks)},
      {"LOCAL_WORLD_SIZE", std::to_string(request.ranks)},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port)},
      {kRankChannelVariable, std::to_string(channel)},
  };
  for (const auto &[name, value] : variables)
    setenv(name, value.c_str(), 1);
  unsetenv("TORCHELASTIC_RUN_ID");
  std::vector<char *> arguments;
  for (const std::string &argument : request.arguments)
    arguments.push_back(const_cast<char *>(argument.c_str()));
  arguments.push_back(nullptr);
  sigprocmask(SIG_SETMASK, &oldMask, nullptr);
  execv(request.executable.c_str(), arguments.data());
  std::string message = dumpJson(
      json{{"code", int(StatusCode::kUnavailable)},
           {"message", fmt::format("cannot execute {}: {}", request.executable,
                                   std::strerror(errno))}});
  send(channel, message.data(), message.size(), MSG_NOSIGNAL);
  _exit(127);
}

Status Supervisor::sendHello(int rank) {
  json hello = {{"secret", secret}};
  if (rank == 0)
    hello["listening"] = listening.get();
  std::string text = dumpJson(hello);
  if (send(children[rank].channel.get(), text.data(), text.size(),
           MSG_NOSIGNAL) < 0)
    return systemError("send");
  return Status::ok();
}

void Supervisor::killAll(int signal) {
  for (const Child &child : children)
    if (!child.hasEnded && child.pid > 0) // pid -1 would signal every process
      kill(child.pid, signal);
  isKilling = isKilling || signal == SIGKILL;
}

bool Supervisor::haveAllEnded() const {
  for (const Child &child : children)
    if (!child.hasEnded)
      return false;
  return true;
}

void Supervisor::noteFailure(int rank, StatusCode code,
                             const std::string &message) {
  Failure &first = code == StatusCode::kAborted ? firstAborted : firstCause;
  if (first.error.isOk())
    first = {Status(code, fmt::format("rank {}: {}", rank, message)), rank};
  if (!deadline)
    deadline = Clock::now() + request.grace;
}

void Supervisor::readReport(int rank) {
  std::string text(kMaxChannelBytes, '\0');
  ssize_t bytes = recv(children[rank].channel.get(), text.data(), text.size(),
                       MSG_DONTWAIT);
  // A rank that ends without reading the hello resets the connection, but its
  // report can still be read.
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNRESET))
    return;
  if (bytes <= 0) {
    children[rank].channel = FileDescriptor();
    return;
  }
  text.resize(static_cast<size_t>(bytes));
  json report = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!report.is_object())
    return;
  children[rank].hasReported = true;
  noteFailure(rank, StatusCode(report.value("code", 0)),
              report.value("message", ""));
}

void Supervisor::noteEnd(int rank, int status) {
  children[rank].hasEnded = true;
  // A rank sends its report before it ends, but the report may be unread.
  while (children[rank].channel.isOpen())
    readReport(rank);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
    return;
  if (WIFEXITED(status)) {
    int code = children[rank].exitCode = WEXITSTATUS(status);
    bool wasStopped = interruptions > 0 && code > 128;
    exitCode = exitCode == 0 ? code : exitCode;
    if (!wasStopped && !children[rank].hasReported)
      noteFailure(rank, StatusCode::kInternal,
                  fmt::format("ended with exit code {}", code));
    return;
  }
  int signal = WTERMSIG(status);
  exitCode = exitCode == 0 ? 128 + signal : exitCode;
  // Before its first step a rank has nothing to save, so the signal kills it.
  bool wasStopped =
      interruptions > 0 && (signal == SIGINT || signal == SIGTERM);
  if (isKilling || wasStopped)
    return;
  children[rank].exitCode = 128 + signal;
  noteFailure(rank, StatusCode::kUnavailable,
              fmt::format("was killed by signal {} ({}){}", signal,
                          strsignal(signal),
                          signal == SIGKILL ? "; possibly out of memory" : ""));
}

void Supervisor::reap() {
  for (size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    if (!children[rank].hasEnded &&
        waitpid(children[rank].pid, &status, WNOHANG) == children[rank].pid)
      noteEnd(static_cast<int>(rank), status);
  }
}

void Supervisor::handleSignals() {
  signalfd_siginfo info;
  while (read(signals.get(), &info, sizeof info) == sizeof info) {
    int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD || signal == SIGUSR1) {
      signal == SIGCHLD ? reap() : killAll(signal);
      continue;
    }
    const auto now = Clock::now();
    if (++interruptions == 1) {
      firstInterruption = now;
      killAll(signal == SIGHUP ? SIGTERM : signal);
    } else if (now - firstInterruption >= kOneSignal) {
      killAll(SIGKILL);
    }
  }
}

int Supervisor::pollTimeout() const {
  if (!deadline || isKilling)
    return -1;
  auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      *deadline - Clock::now());
  return static_cast<int>(std::max<int64_t>(0, left.count() + 1));
}

LaunchResult Supervisor::watch() {
  while (!haveAllEnded()) {
    std::vector<pollfd> events = {{signals.get(), POLLIN, 0}};
    for (const Child &child : children)
      events.push_back({child.channel.get(), POLLIN, 0});
    int ready = poll(events.data(), events.size(), pollTimeout());
    if (ready == 0 && deadline && Clock::now() >= *deadline)
      killAll(SIGKILL);
    for (size_t rank = 0; rank < children.size(); ++rank)
      if (ready > 0 && events[rank + 1].revents)
        readReport(static_cast<int>(rank));
    if (ready > 0 && events[0].revents)
      handleSignals();
  }
  // kAborted is only a consequence, even if it arrives before its cause.
  const Failure &failure = firstCause.error.isOk() ? firstAborted : firstCause;
  LaunchResult result;
  result.error = failure.error;
  result.exitCode = exitCode;
  if (failure.rank >= 0 && children[failure.rank].exitCode != 0)
    result.exitCode = children[failure.rank].exitCode;
  if (!result.error.isOk() && result.exitCode == 0)
    result.exitCode = 1;
  return result;
}

LaunchResult launchRanks(const LaunchRequest &request) {
  Supervisor supervisor(request);
  if (Status status = supervisor.start(); !status.isOk()) {
    supervisor.killAll(SIGKILL);
    supervisor.watch();
    return {1, status};
  }
  return supervisor.watch();
}

} // namespace qlora
