// SPDX-License-Identifier: MIT

// The cache of tokenised JSONL, with a shell script in place of qlora-data.

#include "runtime/Data/TokenCache.h"

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/CpuCount.h"
#include "runtime/Base/UserFiles.h"
#include "tests/runtime/Faults.h"

using namespace qlora;
namespace fs = std::filesystem;

namespace {

class TokenCache : public testing::Test {
protected:
  void SetUp() override {
    fs::remove_all(folder);
    fs::create_directories(folder / "model");
    fs::create_directories(folder / "tool/qlora_data/chat_templates");
    write("data.jsonl", "{\"text\": \"a\"}\n");
    write("model/tokenizer.json", "{}");
    write("tool/qlora_data/convert.py", "pass\n");
    ASSERT_TRUE(writeSafetensors(rows, {}, {}).isOk());
    request.dataFile = (folder / "data.jsonl").string();
    request.modelFolder = (folder / "model").string();
    request.cacheFolder = (folder / "cache/tokens").string();
    request.maxLength = 8;
    request.vocabSize = 16;
    converter("exit 3\n");
  }
  void TearDown() override { fs::remove_all(folder); }

  void write(const char *name, const std::string &text) {
    std::ofstream(folder / name) << text;
  }
  void converter(const std::string &script) {
    request.converter = (folder / "tool/qlora-data").string();
    write("tool/qlora-data", "#!/bin/sh\nfor word; do if [ $word = "
                             "--print-key ]; then echo key; exit; fi; done\n" +
                                 script);
    fs::permissions(request.converter, fs::perms::owner_all);
  }
  /// Returns the script of a qlora-data that writes valid rows.
  std::string copyRows() { return "cp " + rows + " \"${14}\"\n"; }
  std::string path() { return cachedRowsPath(request).value(); }
  void setAge(const fs::path &file, int hours) {
    fs::last_write_time(file, fs::file_time_type::clock::now() -
                                  std::chrono::hours(hours));
  }
  fs::path add(const char *name, int bytes, int hours) {
    fs::create_directories(request.cacheFolder);
    const fs::path file = fs::path(request.cacheFolder) / name;
    std::ofstream(file) << std::string(bytes, 'x');
    setAge(file, hours);
    return file;
  }
  Status make() { return makeCachedRows(request, path(), {}); }

  fs::path folder =
      fs::path(testing::TempDir()) / ("tokens" + std::to_string(getpid()));
  const std::string rows = (folder / "rows").string();
  TokenRequest request;
};

/// Sets or unsets an environment variable during one test.
class Variable {
public:
  Variable(const char *name, const char *value) : name(name) {
    if (const char *old = std::getenv(name))
      before = old;
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Variable() { before ? setenv(name, before->c_str(), 1) : unsetenv(name); }

private:
  const char *name;
  std::optional<std::string> before;
};

} // namespace

TEST_F(TokenCache, TheNameIsQloraDatas) {
  EXPECT_EQ(path(), request.cacheFolder + "/rows-key.safetensors");
  write("tool/qlora-data",
        "#!/bin/sh\necho 'qlora-data: error: x: cannot be read' >&2; exit 1\n");
  EXPECT_EQ(cachedRowsPath(request).status().message(), "x: cannot be read");
}

TEST_F(TokenCache, TheConverterRunsOnce) {
  std::string log = (folder / "log").string();
  converter("echo \"$@\" >> " + log + "; " + copyRows());
  ASSERT_TRUE(make().isOk());
  ASSERT_TRUE(make().isOk());
  EXPECT_TRUE(fs::exists(path()));
  std::ifstream lines(log);
  std::string line, more;
  std::getline(lines, line);
  EXPECT_FALSE(std::getline(lines, more));
  EXPECT_EQ(line, "--tokenizer " + request.modelFolder + " --input " +
                      request.dataFile +
                      " --vocab-size 16 --completion-only-loss true "
                      "--assistant-only-loss true --max-length 8 --output " +
                      path() + " --workers " +
                      std::to_string(usableCpus()) + " --progress");
  struct stat info;
  ASSERT_EQ(stat(request.cacheFolder.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(TokenCache, ADamagedFileIsMadeAgain) {
  converter(copyRows());
  ASSERT_TRUE(make().isOk());
  for (uintmax_t bytes : {0, 9}) {
    fs::resize_file(path(), bytes);
    const Status status = make();
    EXPECT_TRUE(status.isOk()) << status.message();
    EXPECT_EQ(fs::file_size(path()), fs::file_size(rows));
  }
}

/// If a file call fails, the rows are complete or the error names the folder.
TEST_F(TokenCache, FaultsLeaveWholeRowsOrNone) {
  using How = FaultPlan::How;
  converter(copyRows());
  const std::string target = path(), expected = readWholeFile(rows).value();
  for (const bool isKept : {false, true})
    for (const auto &[error, how] : {std::pair{ENOSPC, How::kOnce},
                                     {EIO, How::kOnce},
                                     {ENOSPC, How::kFull},
                                     {EIO, How::kOnwards}}) {
      FaultSweep sweep({.calls = kChanges | kReads,
                        .error = error,
                        .how = how,
                        .below = request.cacheFolder});
      while (sweep.next()) {
        fs::remove_all(request.cacheFolder);
        ASSERT_TRUE(!isKept || make().isOk());
        const Status status =
            sweep.run([&] { return makeCachedRows(request, target, {}); });
        EXPECT_TRUE(status.isOk() || sweep.hasFailed()) << status.message();
        if (status.isOk())
          EXPECT_EQ(readWholeFile(target).value(), expected) << sweep.call();
        else
          EXPECT_NE(status.message().find(request.cacheFolder),
                    std::string::npos)
              << sweep.call() << ": " << status.message();
      }
      EXPECT_GE(sweep.failures(), how == How::kFull ? 0 : 3);
    }
}

TEST_F(TokenCache, AFullDiskNamesTheRemedy) {
  converter(
      "echo \"qlora-data: error: ${14}: cannot be written: full; free some "
      "space, or write to another folder\" >&2; exit 1\n");
  EXPECT_EQ(make().message(),
            path() + ": cannot be written: full; free some space, or write to "
                     "another folder; set XDG_CACHE_HOME to a folder with free "
                     "space");
}

TEST_F(TokenCache, ItsErrorIsOurs) {
  converter("echo note >&2; echo 'qlora-data: progress: 1 2' >&2\n"
            "echo 'qlora-data: error: d:3: bad' >&2; exit 1\n");
  EXPECT_EQ(make().message(), "d:3: bad");
  converter("kill -9 $$\n");
  EXPECT_NE(make().message().find("ended with code 137"), std::string::npos);
  std::string somewhere = path();
  request.converter = "/nonexistent";
  EXPECT_FALSE(cachedRowsPath(request).isOk());
  EXPECT_FALSE(makeCachedRows(request, somewhere, {}).isOk());
}

TEST_F(TokenCache, ProgressIsHeard) {
  converter("echo 'qlora-data: progress: 0 90' >&2\n"
            "echo 'qlora-data: warning: x' >&2\n"
            "echo 'qlora-data: progress: 90 90' >&2\n" +
            copyRows());
  std::vector<std::pair<uint64_t, uint64_t>> heard;
  Status status =
      makeCachedRows(request, path(), [&](uint64_t done, uint64_t total) {
        heard.emplace_back(done, total);
      });
  ASSERT_TRUE(status.isOk()) << status.message();
  EXPECT_EQ(heard,
            (std::vector<std::pair<uint64_t, uint64_t>>{{0, 90}, {90, 90}}));
}

TEST_F(TokenCache, TwoAtOnceDoNotDisturbEachOther) {
  // The script works like qlora-data: it writes a separate file and renames it
  // when the file is complete.
  converter("for i in 1 2 3 4 5 6 7 8 9; do echo row $i; sleep 0.01; done "
            "> \"${14}.part.$$\"; mv \"${14}.part.$$\" \"${14}\"\n");
  Status other;
  std::thread second([&] { other = make(); });
  Status status = make();
  second.join();
  EXPECT_TRUE(status.isOk()) << status.message();
  EXPECT_TRUE(other.isOk()) << other.message();
  EXPECT_EQ(fs::file_size(path()), 9 * 6u);
  EXPECT_EQ(std::distance(fs::directory_iterator(request.cacheFolder), {}), 1);
}

TEST_F(TokenCache, TheLeastRecentlyUsedMakeRoom) {
  fs::path oldest = add("rows-a.safetensors", 600, 9);
  fs::path middle = add("rows-b.safetensors", 600, 8);
  fs::path abandoned = add("rows-c.safetensors.part.12", 10, 30);
  fs::path written = add("rows-c.safetensors.part.34", 10, 1);
  fs::path foreign = add("notes", 5000, 99);
  converter(copyRows());
  request.cacheLimit = 1000;
  ASSERT_TRUE(make().isOk());
  EXPECT_FALSE(fs::exists(oldest));
  EXPECT_TRUE(fs::exists(middle));
  EXPECT_FALSE(fs::exists(abandoned));
  EXPECT_TRUE(fs::exists(written));
  EXPECT_TRUE(fs::exists(foreign));
  // Using the oldest file makes it the newest, so another file is deleted.
  setAge(path(), 20);
  ASSERT_TRUE(make().isOk());
  keepRecentFiles(request.cacheFolder, ".safetensors", 600, 100);
  EXPECT_FALSE(fs::exists(middle));
  EXPECT_TRUE(fs::exists(path()));
}

TEST_F(TokenCache, WhatWasUsedInTheLastHourStays) {
  const fs::path justMade = add("rows-a.safetensors", 600, 0);
  const fs::path old = add("rows-b.safetensors", 600, 2);
  keepRecentFiles(request.cacheFolder, ".safetensors", 1000, 900);
  EXPECT_TRUE(fs::exists(justMade));
  EXPECT_FALSE(fs::exists(old));
}

TEST_F(TokenCache, OneThatIsTooLargeEmptiesNothing) {
  const fs::path old = add("rows-a.safetensors", 600, 9);
  const fs::path large = add("rows-b.safetensors", 2000, 0);
  keepRecentFiles(request.cacheFolder, ".safetensors", 1000, 5000);
  EXPECT_TRUE(fs::exists(old));
  // A new file stays even if it alone exceeds the size limit. After two hours
  // it is deleted first.
  keepRecentFiles(request.cacheFolder, ".safetensors", 1000, 100);
  EXPECT_TRUE(fs::exists(old));
  EXPECT_TRUE(fs::exists(large));
  setAge(large, 2);
  keepRecentFiles(request.cacheFolder, ".safetensors", 1000, 100);
  EXPECT_TRUE(fs::exists(old));
  EXPECT_FALSE(fs::exists(large));
}

TEST_F(TokenCache, DataThatHasGoneEmptiesNothing) {
  const fs::path old = add("rows-a.safetensors", 600, 9);
  converter("exit 1\n");
  const std::string target = path();
  fs::remove(request.dataFile);
  EXPECT_FALSE(makeCachedRows(request, target, {}).isOk());
  EXPECT_TRUE(fs::exists(old));
}

TEST(TokenCacheFolder, IsTheUsers) {
  {
    Variable cache("XDG_CACHE_HOME", "/somewhere");
    EXPECT_EQ(tokenCacheFolder().value(), "/somewhere/qlora/tokens");
  }
  Variable cache("XDG_CACHE_HOME", nullptr);
  {
    Variable home("HOME", "/home/me");
    EXPECT_EQ(tokenCacheFolder().value(), "/home/me/.cache/qlora/tokens");
  }
  Variable home("HOME", nullptr);
  EXPECT_NE(tokenCacheFolder().status().message().find("set XDG_CACHE_HOME"),
            std::string::npos);
}

TEST(ConversionNote, SaysWhatWasChosenCutAndLeftOut) {
  const std::string path = testing::TempDir() + "note.safetensors";
  auto notes = [&](std::map<std::string, std::string> metadata) {
    EXPECT_TRUE(writeSafetensors(path, {}, metadata).isOk());
    return conversionNotes(path).value();
  };
  EXPECT_EQ(notes({}).note + notes({}).warning, "");
  const ConversionNotes all = notes({{"truncated_rows", "2"},
                                     {"truncated_tokens", "30"},
                                     {"max_length", "64"},
                                     {"dropped_rows", "5"},
                                     {"cut_off_rows", "4"},
                                     {"chosen_template", "qwen3-training"}});
  EXPECT_EQ(all.note,
            "uses the chat template qwen3-training instead of the model's own, "
            "which changes earlier turns");
  EXPECT_EQ(all.warning,
            "2 rows cut to 64 tokens, losing 30 tokens; 4 rows left out "
            "because --max-length 64 cuts off their answer; 1 rows left out "
            "because none of their tokens is in the loss");
  EXPECT_EQ(
      notes({{"dropped_rows", "4"}, {"cut_off_rows", "4"}, {"max_length", "9"}})
          .warning,
      "4 rows left out because --max-length 9 cuts off their answer");
  EXPECT_EQ(
      notes(
          {{"dropped_rows", "4"}, {"too_long_rows", "4"}, {"max_length", "9"}})
          .warning,
      "4 rows left out because they have more than 9 tokens");
  const ConversionNotes talks =
      notes({{"split_rows", "3"}, {"unreasoned_rows", "2"}});
  EXPECT_EQ(talks.note,
            "3 conversations are split into several rows, because the chat "
            "template writes earlier turns differently once later turns "
            "follow");
  EXPECT_EQ(talks.warning, "the chat template drops the reasoning of 2 "
                           "conversations, so it is not trained on");
  EXPECT_EQ(notes({{"dropping_rows", "2"}}).warning,
            "the chat template drops tools, tool calls or messages of 2 "
            "conversations, so they are not trained on");
  fs::remove(path);
}

TEST(ContentHash, PartsAreKeptApart) {
  auto hash = [](std::initializer_list<const char *> parts) {
    ContentHash content;
    for (const char *part : parts)
      content.add(part);
    return content.finish();
  };
  EXPECT_EQ(hash({"ab"}).size(), 32u);
  EXPECT_NE(hash({"a", "b"}), hash({"ab"}));
  EXPECT_NE(hash({"a", "b"}), hash({"ab", ""}));
  EXPECT_FALSE(ContentHash().addFile("/nonexistent").isOk());
}
