// SPDX-License-Identifier: MIT

// Reads model files and the cache of quantized bases while each file call fails
// in turn. The result is the right weights or an error that names the file.

#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "runtime/Base/ContentHash.h"
#include "runtime/Weights/ModelFiles.h"
#include "runtime/Weights/QuantizedBase.h"
#include "tests/runtime/Faults.h"
#include "tests/runtime/TemporaryFolder.h"
#include "tests/runtime/Weights/OneParameter.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using How = FaultPlan::How;
using Bytes = std::vector<uint8_t>;

void expectOneLine(const Status &status, const std::string &part,
                   const std::string &where) {
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << where;
  EXPECT_NE(status.message().find(part), std::string::npos)
      << where << ": " << status.message() << " has no " << part;
}

Bytes bytesFrom(uint8_t first, size_t count = 1000) {
  Bytes bytes(count);
  std::iota(bytes.begin(), bytes.end(), first);
  return bytes;
}

SafetensorsItem itemOf(const std::string &name, const Bytes &bytes) {
  return {
      name, SafetensorsDtype::kU8, {static_cast<int64_t>(bytes.size())}, bytes};
}

StatusOr<Bytes> readTensor(const SafetensorsFile &file,
                           const SafetensorsTensor &tensor) {
  Bytes bytes(tensor.byteCount());
  QLORA_RETURN_IF_ERROR(file.read(tensor, 0, bytes));
  return bytes;
}

TEST(WeightFaults, OfReadingAFile) {
  const TemporaryFolder folder;
  const Bytes weights = bytesFrom(1);
  const std::string path = folder.path("x");
  ASSERT_TRUE(writeSafetensors(path, {itemOf("w", weights)}, {}).isOk());
  for (const int error : {EIO, EINTR, ESTALE}) {
    FaultSweep sweep({.calls = kReads, .error = error, .below = folder.path()});
    while (sweep.next()) {
      const auto read = sweep.run([&]() -> StatusOr<Bytes> {
        QLORA_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::open(path));
        QLORA_ASSIGN_OR_RETURN(const auto *tensor, file.get("w"));
        return readTensor(file, *tensor);
      });
      if (sweep.hasFailed() && error != EINTR)
        expectOneLine(read.status(), "'" + path + "'", sweep.call());
      else
        EXPECT_EQ(read.value(), weights) << sweep.call();
    }
    EXPECT_GE(sweep.failures(), error == EINTR ? 3 : 6);
  }
}

/// If writing fails, the file of an earlier run is unchanged.
TEST(WeightFaults, OfWritingAFile) {
  const Bytes old = bytesFrom(1), weights = bytesFrom(2, 700'000);
  const auto written = [](const std::string &path) {
    auto file = SafetensorsFile::open(path);
    return readTensor(*file, file->tensors()[0]).value();
  };
  for (const auto &[error, how] : {std::pair{ENOSPC, How::kOnce},
                                   {ENOSPC, How::kFull},
                                   {EIO, How::kOnce},
                                   {0, How::kShort}}) {
    const TemporaryFolder folder;
    const std::string path = folder.path("x");
    FaultSweep sweep({.calls = kChanges,
                      .error = error,
                      .how = how,
                      .below = folder.path()});
    while (sweep.next()) {
      ASSERT_TRUE(writeSafetensors(path, {itemOf("w", old)}, {}).isOk());
      const Status status = sweep.run(
          [&] { return writeSafetensors(path, {itemOf("w", weights)}, {}); });
      EXPECT_EQ(written(path), status.isOk() ? weights : old) << sweep.call();
      EXPECT_TRUE(status.isOk() || how != How::kShort) << sweep.call();
      EXPECT_EQ(folder.fileCount(), 1u) << sweep.call();
      if (status.isOk())
        continue;
      expectOneLine(status, "'" + path + "'", sweep.call());
      EXPECT_EQ(status.code(), error == ENOSPC ? StatusCode::kResourceExhausted
                                               : StatusCode::kUnavailable);
    }
    EXPECT_GE(sweep.failures(), how == How::kShort ? 2 : 5);
  }
}

/// A model folder of two shards. Its configuration changes how stored weights
/// are read.
class ModelFaults : public testing::Test {
protected:
  ModelFaults() {
    for (const auto &[file, name, bytes] :
         {std::tuple{"one.safetensors", "a", &a}, {"two.safetensors", "b", &b}})
      EXPECT_TRUE(
          writeSafetensors(folder.path(file), {itemOf(name, *bytes)}, {})
              .isOk());
    folder.write("model.safetensors.index.json",
                 R"({"weight_map": {"a": "one.safetensors",)"
                 R"( "b": "two.safetensors"}})");
    folder.write("config.json",
                 R"({"quantization_config": {"format": "gptq_v2"}})");
  }

  /// Returns all tensors, and whether the configuration was read.
  StatusOr<std::vector<Bytes>> read() const {
    QLORA_ASSIGN_OR_RETURN(const ModelFiles files,
                           ModelFiles::open(folder.path()));
    std::vector<Bytes> all(1, Bytes(1, files.zeroPointsAreLess()));
    for (const std::string &name : files.tensorNames()) {
      QLORA_ASSIGN_OR_RETURN(const ModelFiles::Entry entry, files.get(name));
      QLORA_ASSIGN_OR_RETURN(all.emplace_back(),
                             readTensor(*entry.file, *entry.tensor));
    }
    return all;
  }
  void sweep(const std::vector<Bytes> &expected) {
    FaultSweep sweep({.calls = kReads, .error = EIO, .below = folder.path()});
    while (sweep.next()) {
      const auto found = sweep.run([&] { return read(); });
      if (sweep.hasFailed() && !found.isOk())
        expectOneLine(found.status(), folder.path(), sweep.call());
      else
        EXPECT_EQ(found.value(), expected) << sweep.call();
    }
    EXPECT_GE(sweep.failures(), 8);
  }

  const Bytes a = bytesFrom(1), b = bytesFrom(2);
  const TemporaryFolder folder;
};

TEST_F(ModelFaults, OfShards) { sweep({Bytes{0}, a, b}); }

/// model.safetensors has priority over shards, even if its first call fails.
TEST_F(ModelFaults, OfASingleFileThatHasPriority) {
  const Bytes c = bytesFrom(3);
  ASSERT_TRUE(
      writeSafetensors(folder.path("model.safetensors"), {itemOf("c", c)}, {})
          .isOk());
  sweep({Bytes{0}, c});
}

/// The cache of quantised bases, with an arena of two chunks.
class BaseCacheFaults : public testing::Test {
protected:
  Status keep() const {
    QLORA_ASSIGN_OR_RETURN(auto writer, cache.write(kKey, arena));
    return writer->finish();
  }
  /// Returns whether the cache has the base. Any other content is an error.
  bool isThere(const std::string &where) const {
    auto file = cache.open(kKey, arena.size());
    EXPECT_TRUE(file.isOk()) << where << ": " << file.status().message();
    if (!file.isOk() || !file->isOpen())
      return false;
    EXPECT_EQ(bytesOf(*file), arena) << where;
    return true;
  }
  Bytes bytesOf(const FileDescriptor &file) const {
    Bytes bytes(arena.size());
    EXPECT_TRUE(file.readAt(0, bytes).isOk());
    return bytes;
  }
  void clear() const { fs::remove_all(root); }

  const std::string kKey = std::string(ContentHash::kDigits, 'a');
  const Bytes arena = bytesFrom(1, kBaseChunk + 12345);
  const TemporaryFolder folder;
  const std::string root = folder.path("bases");
  const QuantizedBaseCache cache{root, uint64_t{1} << 40};
};

TEST_F(BaseCacheFaults, OfWritingLeaveAWholeBaseOrNone) {
  for (const auto &[error, how] : {std::pair{ENOSPC, How::kOnce},
                                   {EIO, How::kOnce},
                                   {ENOSPC, How::kFull},
                                   {0, How::kShort}}) {
    FaultSweep sweep({.calls = kChanges | kReads,
                      .error = error,
                      .how = how,
                      .below = root});
    while (sweep.next()) {
      clear();
      const Status status = sweep.run([&] { return keep(); });
      EXPECT_EQ(isThere(sweep.call()), status.isOk()) << sweep.call();
      EXPECT_TRUE(status.isOk() || how != How::kShort) << sweep.call();
      if (!status.isOk()) {
        expectOneLine(status, root, sweep.call());
        EXPECT_TRUE(error != ENOSPC ||
                    status.code() == StatusCode::kResourceExhausted)
            << sweep.call() << ": " << status.message();
        EXPECT_TRUE(!fs::exists(root) || fs::is_empty(root)) << sweep.call();
      }
      ASSERT_TRUE(keep().isOk()) << sweep.call();
      EXPECT_TRUE(isThere(sweep.call()));
    }
    EXPECT_GE(sweep.failures(), how == How::kShort ? 3 : 5);
  }
}

TEST_F(BaseCacheFaults, AKilledWriterLeavesAWholeBaseOrNone) {
  FaultSweep sweep({.calls = kChanges, .how = How::kKill, .below = root});
  while (sweep.next()) {
    clear();
    const FaultyRun run = sweep.runChild([&] { return keep().isOk() ? 0 : 1; });
    EXPECT_EQ(run.exitCode, sweep.hasFailed() ? 128 + SIGKILL : 0);
    isThere(sweep.call());
    ASSERT_TRUE(keep().isOk()) << sweep.call();
    EXPECT_TRUE(isThere(sweep.call()));
  }
  EXPECT_GE(sweep.failures(), 5);
}

TEST_F(BaseCacheFaults, OfReadingAreDamageOrDoNotMatter) {
  ASSERT_TRUE(keep().isOk());
  for (const int error : {EIO, EINTR}) {
    FaultSweep sweep({.calls = kReads, .error = error, .below = root});
    while (sweep.next()) {
      const auto file =
          sweep.run([&] { return cache.open(kKey, arena.size()).status(); });
      EXPECT_EQ(file.isOk(), !sweep.hasFailed() || error == EINTR)
          << sweep.call();
      if (file.isOk())
        continue;
      EXPECT_EQ(file.code(), StatusCode::kDataLoss) << sweep.call();
      expectOneLine(file, "'" + cache.fileOf(kKey) + "'", sweep.call());
    }
    EXPECT_GE(sweep.failures(), error == EINTR ? 3 : 5);
  }
}

/// The base of a run, and the run's remarks.
struct BaseRun {
  Bytes arena;
  std::vector<std::string> remarks;
  bool wasMapped = false;
};

StatusOr<BaseRun> runWithBase(const LoadedModule &module,
                              const std::string &cache) {
  QLORA_ASSIGN_OR_RETURN(
      RankGroup group,
      RankGroup::join({}, FileDescriptor(), std::chrono::seconds(1)));
  QLORA_ASSIGN_OR_RETURN(const ModelFiles model,
                         ModelFiles::open(kGoldens + "llama-nf4/model"));
  QLORA_ASSIGN_OR_RETURN(
      QuantizedBase base,
      QuantizedBase::open(module, model, group, {cache, uint64_t{1} << 30}));
  BaseRun run;
  run.wasMapped = base.isFilled();
  HostArena arena(base.memory().bytes());
  if (!run.wasMapped)
    QLORA_RETURN_IF_ERROR(fillFrozen(module, {&model, nullptr, 0}, {},
                                     QLORA_ARENA_FROZEN, arena));
  QLORA_RETURN_IF_ERROR(base.seal(model));
  const auto bytes = base.memory().bytes();
  run.arena.assign(bytes.begin(), bytes.end());
  base.finish();
  run.remarks = base.takeRemarks();
  return run;
}

/// If a call in the cache's folder fails, the run still has its base, with at
/// most two remarks. Only a failed fstat() while the cached file is mapped ends
/// the run, because other ranks may already have mapped the file.
TEST_F(BaseCacheFaults, CostARunNoMoreThanTime) {
  OneParameter nf4(kWeight, {64, 176}, QLORA_QUANTIZATION_ON_LOAD,
                   QLORA_DTYPE_NF4);
  auto module = nf4.tables.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  const Bytes expected = runWithBase(*module, "none").value().arena;
  for (const bool isKept : {false, true})
    for (const auto &[calls, error, how] :
         {std::tuple{kChanges | kReads, EIO, How::kOnce},
          {kChanges | kReads, EIO, How::kOnwards},
          {unsigned{kChanges}, ENOSPC, How::kFull}}) {
      FaultSweep sweep(
          {.calls = calls, .error = error, .how = how, .below = root});
      while (sweep.next()) {
        clear();
        ASSERT_TRUE(!isKept || runWithBase(*module, root).isOk());
        const auto run = sweep.run([&] { return runWithBase(*module, root); });
        if (!run.isOk()) {
          EXPECT_EQ(sweep.name(), "fstat");
          expectOneLine(run.status(), "cannot stat a file: ", sweep.call());
          continue;
        }
        EXPECT_EQ(run->arena, expected) << sweep.call();
        EXPECT_LE(run->remarks.size(), 2u) << sweep.call();
        if (sweep.hasFailed())
          continue;
        EXPECT_EQ(run->wasMapped, isKept);
        EXPECT_TRUE(run->remarks.empty()) << run->remarks[0];
      }
      EXPECT_GE(sweep.failures(), isKept && how == How::kFull ? 0 : 4);
    }
}

} // namespace
} // namespace qlora
