// SPDX-License-Identifier: MIT

#include "runtime/Base/StopSignal.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

using namespace qlora;
using namespace std::chrono_literals;

TEST(StopSignal, OneRequestIsAnsweredOnceForASecond) {
  installStopSignals();
  EXPECT_FALSE(isSaveAsked());
  std::raise(SIGUSR1);
  EXPECT_TRUE(isSaveAsked());
  EXPECT_TRUE(isSaveAsked()) << "until it is answered";
  answerSaveSignal();
  EXPECT_FALSE(isSaveAsked());
  // A launcher may have signalled another rank too, which forwards the signal
  // to this rank later. A repetition within a second is therefore ignored.
  std::raise(SIGUSR1);
  EXPECT_FALSE(isSaveAsked());
  std::this_thread::sleep_for(1100ms);
  EXPECT_FALSE(isSaveAsked());
  std::raise(SIGUSR1);
  EXPECT_TRUE(isSaveAsked());
}
