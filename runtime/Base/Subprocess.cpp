// SPDX-License-Identifier: MIT

// Forks, executes, and reads two pipes concurrently.

#include "runtime/Base/Subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "runtime/Base/FileDescriptor.h"

namespace qlora {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kCannotExecute = 127;
constexpr std::chrono::milliseconds kWatchTime = std::chrono::seconds(1);

struct Pipe {
  FileDescriptor reader, writer;
};

} // namespace

static StatusOr<Pipe> openPipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return Status::unavailable("cannot create a pipe: {}",
                               std::strerror(errno));
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

[[noreturn]] static void becomeProgram(char *const *arguments, int out,
                                       int errors) {
  // After a multi-threaded process forks, only async-signal-safe calls may run.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(errors, STDERR_FILENO);
  execv(arguments[0], arguments);
  _exit(kCannotExecute);
}

/// Appends what the pipe has to `text`; returns false at the end of the pipe.
static bool readSome(const FileDescriptor &pipe, std::string &text) {
  char buffer[4096];
  ssize_t bytes = read(pipe.get(), buffer, sizeof buffer);
  if (bytes > 0)
    text.append(buffer, static_cast<size_t>(bytes));
  return bytes > 0 || (bytes < 0 && errno == EINTR);
}

/// Passes the complete lines of `pending` to the listener. Appends lines for
/// which the listener returns false to `kept`.
static void passLines(std::string &pending, const LineListener &listener,
                      std::string &kept) {
  size_t begin = 0;
  for (size_t end; (end = pending.find('\n', begin)) != pending.npos;
       begin = end + 1) {
    const auto line = std::string_view(pending).substr(begin, end - begin);
    if (!listener || !listener(line))
      kept.append(line).append("\n");
  }
  pending.erase(0, begin);
}

StatusOr<ProcessOutput> runProgram(const std::vector<std::string> &arguments,
                                   const LineListener &onErrorLine,
                                   const WatchListener &everySecond,
                                   ErrorOutput to) {
  if (access(arguments[0].c_str(), X_OK) != 0)
    return Status::unavailable("cannot execute '{}': {}", arguments[0],
                               std::strerror(errno));
  QLORA_ASSIGN_OR_RETURN(Pipe out, openPipe());
  QLORA_ASSIGN_OR_RETURN(Pipe errors, openPipe());
  std::vector<char *> words;
  for (const std::string &argument : arguments)
    words.push_back(const_cast<char *>(argument.c_str()));
  words.push_back(nullptr);
  pid_t pid = fork();
  if (pid < 0)
    return Status::unavailable("cannot start a process: {}",
                               std::strerror(errno));
  if (pid == 0)
    becomeProgram(words.data(), out.writer.get(),
                  to == ErrorOutput::kShared ? STDERR_FILENO
                                             : errors.writer.get());
  out.writer = FileDescriptor();
  errors.writer = FileDescriptor();

  ProcessOutput result;
  std::string pending;
  Status watched;
  auto next = Clock::now() + kWatchTime;
  pollfd events[] = {{out.reader.get(), POLLIN, 0},
                     {errors.reader.get(), POLLIN, 0}};
  while (events[0].fd >= 0 || events[1].fd >= 0) {
    const bool watches = everySecond && watched.isOk();
    if (watches && Clock::now() >= next) {
      watched = everySecond();
      if (!watched.isOk())
        kill(pid, SIGTERM);
      next = Clock::now() + kWatchTime;
    }
    if (poll(events, 2, watches ? int(kWatchTime.count()) : -1) < 0)
      continue;
    if (events[0].revents && !readSome(out.reader, result.out))
      events[0].fd = -1;
    if (events[1].revents && !readSome(errors.reader, pending))
      events[1].fd = -1;
    passLines(pending, onErrorLine, result.errors);
  }
  result.errors += pending;
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  QLORA_RETURN_IF_ERROR(watched);
  result.exitCode =
      WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

} // namespace qlora
