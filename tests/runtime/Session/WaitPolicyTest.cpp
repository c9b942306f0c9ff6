// SPDX-License-Identifier: MIT

// qlora-run re-executes itself with environment variables that limit how long
// its idle threads spin.

#include <gtest/gtest.h>

#include <dlfcn.h>
#include <sys/auxv.h>

#include "tests/runtime/Session/SessionFixture.h"

using namespace qlora;
using WaitPolicy = SessionFixture;

TEST_F(WaitPolicy, ALoaderMayStartTheProgram) {
  Dl_info loader;
  ASSERT_NE(dladdr(reinterpret_cast<void *>(getauxval(AT_BASE)), &loader), 0);
  // LeakSanitizer reports a leak if the dynamic loader starts the program.
  ProcessOutput output =
      std::move(runProgram({"/usr/bin/env", "ASAN_OPTIONS=detect_leaks=0",
                            loader.dli_fname, QLORA_RUN, module, "--print"}))
          .value();
  EXPECT_EQ(output.exitCode, 0) << output.errors;
  EXPECT_NE(output.out, "");
}

TEST_F(WaitPolicy, ThreadsWaitBusilyForAMomentOnly) {
  const auto spins = [&](const char *setting) {
    ProcessOutput output = std::move(runProgram({"/usr/bin/env", setting,
                                                 "OMP_DISPLAY_ENV="
                                                 "verbose",
                                                 QLORA_RUN, module, "--print"}))
                               .value();
    EXPECT_EQ(output.exitCode, 0) << output.errors;
    // The program starts twice; the second start prints the setting in effect.
    const std::string name = "GOMP_SPINCOUNT = '";
    const size_t at = output.errors.rfind(name);
    EXPECT_NE(at, output.errors.npos) << output.errors;
    const std::string rest = output.errors.substr(at + name.size());
    return rest.substr(0, rest.find('\''));
  };
  // oneDNN loads libgomp, even if our code was compiled with another OpenMP.
  EXPECT_EQ(spins("UNRELATED=1"), "1000");
  EXPECT_EQ(spins("GOMP_SPINCOUNT=77"), "77");
  EXPECT_EQ(spins("OMP_WAIT_POLICY=passive"), "0");
}
