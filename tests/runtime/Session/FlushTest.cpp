// SPDX-License-Identifier: MIT

// A file that is written atomically is flushed before its rename, and the
// folder afterwards. A crash of the machine therefore leaves the old file or
// the new one.

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <set>
#include <vector>

#include "runtime/Base/Manifest.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Watch/Profiler.h"
#include "runtime/Weights/QuantizedBaseFile.h"
#include "runtime/Weights/Safetensors.h"
#include "tests/runtime/Faults.h"
#include "tests/runtime/TemporaryFolder.h"

namespace qlora {
namespace {

std::string normal(const std::string &path) {
  return std::filesystem::path(path).lexically_normal();
}

/// Returns the calls of the C library that `write` makes, in order.
std::vector<RecordedCalls::Call> eventsOf(const std::function<void()> &write) {
  RecordedCalls recorded(kChanges);
  write();
  std::erase_if(recorded.all, [](const RecordedCalls::Call &call) {
    return call.function != "fsync" && call.function != "rename";
  });
  return std::move(recorded.all);
}

/// Returns the number of renames. Expects that each file is flushed before its
/// rename (under its temporary or final name), and its folder afterwards.
size_t expectFlushed(const std::function<void()> &write) {
  std::set<std::string> flushed, open;
  size_t renames = 0;
  for (const auto &event : eventsOf(write)) {
    if (event.function == "fsync") {
      flushed.insert(event.place);
      open.erase(event.place);
      continue;
    }
    ++renames;
    EXPECT_TRUE(flushed.contains(event.from)) << event.from;
    flushed.insert(event.place);
    open.insert(std::filesystem::path(event.place).parent_path());
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

/// A cached base is not flushed: it is as large as the model, and readers
/// compare checksums.
TEST(Flush, AKeptBaseNeedsNone) {
  const TemporaryFolder folder;
  const std::vector<uint8_t> arena(100, 1);
  const auto events = eventsOf([&] {
    auto writer = QuantizedBaseWriter::start(folder.path("x"), "key", arena);
    ASSERT_TRUE(writer.isOk()) << writer.status().message();
    EXPECT_TRUE((*writer)->finish().isOk());
  });
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].place, normal(folder.path("x")));
}

/// Weights, configuration and tokenizer are each renamed twice.
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

/// Files that a manifest lists are flushed before the manifest.
TEST(Flush, AManifest) {
  const TemporaryFolder folder;
  folder.write("a", "one");
  folder.write("b", "two");
  const auto write = [&] {
    const Status status = writeManifest(folder.path(), {});
    EXPECT_TRUE(status.isOk()) << status.message();
  };
  EXPECT_EQ(expectFlushed(write), 1u);
  const auto events = eventsOf(write);
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events[0].place, normal(folder.path("a")));
  EXPECT_EQ(events[1].place, normal(folder.path("b")));
}

} // namespace
} // namespace qlora
