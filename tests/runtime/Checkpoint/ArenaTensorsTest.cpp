// SPDX-License-Identifier: MIT

// Tensors in sharded arenas and error-feedback residuals, which differ on every
// rank. Rank 0 reads complete tensors, and every rank restores its own bytes.
// The memory needed does not grow with the arenas.

#include "runtime/Checkpoint/ArenaTensors.h"

#include <sys/resource.h>

#include <cmath>
#include <fstream>

#include "runtime/Weights/Parameters.h"
#include "tests/runtime/DemoTables.h"
#include "tests/runtime/Ranks/ThreadedRanks.h"
#include "tests/runtime/TemporaryFolder.h"

using namespace qlora;

namespace {

/// Runs `body` on `ranks` ranks with a device that has loaded the module.
void runLoaded(const LoadedModule &module, int ranks, int shards,
               const std::function<void(RankGroup &, Device &)> &body) {
  runJob(ranks, shards, [&](RankGroup &group) {
    DeviceOptions options;
    options.collectives = group.groups();
    auto device = createDevice("cpu", options);
    ASSERT_TRUE(device.isOk()) << device.status().message();
    ASSERT_TRUE((*device)->load(module, nullptr).isOk());
    body(group, **device);
  });
}

/// Returns all bytes of the tensors on rank 0, and nothing on the other ranks.
std::vector<uint8_t> readAll(const ArenaTensors &tensors, Device &device,
                             RankGroup &group) {
  std::vector<uint8_t> bytes;
  ArenaReader reader(tensors, device, group);
  if (group.rank() == 0) {
    bytes.resize(tensors.bytes());
    // Reads ranges that do not coincide with windows.
    constexpr size_t kPart = 3'000'001;
    for (size_t at = 0; at < bytes.size(); at += kPart) {
      const Status status = reader.read(std::span(bytes).subspan(
          at, std::min(kPart, bytes.size() - at)));
      EXPECT_TRUE(status.isOk()) << status.message();
    }
  }
  const Status status = reader.finish();
  EXPECT_TRUE(status.isOk()) << status.message();
  return bytes;
}

/// A state arena with two sharded ranges. The second range has tensors of 100
/// and of 28 elements, which cross borders of shards.
class ShardedTensors : public testing::Test {
protected:
  static constexpr uint64_t kTensors = 512; ///< bytes of the second range

  /// Builds tables of optimizer states with sharded updates or, if
  /// `isOfTrained`, of sharded trainable parameters plus one unsharded state.
  /// The first range has shards of `first` bytes.
  void makeTables(uint32_t pieces, bool isOfTrained = false,
                  uint64_t first = uint64_t{5} << 20) {
    const uint64_t second = kTensors / std::max(2u, pieces);
    wholeBegin = first + second;
    (isOfTrained ? tables.header.mesh.zero2 : tables.header.mesh.zero1) =
        pieces;
    tables.arenas.push_back({QLORA_ARENA_STATE, 64, first + second + 64, 0, 0});
    addState("long", 0, int64_t(pieces * first / 4), first, 0);
    addState("first", first, 100, second, 0);
    addState("second", first, 28, second, 400);
    if (isOfTrained)
      addState("whole", first + second, 16, 0, 0);
    if (pieces == 1) { // each tensor at its own offset, in no range
      for (size_t i = tables.parameters.size() - 3;
           i < tables.parameters.size(); ++i) {
        qlora_parameter &parameter = tables.parameters[i];
        parameter.offset += parameter.first;
        parameter.first = parameter.piece = 0;
      }
      tables.arenas.back().bytes += second;
    }
    auto loaded = tables.load();
    ASSERT_TRUE(loaded.isOk()) << loaded.status().message();
    module.emplace(std::move(*loaded));
  }

  void addState(const char *name, uint64_t offset, int64_t elements,
                uint64_t piece, uint64_t first) {
    qlora_parameter parameter{};
    parameter.name = name;
    parameter.role = QLORA_ROLE_STATE;
    parameter.init = QLORA_INIT_ZERO;
    parameter.arena = static_cast<uint32_t>(tables.arenas.size() - 1);
    parameter.rank = 1;
    parameter.shape[0] = elements;
    parameter.offset = offset;
    parameter.bytes = 4 * static_cast<uint64_t>(elements);
    parameter.piece = piece;
    parameter.first = first;
    tables.parameters.push_back(parameter);
  }

  /// Returns the test value of byte `at` in the arena of rank `number`.
  static uint8_t byteOf(int number, uint64_t at) {
    return static_cast<uint8_t>(at % 251 + static_cast<uint64_t>(number) * 77);
  }

  uint64_t arenaBytes() const { return module->arenaBytes(QLORA_ARENA_STATE); }
  uint32_t arena() const { return *module->arena(QLORA_ARENA_STATE); }

  std::vector<uint8_t> fill(Device &device, RankGroup &group) const {
    std::vector<uint8_t> own(arenaBytes());
    const int number = group.collectives(QLORA_GROUP_FSDP).rank();
    for (uint64_t at = 0; at < own.size(); ++at)
      own[at] = byteOf(number, at);
    EXPECT_TRUE(device.write(arena(), 0, own).isOk());
    return own;
  }

  /// Expects complete tensors in the order of the items.
  void expectTensors(std::span<const uint8_t> bytes,
                     const ArenaTensors &tensors) const {
    uint64_t start = 0;
    for (const SafetensorsItem &item : tensors.items()) {
      const qlora_parameter *parameter = nullptr;
      for (const qlora_parameter &each : module->parameters())
        if (each.arena == arena() && trainedName(*module, each) == item.name)
          parameter = &each;
      ASSERT_NE(parameter, nullptr) << item.name;
      const uint64_t piece = arenaBytesOf(*parameter);
      for (uint64_t i = 0; i < parameter->bytes; ++i) {
        const uint64_t at = parameter->first + i;
        ASSERT_EQ(bytes[start + i], byteOf(static_cast<int>(at / piece),
                                           parameter->offset + at % piece))
            << item.name << " " << i;
      }
      start += parameter->bytes;
    }
    EXPECT_EQ(bytes.size(), start);
  }

  /// Rank 0 reads all tensors. Then expects that every rank gets back its own
  /// bytes of sharded tensors, and rank 0's bytes of unsharded tensors.
  void expectExchange(int ranks, int shards) {
    runLoaded(*module, ranks, shards, [&](RankGroup &group, Device &device) {
      const ArenaTensors tensors(*module, QLORA_ARENA_STATE, group.size());
      std::vector<uint8_t> own = fill(device, group);
      const std::vector<uint8_t> all = readAll(tensors, device, group);
      if (group.rank() == 0)
        expectTensors(all, tensors);
      ASSERT_TRUE(
          device.write(arena(), 0, std::vector<uint8_t>(own.size())).isOk());
      std::vector<uint64_t> starts = {0};
      for (const SafetensorsItem &item : tensors.items())
        starts.push_back(starts.back() + item.bytes.size());
      const Status status = tensors.restore(
          [&](size_t tensor, uint64_t at, std::span<uint8_t> out) {
            std::ranges::copy(
                std::span(all).subspan(starts[tensor] + at, out.size()),
                out.begin());
            return Status::ok();
          },
          device, group);
      ASSERT_TRUE(status.isOk()) << status.message();
      std::vector<uint8_t> found(own.size());
      ASSERT_TRUE(device.read(arena(), 0, found).isOk());
      for (uint64_t at = wholeBegin; at < own.size(); ++at)
        own[at] = found[at] == 0 ? 0 : byteOf(0, at); // padding
      EXPECT_EQ(found, own);
    });
  }

  DemoTables tables;
  std::optional<LoadedModule> module;
  uint64_t wholeBegin = 0; ///< offset of unsharded tensors in the arena
};

TEST_F(ShardedTensors, AreReadWholeAndRestoredInPieces) {
  makeTables(2);
  for (int ranks : {2, 4})
    expectExchange(ranks, /*shards=*/2);
}

TEST_F(ShardedTensors, PassThroughTheRanksBetween) {
  makeTables(4);
  expectExchange(4, /*shards=*/4);
}

TEST_F(ShardedTensors, AreReadOnceIfEveryRankHasThem) {
  makeTables(2, /*isOfTrained=*/true);
  expectExchange(2, /*shards=*/2);
}

TEST_F(ShardedTensors, AreTheArenaOfOneRank) {
  makeTables(1);
  expectExchange(1, /*shards=*/1);
}

TEST_F(ShardedTensors, AreSentEvenIfNobodyReadsThem) {
  makeTables(2);
  runLoaded(*module, 2, 2, [&](RankGroup &group, Device &device) {
    const ArenaTensors tensors(*module, QLORA_ARENA_STATE, group.size());
    fill(device, group);
    ArenaReader reader(tensors, device, group);
    std::vector<uint8_t> begin(group.rank() == 0 ? 100 : 0);
    EXPECT_TRUE(reader.read(begin).isOk());
    EXPECT_TRUE(reader.finish().isOk());
    EXPECT_TRUE(group.collectives().barrier().isOk());
  });
}

// Sanitizers need several bytes for each byte that is used, and never free
// them.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/// Returns the bytes of the process's writable private memory.
rlim_t dataBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "VmData:") {
      rlim_t kib = 0;
      status >> kib;
      return kib << 10;
    }
  return 0;
}

TEST_F(ShardedTensors, NeedNoMemoryThatGrowsWithThem) {
  constexpr uint64_t kPiece = uint64_t{48} << 20, kSpare = uint64_t{32} << 20;
  makeTables(2, /*isOfTrained=*/false, kPiece);
  const uint64_t stated = streamBufferBytes(*module, 2);
  EXPECT_LT(stated, uint64_t{12} << 20);
  runLoaded(*module, 2, 2, [&](RankGroup &group, Device &device) {
    const ArenaTensors tensors(*module, QLORA_ARENA_STATE, group.size());
    fill(device, group);
    rlimit before{};
    getrlimit(RLIMIT_DATA, &before);
    ASSERT_TRUE(group.collectives().barrier().isOk());
    if (group.rank() == 0) {
      const rlimit limit = {dataBytes() + kSpare, before.rlim_max};
      ASSERT_EQ(setrlimit(RLIMIT_DATA, &limit), 0);
    }
    ASSERT_TRUE(group.collectives().barrier().isOk());
    const auto exchange = [&] {
      ArenaReader reader(tensors, device, group);
      std::vector<uint8_t> part(size_t{1} << 18);
      for (uint64_t at = 0;
           group.rank() == 0 && at + part.size() < tensors.bytes();
           at += part.size())
        EXPECT_TRUE(reader.read(part).isOk());
      EXPECT_TRUE(reader.finish().isOk());
      EXPECT_TRUE(
          tensors.restore(ArenaTensors::zeros(), device, group).isOk());
    };
    EXPECT_NO_THROW(exchange());
    ASSERT_TRUE(group.collectives().barrier().isOk());
    if (group.rank() == 0)
      setrlimit(RLIMIT_DATA, &before);
  });
}
#endif

//===----------------------------------------------------------------------===//
// Residuals: equal bits on the same number of ranks, otherwise equal sums
//===----------------------------------------------------------------------===//

/// Index of the trainable parameter in the demo module.
constexpr size_t kTrained = 1;

class Residuals : public testing::Test {
protected:
  Residuals() {
    qlora_arena arena = tables.arenas[kDemoGradient];
    arena.kind = QLORA_ARENA_RESIDUAL;
    tables.arenas.push_back(arena);
  }

  void SetUp() override {
    auto loaded = tables.load();
    ASSERT_TRUE(loaded.isOk()) << loaded.status().message();
    module.emplace(std::move(*loaded));
  }

  ArenaTensors tensorsOf(int ranks) const {
    return {*module, QLORA_ARENA_RESIDUAL, ranks};
  }

  /// Returns element `at` of a rank's residual. Sums of four residuals are
  /// exact.
  static float numberOf(int rank, size_t at) {
    return at == 0
               ? -0.0F
               : static_cast<float>(rank + 1) * 0.25F + static_cast<float>(at);
  }

  /// Saves the residuals of `ranks` ranks in the format of a checkpoint.
  void save(int ranks) const {
    runLoaded(*module, ranks, 1, [&](RankGroup &group, Device &device) {
      const uint32_t arena = *module->arena(QLORA_ARENA_RESIDUAL);
      std::vector<float> own(module->arenaBytes(QLORA_ARENA_RESIDUAL) / 4);
      for (const qlora_parameter *parameter : trainedParameters(*module))
        for (size_t at = 0; at < parameter->bytes / 4; ++at)
          own[parameter->offset / 4 + at] = numberOf(group.rank(), at);
      ASSERT_TRUE(device.write(arena, 0, bytesOf(own)).isOk());
      const ArenaTensors tensors = tensorsOf(ranks);
      const std::vector<uint8_t> all = readAll(tensors, device, group);
      if (group.rank() != 0)
        return;
      std::vector<SafetensorsItem> items = tensors.items();
      std::span<const uint8_t> rest = all;
      for (SafetensorsItem &item : items) {
        EXPECT_EQ(item.shape[0], ranks);
        item.bytes = rest.first(item.bytes.size());
        rest = rest.subspan(item.bytes.size());
      }
      ASSERT_TRUE(
          writeSafetensors(folder.path(kResidualsFile), items, {}).isOk());
    });
  }

  Status restore(RankGroup &group, Device &device) {
    const ArenaTensors tensors = tensorsOf(group.size());
    if (group.rank() != 0)
      return tensors.restore({}, device, group);
    QLORA_ASSIGN_OR_RETURN(
        const SafetensorsFile file,
        SafetensorsFile::open(folder.path(kResidualsFile)));
    QLORA_ASSIGN_OR_RETURN(const TensorSource source, tensors.sourceFrom(file));
    return tensors.restore(source, device, group);
  }

  /// Expects that `ranks` ranks restore exactly the values of `wanted`.
  void expectRestored(int ranks,
                      const std::function<float(int, size_t)> &wanted) {
    runLoaded(*module, ranks, 1, [&](RankGroup &group, Device &device) {
      const Status status = restore(group, device);
      ASSERT_TRUE(status.isOk()) << status.message();
      std::vector<float> found(module->arenaBytes(QLORA_ARENA_RESIDUAL) / 4);
      ASSERT_TRUE(device
                      .read(*module->arena(QLORA_ARENA_RESIDUAL), 0,
                            {reinterpret_cast<uint8_t *>(found.data()),
                             found.size() * sizeof(float)})
                      .isOk());
      for (const qlora_parameter *parameter : trainedParameters(*module))
        for (size_t at = 0; at < parameter->bytes / 4; ++at) {
          const float value = found[parameter->offset / 4 + at];
          EXPECT_EQ(value, wanted(group.rank(), at))
              << group.rank() << " " << at;
          EXPECT_EQ(std::signbit(value),
                    std::signbit(wanted(group.rank(), at)));
        }
    });
  }

  static std::span<const uint8_t> bytesOf(std::span<const float> values) {
    return {reinterpret_cast<const uint8_t *>(values.data()),
            values.size_bytes()};
  }

  const TemporaryFolder folder;
  DemoTables tables;
  std::optional<LoadedModule> module;
};

TEST_F(Residuals, AreTheSameOnAsManyRanks) {
  save(4);
  expectRestored(4, numberOf);
}

TEST_F(Residuals, AddUpToTheSameOnOthers) {
  save(4);
  expectRestored(2, [](int rank, size_t at) {
    return numberOf(rank, at) + numberOf(rank + 2, at);
  });
  save(2);
  expectRestored(4, [](int rank, size_t at) {
    return rank < 2 ? numberOf(rank, at) : 0.0F;
  });
}

TEST_F(Residuals, AreRefusedWhereTheyAreOfAnotherProgram) {
  save(2);
  tables.parameters[kTrained].shape[0] *= 2;
  tables.parameters[kTrained].shape[1] /= 2;
  SetUp();
  runLoaded(*module, 1, 1, [&](RankGroup &group, Device &device) {
    const std::string text = restore(group, device).message();
    EXPECT_NE(text.find("but train.so has F32 [8, 2] for each rank. Fix: "
                        "resume with the program that wrote the file"),
              std::string::npos)
        << text;
  });
}

} // namespace
