// SPDX-License-Identifier: MIT

// A run resumes only from its own checkpoints, both in its own folder and after
// another run has used that folder.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/Manifest.h"
#include "tests/runtime/Session/SessionFixture.h"

using namespace qlora;
using nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

namespace {

/// The third micro-batch of the data has a token with an infinite score.
class RunIdentity : public SessionFixture {
protected:
  void SetUp() override {
    SessionFixture::SetUp();
    std::vector<float> scores(16, 0.25f);
    scores[15] = std::numeric_limits<float>::infinity();
    save(
        "model/model.safetensors",
        {item("model.scores.weight", SafetensorsDtype::kF32, scores, {1, 16})});
    std::vector<int32_t> ids(8 * 2 * 8, 3);
    ids[2 * 2 * 8 + 8 + 5] = 15;
    save("bad.safetensors",
         {item("input_ids", SafetensorsDtype::kI32, ids, {8, 2, 8}),
          item("labels", SafetensorsDtype::kI32, ids, {8, 2, 8})});
  }

  /// Trains on the rows with the infinite score; every step is saved.
  ProcessOutput runBad(const char *out, std::vector<std::string> flags) {
    flags.insert(flags.end(),
                 {"--train-file", at("bad.safetensors"), "--output-dir",
                  at(out), "--save-steps", "1", "--lr-scheduler-type",
                  "constant"});
    return run(std::move(flags));
  }
  void expectRun(const char *out, std::vector<std::string> flags,
                 int exitCode = 0) {
    const ProcessOutput output = runBad(out, std::move(flags));
    EXPECT_EQ(output.exitCode, exitCode) << output.errors;
  }
  /// Trains an earlier run of six steps with another learning rate.
  void expectEarlierRun(const char *out) {
    expectRun(out, {"--max-steps", "6", "--lr", "0.5", "--on-nonfinite",
                    "skip"});
  }
  std::string runOf(const std::string &checkpoint) {
    const auto facts = verifyManifest(at(checkpoint.c_str()));
    return facts.isOk() ? facts.value().at("run").get<std::string>()
                        : facts.status().message();
  }
  void copy(const char *from, const char *to) {
    fs::copy(at(from), at(to), fs::copy_options::recursive);
  }
  std::string refusal(const char *out, const std::string &checkpoint) {
    const ProcessOutput output =
        runBad(out, {"--max-steps", "8", "--lr", "0.05",
                     "--resume-from-checkpoint", checkpoint});
    EXPECT_EQ(output.exitCode, 1) << output.errors;
    EXPECT_EQ(output.out, "");
    EXPECT_EQ(std::ranges::count(output.errors, '\n'), 1) << output.errors;
    EXPECT_THAT(output.errors, HasSubstr("Fix: "));
    return output.errors;
  }
};

TEST_F(RunIdentity, RewindTakesACheckpointOfItsOwnRun) {
  const std::vector<std::string> flags = {"--max-steps", "4", "--lr", "0.05",
                                          "--on-nonfinite", "rewind"};
  expectRun("fresh", flags);
  expectEarlierRun("out");
  const std::string before = runOf("out/checkpoint-6");
  std::vector<std::string> over = flags;
  over.push_back("--overwrite-output-dir");
  const ProcessOutput output = runBad("out", over);
  EXPECT_EQ(output.exitCode, 0) << output.errors;
  EXPECT_THAT(output.errors,
              HasSubstr("out/checkpoint-2'; training continues"));
  EXPECT_THAT(output.errors, HasSubstr("this run renames checkpoint-6, "
                                       "checkpoint-5, checkpoint-4"));
  EXPECT_EQ(adapter("out"), adapter("fresh"));
  EXPECT_FALSE(fs::exists(at("out/checkpoint-6")));
  EXPECT_EQ(runOf("out/checkpoint-6.replaced"), before);
  EXPECT_NE(runOf("out/checkpoint-4"), before);
}

TEST_F(RunIdentity, ResumingTakesACheckpointOfTheRunThatWasKilled) {
  const std::vector<std::string> flags = {"--max-steps", "4", "--lr", "0.05"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  expectRun("fresh", with({"--on-nonfinite", "skip"}));
  expectEarlierRun("out");
  expectRun("out", with({"--overwrite-output-dir"}), /*exitCode=*/1);
  const ProcessOutput output =
      runBad("out", with({"--on-nonfinite", "skip", "--resume-from-checkpoint",
                          "true"}));
  EXPECT_EQ(output.exitCode, 0) << output.errors;
  EXPECT_THAT(output.errors,
              HasSubstr("out/checkpoint-2', after step 2"));
  EXPECT_EQ(adapter("out"), adapter("fresh"));
}

TEST_F(RunIdentity, ARunThatDiesBeforeItsFirstCheckpointLeavesNone) {
  expectEarlierRun("out");
  expectRun("out", {"--max-steps", "4", "--lr", "0.05", "--save-strategy", "no",
                    "--overwrite-output-dir"},
            /*exitCode=*/1);
  const ProcessOutput output =
      runBad("out", {"--max-steps", "2", "--lr", "0.05",
                     "--resume-from-checkpoint", "latest",
                     "--overwrite-output-dir", "false"});
  EXPECT_THAT(output.errors, Not(HasSubstr("resumes from")));
  EXPECT_THAT(output.errors, Not(HasSubstr("checkpoint-6'")));
}

TEST_F(RunIdentity, OneOfAnotherRunIsPassedOverOrRefused) {
  expectRun("out", {"--max-steps", "2", "--lr", "0.05"});
  expectEarlierRun("other");
  copy("other/checkpoint-6", "out/checkpoint-6");
  EXPECT_THAT(refusal("out", at("out/checkpoint-6")),
              HasSubstr("out/checkpoint-6' belongs to run "));
  const ProcessOutput output =
      runBad("out", {"--max-steps", "2", "--lr", "0.05",
                     "--resume-from-checkpoint", "latest"});
  EXPECT_EQ(output.exitCode, 0) << output.errors;
  EXPECT_THAT(output.errors, HasSubstr("checkpoint skipped: '"));
  EXPECT_THAT(output.errors, HasSubstr("out/checkpoint-2', after step 2"));
  // If no checkpoint belongs to the folder's current run, resuming is an error.
  copy("other/checkpoint-6", "out/checkpoint-7");
  fs::remove_all(at("out/checkpoint-1"));
  fs::remove_all(at("out/checkpoint-2"));
  EXPECT_THAT(refusal("out", "latest"), HasSubstr("can be resumed"));
}

TEST_F(RunIdentity, HalfOfOneAndOneOfAnotherVersionAreRefused) {
  expectRun("out", {"--max-steps", "2", "--lr", "0.05"});
  copy("out/checkpoint-2", "half");
  fs::remove(at("half/MANIFEST.json"));
  EXPECT_THAT(refusal("onward", at("half")),
              HasSubstr("half' is not a complete checkpoint: it has no "
                        "MANIFEST.json"));
  copy("out/checkpoint-2", "cut");
  fs::remove(at("cut/state.safetensors"));
  EXPECT_THAT(refusal("onward", at("cut")),
              HasSubstr("cut/state.safetensors' is missing"));
  copy("out/checkpoint-2", "later");
  ordered_json manifest =
      ordered_json::parse(contents(at("later/MANIFEST.json")));
  manifest["format"] = 2;
  manifest.erase("sha256");
  manifest["sha256"] = sha256(dumpJson(manifest));
  std::ofstream(at("later/MANIFEST.json")) << dumpJson(manifest, 2) << "\n";
  EXPECT_THAT(refusal("onward", at("later")),
              HasSubstr("has format 2, but this version reads format 1"));
  EXPECT_FALSE(fs::exists(at("onward/checkpoint-3")));
}

TEST_F(RunIdentity, IsKeptInItsFolderAndNewInAnother) {
  expectRun("out", {"--max-steps", "2", "--lr", "0.05"});
  const std::string id = runOf("out/checkpoint-1");
  EXPECT_EQ(id.size(), 32u);
  const std::vector<std::string> on = {"--lr", "0.05", "--on-nonfinite", "skip",
                                       "--resume-from-checkpoint"};
  const auto resume = [&](const char *out, const char *steps,
                          const std::string &from) {
    std::vector<std::string> flags = on;
    flags.insert(flags.end(), {from, "--max-steps", steps});
    expectRun(out, flags);
  };
  resume("out", "4", "latest");
  resume("out", "5", at("out/checkpoint-4"));
  EXPECT_EQ(runOf("out/checkpoint-2"), id);
  EXPECT_EQ(runOf("out/checkpoint-5"), id);
  resume("onward", "6", at("out/checkpoint-4"));
  EXPECT_NE(runOf("onward/checkpoint-6"), id);
  resume("onward", "7", "latest");
  EXPECT_EQ(runOf("onward/checkpoint-7"), runOf("onward/checkpoint-6"));
  // After the run resumes from an earlier checkpoint, its later checkpoints no
  // longer belong to it.
  resume("out", "4", at("out/checkpoint-3"));
  EXPECT_FALSE(fs::exists(at("out/checkpoint-5")));
  EXPECT_EQ(runOf("out/checkpoint-5.replaced"), id);
  EXPECT_EQ(runOf("out/checkpoint-4.replaced"), id);
  EXPECT_THAT(refusal("out", at("out/checkpoint-5.replaced")),
              HasSubstr("was replaced by a later run"));
  resume("third", "6", at("out/checkpoint-5.replaced"));
}

TEST_F(RunIdentity, RewindGoesBackToTheCheckpointOfAnotherFolder) {
  expectRun("out", {"--max-steps", "2", "--lr", "0.05"});
  const ProcessOutput output =
      runBad("onward", {"--max-steps", "4", "--lr", "0.05", "--on-nonfinite",
                        "rewind", "--resume-from-checkpoint",
                        at("out/checkpoint-2")});
  EXPECT_EQ(output.exitCode, 0) << output.errors;
  EXPECT_THAT(output.errors,
              HasSubstr("out/checkpoint-2'; training continues"));
}

TEST_F(RunIdentity, ACheckpointWithoutItsNameGetsIt) {
  for (const char *left : {"out/checkpoint-2.part.new",
                           "out/checkpoint-2.part.new_old"}) {
    fs::remove_all(at("out"));
    expectRun("out", {"--max-steps", "2", "--lr", "0.05", "--save-total-limit",
                      "1"});
    fs::rename(at("out/checkpoint-2"), at(left));
    if (std::string(left).ends_with("_old")) { // an incomplete checkpoint
      copy(left, "out/checkpoint-2.part.new");
      fs::remove(at("out/checkpoint-2.part.new/state.safetensors"));
    }
    const ProcessOutput output =
        runBad("out", {"--max-steps", "4", "--lr", "0.05", "--on-nonfinite",
                       "skip", "--resume-from-checkpoint", "latest"});
    EXPECT_EQ(output.exitCode, 0) << output.errors;
    EXPECT_THAT(output.errors, HasSubstr("out/checkpoint-2', after step 2"));
    EXPECT_FALSE(fs::exists(at("out/checkpoint-2.part.new")));
    EXPECT_FALSE(fs::exists(at("out/checkpoint-2.part.new_old")));
  }
}

TEST_F(RunIdentity, FilesOfOthersInACheckpointDoNotMatter) {
  expectRun("out", {"--max-steps", "2", "--lr", "0.05"});
  std::ofstream(at("out/checkpoint-2/.nfs00001234")) << "x";
  std::ofstream(at("out/checkpoint-2/note.txt")) << "x";
  const ProcessOutput output =
      runBad("out", {"--max-steps", "2", "--lr", "0.05",
                     "--resume-from-checkpoint", "latest"});
  EXPECT_EQ(output.exitCode, 0) << output.errors;
  EXPECT_THAT(output.errors, HasSubstr("out/checkpoint-2', after step 2"));
  EXPECT_THAT(output.errors, Not(HasSubstr("checkpoint skipped")));
}

} // namespace
