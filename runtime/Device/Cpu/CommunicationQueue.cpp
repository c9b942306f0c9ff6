// SPDX-License-Identifier: MIT

// The thread's loop, synchronized with one mutex and one condition variable.

#include "runtime/Device/Cpu/CommunicationQueue.h"

#include "runtime/Base/Exceptions.h"

#include "runtime/Device/CommandTimer.h"

#include <cassert>
#include <csignal>

namespace qlora {

CommunicationQueue::CommunicationQueue(
    std::function<Status(const qlora_command &)> run, size_t maxCommands,
    size_t maxEvents)
    : run(std::move(run)), commands(maxCommands), happened(maxEvents) {
  // Only the main thread handles signals: block all of them in the new thread,
  // which inherits this mask.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread = std::thread([this] { loop(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

CommunicationQueue::~CommunicationQueue() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    ending = true;
  }
  changed.notify_all();
  thread.join();
}

void CommunicationQueue::begin() {
  const std::lock_guard<std::mutex> lock(mutex);
  assert(done == pushed && "the entry before has not finished");
  pushed = done = 0;
  std::fill(happened.begin(), happened.end(), uint8_t{0});
}

void CommunicationQueue::push(const qlora_command &command) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    assert(pushed < commands.size() && "more commands than announced");
    commands[pushed++] = &command;
  }
  changed.notify_all();
}

void CommunicationQueue::record(uint32_t event) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    happened[event] = 1;
  }
  changed.notify_all();
}

Status CommunicationQueue::wait(uint32_t event) {
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return happened[event] || skipping; });
  return happened[event] ? Status::ok() : failure;
}

Status CommunicationQueue::finish() {
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return done == pushed; });
  return failure;
}

void CommunicationQueue::cancel() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    skipping = true;
  }
  changed.notify_all();
}

void CommunicationQueue::keepTimes(bool keep) {
  const std::lock_guard<std::mutex> lock(mutex);
  assert(done == pushed && "an entry runs");
  timesOfEntry.resize(keep ? commands.size() : 0);
}

void CommunicationQueue::execute(const qlora_command &command,
                                 std::unique_lock<std::mutex> &lock) {
  if (skipping)
    return;
  if (command.kind == QLORA_COMMAND_RECORD) {
    happened[command.target] = 1;
    return;
  }
  if (command.kind == QLORA_COMMAND_WAIT) {
    changed.wait(
        lock, [&] { return happened[command.target] || skipping || ending; });
    return;
  }
  lock.unlock();
  Status status = endExceptions("communication queue",
                                [&] { return run(command); });
  lock.lock();
  if (status.isOk())
    return;
  skipping = true;
  if (failure.isOk())
    failure = std::move(status);
}

void CommunicationQueue::loop() {
  std::unique_lock<std::mutex> lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return done < pushed || ending; });
    if (ending)
      return;
    const bool isTimed = !timesOfEntry.empty();
    if (isTimed)
      timesOfEntry[done] = {commands[done], steadyNanoseconds(), 0};
    execute(*commands[done], lock);
    if (isTimed)
      timesOfEntry[done].end = steadyNanoseconds();
    ++done;
    changed.notify_all();
  }
}

} // namespace qlora
