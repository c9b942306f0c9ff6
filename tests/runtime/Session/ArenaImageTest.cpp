// SPDX-License-Identifier: MIT

// Arenas that ranks have in pieces: rank 0 has all of them, each tensor in one
// place, and every rank its own back.

#include "runtime/Session/ArenaImage.h"

#include "tests/runtime/DemoTables.h"
#include "tests/runtime/Ranks/ThreadedRanks.h"

using namespace qlora;

namespace {

/// Two ranges, the first of more than a window; of the second, tensors of 100
/// and of 28 elements, which lie across pieces.
constexpr uint64_t kPieces[] = {uint64_t{5} << 20, 256};

class ArenaImages : public testing::Test {
protected:
  /// States: of updates in pieces alone, or of what is trained in pieces, beside
  /// which there is one of what is whole.
  void makeTables(uint32_t pieces, bool isOfTrained = false) {
    (isOfTrained ? tables.header.trained_pieces
                 : tables.header.update_pieces) = pieces;
    tables.arenas.push_back(
        {QLORA_ARENA_STATE, 64, kPieces[0] + kPieces[1] + 64, 0, 0});
    addState("long", 0, int64_t(pieces * kPieces[0] / 4), 0, 0);
    addState("first", kPieces[0], 100, 1, 0);
    addState("second", kPieces[0], 28, 1, 400);
    if (isOfTrained) {
      addState("whole", kPieces[0] + kPieces[1], 16, 0, 0);
      tables.parameters.back().piece = 0;
    }
    if (pieces == 1) { // where they are, and of no range
      for (size_t i = tables.parameters.size() - 3;
           i < tables.parameters.size(); ++i) {
        qlora_parameter &parameter = tables.parameters[i];
        parameter.offset += parameter.first;
        parameter.first = parameter.piece = 0;
      }
      tables.arenas.back().bytes += kPieces[1];
    }
    auto loaded = tables.load();
    ASSERT_TRUE(loaded.isOk()) << loaded.status().message();
    module.emplace(std::move(*loaded));
  }

  void addState(const char *name, uint64_t offset, int64_t elements,
                size_t range, uint64_t first) {
    qlora_parameter parameter{};
    parameter.name = name;
    parameter.role = QLORA_ROLE_STATE;
    parameter.init = QLORA_INIT_ZERO;
    parameter.arena = static_cast<uint32_t>(tables.arenas.size() - 1);
    parameter.rank = 1;
    parameter.shape[0] = elements;
    parameter.offset = offset;
    parameter.bytes = 4 * static_cast<uint64_t>(elements);
    parameter.piece = kPieces[range];
    parameter.first = first;
    tables.parameters.push_back(parameter);
  }

  /// Byte `at` of the arena of a rank of that number.
  static uint8_t byteOf(int number, uint64_t at) {
    return static_cast<uint8_t>(at % 251 + static_cast<uint64_t>(number) * 77);
  }

  void expectTensors(std::span<const uint8_t> image,
                     std::initializer_list<const char *> names) const {
    const ArenaImage states(*module, QLORA_ARENA_STATE);
    ASSERT_EQ(image.size(), states.bytes());
    for (const char *name : names) {
      const qlora_parameter &parameter = *module->parameter(name);
      const uint64_t start = states.offsetOf(parameter);
      const uint64_t piece = arenaBytesOf(parameter);
      for (uint64_t i = 0; i < parameter.bytes; ++i) {
        const uint64_t at = parameter.first + i;
        ASSERT_EQ(image[start + i], byteOf(static_cast<int>(at / piece),
                                           parameter.offset + at % piece))
            << name << " " << i;
      }
    }
  }

  DemoTables tables;
  std::optional<LoadedModule> module;
};

/// Whatever they had, ranks have it again after rank 0 has had all of it; of what
/// is whole, from `whole` on, all have what rank 0 had.
void exchange(const LoadedModule &module, RankGroup &group,
              std::vector<uint8_t> &image, uint64_t whole,
              const std::function<uint8_t(int, uint64_t)> &byteOf) {
  DeviceOptions options;
  options.collectives = group.groups();
  auto device = createDevice("cpu", options);
  ASSERT_TRUE(device.isOk()) << device.status().message();
  ASSERT_TRUE((*device)->load(module, nullptr).isOk());
  const uint32_t arena = *module.arena(QLORA_ARENA_STATE);
  std::vector<uint8_t> own(module.arenaBytes(QLORA_ARENA_STATE));
  const int number = group.collectives(QLORA_GROUP_FSDP).rank();
  for (uint64_t at = 0; at < own.size(); ++at)
    own[at] = byteOf(number, at);
  ASSERT_TRUE((*device)->write(arena, 0, own).isOk());
  const ArenaImage states(module, QLORA_ARENA_STATE);
  auto gathered = states.gather(**device, group);
  ASSERT_TRUE(gathered.isOk()) << gathered.status().message();
  EXPECT_EQ(gathered->empty(), group.rank() != 0);
  ASSERT_TRUE((*device)->write(arena, 0, std::vector<uint8_t>(own.size()))
                  .isOk());
  const Status status = states.share(*gathered, **device, group);
  ASSERT_TRUE(status.isOk()) << status.message();
  std::vector<uint8_t> found(own.size());
  ASSERT_TRUE((*device)->read(arena, 0, found).isOk());
  for (uint64_t at = whole; at < own.size(); ++at)
    own[at] = found[at] == 0 ? 0 : byteOf(0, at); // what no tensor has is left
  EXPECT_EQ(found, own);
  if (group.rank() == 0)
    image = *gathered;
}

TEST_F(ArenaImages, HaveEachTensorInOnePlace) {
  makeTables(2);
  for (int ranks : {2, 4}) {
    std::vector<uint8_t> image;
    runJob(ranks, /*shards=*/2, [&](RankGroup &group) {
      exchange(*module, group, image, kPieces[0] + kPieces[1], byteOf);
    });
    expectTensors(image, {"long", "first", "second"});
  }
}

TEST_F(ArenaImages, HaveWhatIsWholeOnce) {
  makeTables(2, /*isOfTrained=*/true);
  std::vector<uint8_t> image;
  runJob(2, /*shards=*/2, [&](RankGroup &group) {
    exchange(*module, group, image, kPieces[0] + kPieces[1], byteOf);
  });
  expectTensors(image, {"long", "first", "second", "whole"});
  EXPECT_EQ(image.size(), 2 * (kPieces[0] + kPieces[1]) + 64);
}

TEST_F(ArenaImages, AreTheArenaWhereNothingIsDivided) {
  makeTables(1);
  const ArenaImage states(*module, QLORA_ARENA_STATE);
  EXPECT_EQ(states.bytes(), module->arenaBytes(QLORA_ARENA_STATE));
  EXPECT_EQ(states.offsetOf(*module->parameter("second")), kPieces[0] + 400);
}

} // namespace
