// SPDX-License-Identifier: MIT

// Counts calls of the C library, and makes one of them fail. FaultCalls.cpp
// replaces the library's functions.

#include "tests/runtime/Faults.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "tests/runtime/FaultCalls.h"

namespace qlora {

namespace {

/// An operation that takes more seconds counts as hanging.
constexpr unsigned kLongestSeconds = 30;

/// State in memory that is shared with child processes.
struct State {
  std::atomic<bool> isArmed = false;
  std::atomic<long> calls = 0;
  std::atomic<long> failed = 0;
  long at = 0;
  unsigned kinds = 0;
  int error = 0;
  FaultPlan::How how = FaultPlan::How::kOnce;
  long leaked = 0; ///< open descriptors that a child leaked
  char below[512] = {}, only[64] = {};
  char function[64] = {}, place[512] = {}; ///< of the first failed call
};

template <size_t N> void copyText(char (&to)[N], const std::string &from) {
  std::snprintf(to, N, "%s", from.c_str());
}

State *state = nullptr;
std::atomic<RecordedCalls *> recorded = nullptr;

/// Whether this process is a child of runInChild().
bool isChild = false;

/// Whether this process has called spareThisProcess().
bool isSpared = false;

bool isArmed() { return state && state->isArmed && !isSpared; }

} // namespace

bool isDiskSpared() { return isChild || isArmed(); }

bool areFaultsArmed() { return isArmed() || recorded; }

RecordedCalls::RecordedCalls(unsigned kinds) : kinds(kinds) { recorded = this; }
RecordedCalls::~RecordedCalls() { recorded = nullptr; }
void RecordedCalls::add(unsigned traits, Call call) {
  if (traits & kinds)
    all.push_back(std::move(call));
}

static std::string normal(const std::string &path) {
  return std::filesystem::path(path).lexically_normal();
}

/// Returns whether the sweep counts a call of `function` at `place`.
static bool counts(const char *function, unsigned traits,
                   const std::string &place) {
  if (!(traits & state->kinds) || (traits & kFrees) ||
      (*state->only && std::strcmp(state->only, function) != 0))
    return false;
  if (traits & (kChanges | kReads)) {
    if (!place.starts_with(state->below))
      return false;
    if (state->how == FaultPlan::How::kFull && !(traits & kNeedsSpace))
      return false;
    if (state->how == FaultPlan::How::kShort && !(traits & kWrites))
      return false;
  }
  constexpr unsigned kOfLibraries = kCuda | kCudaWork | kNccl;
  return state->error != EINTR || (traits & (kIsInterrupted | kOfLibraries));
}

int faultAt(const char *function, unsigned traits, const std::string &named,
            const std::string &from) {
  using How = FaultPlan::How;
  if (!areFaultsArmed())
    return 0;
  const std::string place = normal(named);
  if (RecordedCalls *calls = recorded)
    calls->add(traits, {function, place, normal(from)});
  if (!isArmed() || !counts(function, traits, place))
    return 0;
  const long number = ++state->calls;
  const bool staysSo =
      state->how == How::kFull || state->how == How::kOnwards;
  if (number < state->at || (number > state->at && !staysSo))
    return 0;
  if (state->failed++ == 0) {
    copyText(state->function, function);
    copyText(state->place, place);
  }
  if (state->how == How::kKill) {
    kill(getpid(), SIGKILL);
    pause(); // another thread may be the first to see the signal
  }
  return state->how == How::kShort ? kShortWrite : state->error;
}

static size_t openDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto &entry :
       std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

static void onAlarm(int) {
  const auto say = [](const char *text) {
    (void)!::write(STDERR_FILENO, text, std::strlen(text));
  };
  say("the operation hangs after a failed ");
  say(state->function);
  say(" of ");
  say(state->place);
  say("\n");
  _exit(99);
}

FaultSweep::FaultSweep(FaultPlan named) : plan(std::move(named)) {
  plan.below = normal(plan.below);
  if (!state) {
    void *memory = mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    state = new (memory) State;
  }
  signal(SIGALRM, onAlarm);
}

FaultSweep::~FaultSweep() {
  std::printf("faults: %ld calls%s%s\n", failures(),
              plan.only.empty() ? "" : " of ", plan.only.c_str());
}

bool FaultSweep::next() {
  if (number > 0 && !hasFailed())
    return false;
  ++number;
  function.clear();
  return true;
}

void FaultSweep::arm() {
  EXPECT_FALSE(state->isArmed) << "one sweep is inside of another";
  state->calls = 0;
  state->failed = 0;
  state->at = number;
  state->kinds = plan.calls;
  state->error = plan.error;
  state->how = plan.how;
  copyText(state->below, plan.below);
  copyText(state->only, plan.only);
  alarm(kLongestSeconds);
  state->isArmed = true;
}

void FaultSweep::disarm() {
  state->isArmed = false;
  alarm(0);
  if (state->failed > 0) {
    function = state->function;
    place = state->place;
  }
}

bool FaultSweep::hasFailed() const {
  return !function.empty() || (isArmed() && state->failed > 0);
}

std::string FaultSweep::call() const {
  return hasFailed() ? "call " + std::to_string(number) + ", " + function +
                           " of '" + place + "'"
                     : "no call has failed";
}

FaultSweep::Armed::Armed(FaultSweep &sweep)
    : sweep(sweep), descriptors(openDescriptors()) {
  sweep.arm();
}

FaultSweep::Armed::~Armed() {
  sweep.disarm();
  EXPECT_EQ(openDescriptors(), descriptors)
      << "descriptors stay open after " << sweep.call();
}

static std::string textOf(FILE *file) {
  std::string text(static_cast<size_t>(lseek(fileno(file), 0, SEEK_END)), 0);
  text.resize(static_cast<size_t>(
      std::max<ssize_t>(0, pread(fileno(file), text.data(), text.size(), 0))));
  std::fclose(file);
  return text;
}

void spareThisProcess() { isSpared = true; }

FaultyRun runInChild(const std::function<int()> &operation) {
  FILE *out = std::tmpfile(), *errors = std::tmpfile();
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    isChild = true;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(fileno(out), STDOUT_FILENO);
    dup2(fileno(errors), STDERR_FILENO);
    const int code = operation();
    std::fflush(nullptr);
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          textOf(out), textOf(errors)};
}

FaultyRun FaultSweep::runChild(const std::function<int()> &operation) {
  state->leaked = 0;
  FaultyRun run = runInChild([&] {
    const size_t before = openDescriptors();
    arm();
    const int code = operation();
    disarm();
    state->leaked = static_cast<long>(openDescriptors() - before);
    return code;
  });
  disarm();
  EXPECT_EQ(state->leaked, 0) << "descriptors stay open after " << call();
  return run;
}

} // namespace qlora
