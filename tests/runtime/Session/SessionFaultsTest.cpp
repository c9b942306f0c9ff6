// SPDX-License-Identifier: MIT

// Complete runs in a child process. Each file call fails in turn, or the
// process is killed at the call. A failed run reports the cause, complete
// checkpoints stay complete, and the run resumes with the same bytes.

#include <gtest/gtest.h>

#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/Base/Manifest.h"
#include "runtime/Checkpoint/CheckpointFolder.h"
#include "tests/runtime/Faults.h"
#include "tests/runtime/Session/SessionHere.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using How = FaultPlan::How;

class SessionFaults : public SessionHere {
protected:
  SessionFaults() {
    // There are thousands of runs, so they use a folder in memory if the system
    // has one.
    if (access("/dev/shm", W_OK) == 0)
      folder = "/dev/shm/" + folder.filename().string();
    out = (folder / "out").string();
  }

  int session(std::vector<std::pair<const char *, std::string>> settings) {
    settings.insert(settings.begin(), {{"learning_rate", "0.05"},
                                       {"max_steps", "2"},
                                       {"save_steps", "1"},
                                       {"save_total_limit", "1"}});
    return runHere("cpu", out, settings);
  }
  int resume() { return session({{"resume_from_checkpoint", "latest"}}); }

  /// Expects that every checkpoint-N is complete; returns the number of
  /// checkpoints.
  size_t expectWhole(const std::string &where) {
    const auto folders = checkpointsIn(out);
    for (const std::string &each : folders) {
      const Status status = verifyManifest(each).status();
      EXPECT_TRUE(status.isOk()) << where << ": " << status.message();
    }
    return folders.size();
  }
  /// Expects the adapter and moments of an uninterrupted run.
  void expectResult(const std::string &where) {
    EXPECT_TRUE(adapter("out") == expected.adapter) << where;
    EXPECT_TRUE(moments() == expected.moments) << where;
    EXPECT_EQ(losses(), expected.losses) << where;
  }
  /// Expects that the run resumes and reaches its last step.
  void expectResumes(const std::string &where) {
    const FaultyRun run = runInChild([&] { return resume(); });
    ASSERT_EQ(run.exitCode, 0) << where << "\n" << run.errors;
    EXPECT_EQ(run.errors.find("skipped: "), std::string::npos)
        << where << "\n" << run.errors;
    expectResult(where);
    for (const auto &entry : fs::directory_iterator(out))
      EXPECT_EQ(entry.path().string().find(".part"), std::string::npos)
          << where << ": " << entry.path();
  }
  void makeReference() {
    const FaultyRun run = runInChild([&] { return session({}); });
    ASSERT_EQ(run.exitCode, 0) << run.errors;
    expected = {adapter("out"), moments(), losses()};
    fs::remove_all(out);
  }

  /// Returns the warnings and errors that a run printed.
  static std::vector<std::string> troubles(const FaultyRun &run) {
    std::vector<std::string> lines;
    std::istringstream text(run.errors);
    for (std::string line; std::getline(text, line);)
      if (line.starts_with("qlora-run: warning: ") ||
          line.starts_with("qlora-run: error: "))
        lines.push_back(line);
    return lines;
  }

  std::string out;
  struct {
    std::string adapter, moments;
    std::vector<nlohmann::json> losses;
  } expected;

  std::string moments() {
    const auto folders = checkpointsIn(out);
    if (folders.empty())
      return "";
    const auto file =
        SafetensorsFile::open(folders.front() + "/state.safetensors");
    std::string all;
    for (const SafetensorsTensor &tensor : file->tensors()) {
      std::vector<uint8_t> bytes(tensor.end - tensor.begin);
      EXPECT_TRUE(file->read(tensor, 0, bytes).isOk());
      all.append(bytes.begin(), bytes.end());
    }
    return all;
  }
  std::vector<nlohmann::json> losses() {
    std::vector<nlohmann::json> all;
    for (const nlohmann::json &line : metrics("out"))
      all.push_back({line.value("step", nlohmann::json()),
                     line.value("loss", nlohmann::json()),
                     line.value("train_loss", nlohmann::json())});
    return all;
  }
};

TEST_F(SessionFaults, EndARunOrCostACheckpoint) {
  makeReference();
  for (const auto &[error, how] :
       {std::pair{ENOSPC, How::kOnce}, {EIO, How::kOnce},
        {ENOSPC, How::kFull}, {0, How::kShort}}) {
    FaultSweep sweep(
        {.calls = kChanges, .error = error, .how = how, .below = out});
    while (sweep.next()) {
      fs::remove_all(out);
      const FaultyRun run = sweep.runChild([&] { return session({}); });
      const std::string where = sweep.call() + "\n" + run.errors;
      const auto lines = troubles(run);
      ASSERT_LE(run.exitCode, 1) << where;
      EXPECT_LE(lines.size(), how == How::kFull ? 20u : 3u) << where;
      EXPECT_TRUE(how != How::kShort || lines.empty()) << where;
      expectWhole(where);
      if (run.exitCode == 0) {
        EXPECT_TRUE(adapter("out") == expected.adapter) << where;
        continue;
      }
      EXPECT_GE(lines.size(), 1u) << where;
      if (!lines.empty())
        EXPECT_NE(lines.back().find(out), std::string::npos) << where;
      if (fs::exists(out))
        expectResumes(where);
    }
    EXPECT_GE(sweep.failures(), how == How::kShort ? 20 : 100);
  }
}

TEST_F(SessionFaults, AKilledRunResumes) {
  makeReference();
  FaultSweep sweep({.calls = kChanges, .how = How::kKill, .below = out});
  while (sweep.next()) {
    fs::remove_all(out);
    const FaultyRun run = sweep.runChild([&] { return session({}); });
    EXPECT_EQ(run.exitCode, sweep.hasFailed() ? 128 + SIGKILL : 0);
    expectWhole(sweep.call());
    expectResumes(sweep.call());
  }
  EXPECT_GE(sweep.failures(), 100);
}

/// A run that replaces another run in its folder is killed. Until the new run
/// takes over the folder, the other run's checkpoints are complete. Afterwards,
/// a resumed run continues the new run. If only the other run's files are left,
/// resuming is an error.
TEST_F(SessionFaults, AKilledRunThatReplacesAnotherResumes) {
  makeReference();
  const FaultyRun other =
      runInChild([&] { return session({{"learning_rate", "1e-3"}}); });
  ASSERT_EQ(other.exitCode, 0) << other.errors;
  const fs::path earlier = folder / "earlier";
  fs::rename(out, earlier);
  const std::string id = contents(earlier / ".run");
  int ours = 0;
  FaultSweep sweep({.calls = kChanges, .how = How::kKill, .below = out});
  while (sweep.next()) {
    fs::remove_all(out);
    fs::copy(earlier, out, fs::copy_options::recursive);
    sweep.runChild(
        [&] { return session({{"overwrite_output_dir", "true"}}); });
    const std::string where = sweep.call();
    if (contents(fs::path(out) / ".run") == id) {
      EXPECT_EQ(checkpointsIn(out).size(), checkpointsIn(earlier).size());
      continue;
    }
    expectWhole(where);
    const FaultyRun run = runInChild([&] { return resume(); });
    if (run.exitCode == 0) {
      expectResult(where);
      ++ours;
      continue;
    }
    // The folder has only the other run's checkpoints or adapter.
    const char *said = checkpointsIn(out).empty() ? "holds an adapter"
                                                  : "' belongs to ";
    EXPECT_NE(run.errors.find(said), std::string::npos)
        << where << "\n" << run.errors;
  }
  EXPECT_GT(ours, 100);
}

/// A file that cannot be read either ends the run or is not needed for the
/// result. No run starts from scratch because its checkpoints cannot be read.
TEST_F(SessionFaults, AResumedRunThatCannotReadSaysSo) {
  const std::pair<const char *, std::string> constant = {"lr_scheduler_type",
                                                         "constant"};
  const auto resumed = [&] {
    return session({constant, {"resume_from_checkpoint", "latest"}});
  };
  const FaultyRun half =
      runInChild([&] { return session({constant, {"max_steps", "1"}}); });
  ASSERT_EQ(half.exitCode, 0) << half.errors;
  const fs::path earlier = folder / "earlier";
  fs::copy(out, earlier, fs::copy_options::recursive);
  ASSERT_EQ(runInChild(resumed).exitCode, 0);
  expected = {adapter("out"), moments(), losses()};
  FaultSweep sweep({.calls = kReads, .below = folder.string()});
  while (sweep.next()) {
    fs::remove_all(out);
    fs::copy(earlier, out, fs::copy_options::recursive);
    const FaultyRun run = sweep.runChild(resumed);
    const std::string where = sweep.call() + "\n" + run.errors;
    ASSERT_LE(run.exitCode, 1) << where;
    EXPECT_TRUE(run.exitCode == 0 || troubles(run).size() == 1) << where;
    EXPECT_GT(expectWhole(where), 0u) << where;
    if (run.exitCode != 0)
      continue;
    EXPECT_NE(run.errors.find("resumes from '"), std::string::npos) << where;
    EXPECT_TRUE(adapter("out") == expected.adapter) << where;
    EXPECT_EQ(losses(), expected.losses) << where;
    // A checkpoint may be incomplete only if the run has printed a warning.
    if (troubles(run).empty())
      EXPECT_TRUE(moments() == expected.moments) << where;
  }
  EXPECT_GE(sweep.failures(), 100);
}

} // namespace
} // namespace qlora
