// SPDX-License-Identifier: MIT

// Operations of runtime/Base on files, folders, memory and programs, with each
// call of the C library failing in turn.

#include <gtest/gtest.h>

#include <unistd.h>

#include "runtime/Base/HostMemory.h"
#include "runtime/Base/Manifest.h"
#include "runtime/Base/Subprocess.h"
#include "runtime/Base/UserFiles.h"
#include "tests/runtime/Faults.h"
#include "tests/runtime/TemporaryFolder.h"

namespace qlora {
namespace {

void expectOneLine(const Status &status, const std::string &part) {
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
  EXPECT_NE(status.message().find(part), std::string::npos)
      << status.message() << " has no " << part;
}

/// After a failed call, a folder has a complete manifest, or none that
/// verifies.
TEST(Faults, OfAManifest) {
  for (const int error : {ENOSPC, EIO})
    for (const unsigned calls : {kChanges, kReads}) {
      FaultSweep sweep({.calls = calls, .error = error});
      while (sweep.next()) {
        const TemporaryFolder folder;
        folder.write("a.bin", std::string(3000, 'x'));
        folder.write("b.txt", "text");
        const Status status =
            sweep.run([&] { return writeManifest(folder.path(), {}); });
        if (!status.isOk())
          expectOneLine(status, folder.path());
        EXPECT_TRUE(status.isOk() ||
                    verifyManifest(folder.path()).status().code() ==
                        StatusCode::kNotFound)
            << sweep.call();
      }
      EXPECT_GE(sweep.failures(), 6);
    }
}

/// A folder that cannot be read is not reported as a folder without a manifest.
TEST(Faults, OfVerifying) {
  const TemporaryFolder folder;
  folder.write("a.bin", std::string(3000, 'x'));
  folder.write("b.txt", "text");
  ASSERT_TRUE(writeManifest(folder.path(), {}).isOk());
  FaultSweep sweep({.calls = kReads, .below = folder.path()});
  while (sweep.next()) {
    const Status status =
        sweep.run([&] { return verifyManifest(folder.path()).status(); });
    EXPECT_EQ(status.isOk(), !sweep.hasFailed()) << sweep.call();
    if (sweep.hasFailed())
      expectOneLine(status, folder.path());
  }
  EXPECT_GE(sweep.failures(), 8);
}

TEST(Faults, OfReadingATextFile) {
  const TemporaryFolder folder;
  const std::string path = folder.write("x", std::string(100'000, 'x'));
  for (const int error : {EIO, EINTR, EMFILE}) {
    FaultSweep sweep(
        {.calls = kReads, .error = error, .below = folder.path()});
    while (sweep.next()) {
      const auto text = sweep.run([&] { return readWholeFile(path); });
      if (sweep.hasFailed() && error != EINTR)
        expectOneLine(text.status(), "'" + path + "': " + strerror(error));
      else
        EXPECT_EQ(text.value().size(), 100'000u) << sweep.call();
    }
    EXPECT_GE(sweep.failures(), 1);
  }
}

TEST(Faults, OfMemory) {
  for (const int error : {ENOMEM, EMFILE}) {
    FaultSweep sweep({.calls = kMemory, .error = error});
    while (sweep.next()) {
      const Status status = sweep.run([]() -> Status {
        QLORA_ASSIGN_OR_RETURN(const int shared,
                               HostMemory::createShared("test", 8192));
        const FileDescriptor owned(shared);
        QLORA_ASSIGN_OR_RETURN(HostMemory all,
                               HostMemory::shared(shared, 8192));
        QLORA_ASSIGN_OR_RETURN(HostMemory file,
                               HostMemory::readOnly(shared, 8192));
        QLORA_ASSIGN_OR_RETURN(HostMemory own, HostMemory::anonymous(8192));
        return all.protect();
      });
      EXPECT_EQ(status.isOk(), !sweep.hasFailed()) << sweep.call();
      if (sweep.hasFailed())
        expectOneLine(status, strerror(error));
    }
    EXPECT_EQ(sweep.failures(), 6);
  }
}

TEST(Faults, OfAProgram) {
  for (const int error : {EMFILE, EAGAIN}) {
    FaultSweep sweep({.calls = kStarts, .error = error});
    while (sweep.next()) {
      const auto output =
          sweep.run([] { return runProgram({"/bin/echo", "here"}); });
      EXPECT_EQ(output.isOk(), !sweep.hasFailed()) << sweep.call();
      if (sweep.hasFailed())
        expectOneLine(output.status(), strerror(error));
      else
        EXPECT_EQ(output.value().out, "here\n");
    }
    EXPECT_GE(sweep.failures(), 3);
  }
}

/// If the process is killed at any call, the folder has the old file or the new
/// file.
TEST(Faults, OfAKilledProcess) {
  const TemporaryFolder folder;
  FaultSweep sweep({.calls = kChanges,
                    .how = FaultPlan::How::kKill,
                    .below = folder.path()});
  while (sweep.next()) {
    const std::string path = folder.write("x", "old");
    const FaultyRun run = sweep.runChild(
        [&] { return replaceWholeFile(path, "new").isOk() ? 0 : 1; });
    EXPECT_EQ(run.exitCode, sweep.hasFailed() ? 128 + SIGKILL : 0);
    EXPECT_TRUE(folder.read("x") == "old" || folder.read("x") == "new");
  }
  EXPECT_GE(sweep.failures(), 5);
}

} // namespace
} // namespace qlora
