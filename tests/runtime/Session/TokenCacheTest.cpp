// SPDX-License-Identifier: MIT

// The cache of tokenised JSONL, with a shell script for qlora-data.

#include "runtime/Session/TokenCache.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "runtime/Session/ContentHash.h"
#include "runtime/Session/Subprocess.h"

using namespace qlora;
namespace fs = std::filesystem;

namespace {

class TokenCache : public testing::Test {
protected:
  void SetUp() override {
    fs::remove_all(folder);
    fs::create_directories(folder / "model");
    std::ofstream(folder / "data.jsonl") << "{\"text\": \"a\"}\n";
    std::ofstream(folder / "model/tokenizer.json") << "{}";
    request.dataFile = (folder / "data.jsonl").string();
    request.modelFolder = (folder / "model").string();
    request.cacheFolder = (folder / "out/.cache").string();
    request.maxLength = 8;
    request.vocabSize = 16;
  }
  void TearDown() override { fs::remove_all(folder); }

  std::string converter(const std::string &script) {
    std::string path = (folder / "convert").string();
    std::ofstream(path) << "#!/bin/sh\n" << script;
    fs::permissions(path, fs::perms::owner_all);
    return path;
  }
  std::string path() { return cachedRowsPath(request).value(); }

  fs::path folder =
      fs::path(testing::TempDir()) / ("tokens" + std::to_string(getpid()));
  TokenRequest request;
};

} // namespace

TEST_F(TokenCache, NameFollowsEverythingThatMatters) {
  std::string first = path();
  EXPECT_EQ(path(), first);
  request.maxLength = 9;
  EXPECT_NE(path(), first);
  request.maxLength = 8;
  request.assistantOnlyLoss = false;
  EXPECT_NE(path(), first);
  request.assistantOnlyLoss = true;
  std::ofstream(folder / "model/chat_template.jinja") << "x";
  EXPECT_NE(path(), first);
  fs::remove(folder / "model/chat_template.jinja");
  EXPECT_EQ(path(), first);
  std::ofstream(folder / "data.jsonl", std::ios::app) << "{}\n";
  EXPECT_NE(path(), first);
  request.dataFile = "/nonexistent";
  EXPECT_FALSE(cachedRowsPath(request).isOk());
}

TEST_F(TokenCache, TheConverterRunsOnce) {
  std::string log = (folder / "log").string();
  std::string script =
      converter("echo \"$@\" >> " + log + "; echo rows > \"$6\"\n");
  ASSERT_TRUE(makeCachedRows(request, path(), script).isOk());
  ASSERT_TRUE(makeCachedRows(request, path(), script).isOk());
  EXPECT_TRUE(fs::exists(path()));
  std::ifstream lines(log);
  std::string line, more;
  std::getline(lines, line);
  EXPECT_FALSE(std::getline(lines, more));
  EXPECT_EQ(line, "--tokenizer " + request.modelFolder + " --input " +
                      request.dataFile + " --output " + path() +
                      " --max-length 8 --vocab-size 16 --completion-only-loss "
                      "true --assistant-only-loss true");
}

TEST_F(TokenCache, ItsErrorIsOurs) {
  auto failing = converter(
      "echo note >&2; echo 'qlora-data: error: d:3: bad' >&2; exit 1\n");
  EXPECT_EQ(makeCachedRows(request, path(), failing).message(), "d:3: bad");
  auto killed = converter("kill -9 $$\n");
  EXPECT_NE(makeCachedRows(request, path(), killed)
                .message()
                .find("ended with code 137"),
            std::string::npos);
  EXPECT_FALSE(makeCachedRows(request, path(), "/nonexistent").isOk());
}

TEST(Subprocess, LargeOutputsOnBothPipes) {
  auto output = runProgram(
      {"/bin/sh", "-c",
       "head -c 300000 /dev/zero; head -c 200000 /dev/zero >&2; exit 5"});
  ASSERT_TRUE(output.isOk());
  EXPECT_EQ(output->out.size(), 300000u);
  EXPECT_EQ(output->errors.size(), 200000u);
  EXPECT_EQ(output->exitCode, 5);
}

TEST(ContentHash, PartsAreKeptApart) {
  auto hash = [](std::initializer_list<const char *> parts) {
    ContentHash content;
    for (const char *part : parts)
      content.add(part);
    return content.finish();
  };
  EXPECT_EQ(hash({"ab"}).size(), 64u);
  EXPECT_NE(hash({"a", "b"}), hash({"ab"}));
  EXPECT_NE(hash({"a", "b"}), hash({"ab", ""}));
  EXPECT_FALSE(ContentHash().addFile("/nonexistent").isOk());
}
