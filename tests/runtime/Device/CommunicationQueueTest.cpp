// SPDX-License-Identifier: MIT

// Order, errors and cancellation of commands in the communication queue.

#include "runtime/Device/Cpu/CommunicationQueue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

namespace qlora {
namespace {

qlora_command command(qlora_command_kind kind, uint32_t target = 0) {
  qlora_command command = {};
  command.kind = static_cast<uint8_t>(kind);
  command.queue = QLORA_QUEUE_COMMUNICATION;
  command.target = target;
  return command;
}

TEST(CommunicationQueue, RunsInOrderAfterEvents) {
  std::vector<uint32_t> order;
  std::atomic<bool> released{false};
  CommunicationQueue queue(
      [&](const qlora_command &c) {
        EXPECT_TRUE(released);
        order.push_back(c.target);
        return Status::ok();
      },
      8, 2);
  const qlora_command commands[] = {
      command(QLORA_COMMAND_WAIT, 0), command(QLORA_COMMAND_COLLECTIVE, 7),
      command(QLORA_COMMAND_COLLECTIVE, 8), command(QLORA_COMMAND_RECORD, 1)};
  for (int repeat = 0; repeat < 50; ++repeat) {
    released = false;
    order.clear();
    queue.begin();
    for (const qlora_command &c : commands)
      queue.push(c);
    released = true;
    queue.record(0);
    EXPECT_TRUE(queue.wait(1).isOk());
    EXPECT_EQ(order, (std::vector<uint32_t>{7, 8}));
    EXPECT_TRUE(queue.finish().isOk());
  }
}

/// An exception that a command throws becomes the queue's error.
TEST(CommunicationQueue, AnExceptionIsItsError) {
  CommunicationQueue queue(
      [](const qlora_command &) -> Status {
        throw std::runtime_error("no threads");
      },
      1, 0);
  const qlora_command only = command(QLORA_COMMAND_COLLECTIVE);
  queue.begin();
  queue.push(only);
  EXPECT_EQ(queue.finish().message(), "communication queue: no threads");
}

TEST(CommunicationQueue, KeepsTheFirstErrorAndSkipsTheRest) {
  int runs = 0;
  CommunicationQueue queue(
      [&](const qlora_command &) {
        ++runs;
        return Status::error(StatusCode::kAborted, "error {}", runs);
      },
      8, 1);
  const qlora_command reduce = command(QLORA_COMMAND_COLLECTIVE);
  queue.begin();
  queue.push(reduce);
  queue.push(reduce);
  // The wait fails because its event's collective failed.
  EXPECT_EQ(queue.wait(0).message(), "error 1");
  EXPECT_EQ(queue.finish().message(), "error 1");
  EXPECT_EQ(runs, 1);
}

TEST(CommunicationQueue, EndsWhenCancelled) {
  CommunicationQueue queue([](const qlora_command &) { return Status::ok(); },
                           8, 1);
  const qlora_command wait = command(QLORA_COMMAND_WAIT);
  queue.begin();
  queue.push(wait);
  queue.cancel();
  EXPECT_TRUE(queue.finish().isOk());
}

TEST(CommunicationQueue, EndsWithACommandStillWaiting) {
  CommunicationQueue queue([](const qlora_command &) { return Status::ok(); },
                           8, 1);
  const qlora_command wait = command(QLORA_COMMAND_WAIT);
  queue.begin();
  queue.push(wait);
}

} // namespace
} // namespace qlora
