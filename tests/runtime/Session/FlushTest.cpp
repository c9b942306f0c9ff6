// SPDX-License-Identifier: MIT

// A file that is written as a whole is on the disk before its rename, and its
// new name after it: a crash of the machine leaves the old or the new file.

#include <gtest/gtest.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <set>
#include <vector>

#include "runtime/Base/Manifest.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Session/Adapter.h"
#include "runtime/Watch/Profiler.h"
#include "runtime/Weights/QuantizedBaseFile.h"
#include "runtime/Weights/Safetensors.h"
#include "tests/runtime/TemporaryFolder.h"

namespace {
/// Calls of the C library, in order.
struct Event {
  enum class Kind { kFlush, kRename } kind;
  std::string path, target = {};
};
std::vector<Event> events;
bool isRecording = false;

std::string normal(const char *path) {
  return std::filesystem::path(path).lexically_normal();
}
} // namespace

/// These replace the C library's functions, and record each call.
extern "C" int fsync(int file) {
  char path[PATH_MAX] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  if (isRecording && readlink(link.c_str(), path, sizeof path - 1) > 0)
    events.push_back({Event::Kind::kFlush, path});
  using Function = int (*)(int);
  static const auto next =
      reinterpret_cast<Function>(dlsym(RTLD_NEXT, "fsync"));
  return next(file);
}
extern "C" int rename(const char *from, const char *to) noexcept {
  if (isRecording)
    events.push_back({Event::Kind::kRename, normal(from), normal(to)});
  return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

namespace qlora {
namespace {

/// Returns the number of renames. Expects each file to be flushed before (as a
/// part or where it was made), and its folder afterwards.
size_t expectFlushed(const std::function<void()> &write) {
  events.clear();
  isRecording = true;
  write();
  isRecording = false;
  std::set<std::string> flushed, open;
  size_t renames = 0;
  for (const Event &event : events) {
    if (event.kind == Event::Kind::kFlush) {
      flushed.insert(event.path);
      open.erase(event.path);
      continue;
    }
    ++renames;
    EXPECT_TRUE(flushed.contains(event.path)) << event.path;
    flushed.insert(event.target);
    open.insert(std::filesystem::path(event.target).parent_path());
  }
  for (const std::string &folder : open)
    ADD_FAILURE() << folder << " is not flushed after its last rename";
  return renames;
}

TEST(Flush, AFileOfText) {
  const TemporaryFolder folder;
  const auto write = [&] {
    EXPECT_TRUE(replaceWholeFile(folder.path("x"), "text").isOk());
  };
  EXPECT_EQ(expectFlushed(write), 1u);
}

TEST(Flush, Tensors) {
  const TemporaryFolder folder;
  const auto write = [&] {
    EXPECT_TRUE(writeSafetensors(folder.path("x"), {}, {}).isOk());
  };
  EXPECT_EQ(expectFlushed(write), 1u);
}

TEST(Flush, ATrace) {
  const TemporaryFolder folder;
  const auto write = [&] {
    auto trace = TraceFile::open(folder.path("x"));
    ASSERT_TRUE(trace.isOk()) << trace.status().message();
    EXPECT_TRUE((*trace)->commit({}).isOk());
  };
  EXPECT_EQ(expectFlushed(write), 1u);
}

/// A kept base is as large as the model, and its readers compare checksums.
TEST(Flush, AKeptBaseNeedsNone) {
  const TemporaryFolder folder;
  const std::vector<uint8_t> arena(100, 1);
  events.clear();
  isRecording = true;
  auto writer = QuantizedBaseWriter::start(folder.path("x"), "key", arena);
  ASSERT_TRUE(writer.isOk()) << writer.status().message();
  EXPECT_TRUE((*writer)->finish().isOk());
  isRecording = false;
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].target, normal(folder.path("x").c_str()));
}

/// Weights, configuration and tokenizer, each renamed twice.
TEST(Flush, AnAdapter) {
  const TemporaryFolder folder;
  const LoadedModule module =
      std::move(LoadedModule::open(QLORA_UNIGRAM_MODULE)).value();
  std::filesystem::create_directories(folder.path("model"));
  folder.write("model/tokenizer.json", "{}");
  Options options;
  ASSERT_TRUE(options.applyRecorded(module.table().config_json).isOk());
  const OptionSetting setting = {
      findOption(optionTable(), "model_name_or_path"), folder.path("model"),
      "--model-name-or-path"};
  ASSERT_TRUE(options.applySettings({&setting, 1}).isOk());
  const NextBytes trained = [](std::span<uint8_t> out) {
    std::ranges::fill(out, uint8_t{1});
    return Status::ok();
  };
  const auto write = [&] {
    auto adapter =
        PreparedAdapter::prepare(module, options, folder.path("out"));
    ASSERT_TRUE(adapter.isOk()) << adapter.status().message();
    const Status status = adapter->write(trained);
    EXPECT_TRUE(status.isOk()) << status.message();
  };
  EXPECT_EQ(expectFlushed(write), 6u);
}

/// Files that a manifest names are on the disk before the manifest.
TEST(Flush, AManifest) {
  const TemporaryFolder folder;
  folder.write("a", "one");
  folder.write("b", "two");
  const auto write = [&] {
    const Status status = writeManifest(folder.path(), {});
    EXPECT_TRUE(status.isOk()) << status.message();
  };
  EXPECT_EQ(expectFlushed(write), 1u);
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events[0].path, normal(folder.path("a").c_str()));
  EXPECT_EQ(events[1].path, normal(folder.path("b").c_str()));
}

} // namespace
} // namespace qlora
