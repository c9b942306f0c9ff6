// SPDX-License-Identifier: MIT

// What each rank has left of gradients: on as many ranks again to the bit, on
// others in sum.

#include "runtime/Session/RankResiduals.h"

#include "runtime/Weights/Parameters.h"
#include "tests/runtime/DemoTables.h"
#include "tests/runtime/Ranks/ThreadedRanks.h"
#include "tests/runtime/TemporaryFolder.h"

#include <cmath>

using namespace qlora;

namespace {

/// In the demo module's parameters.
constexpr size_t kTrained = 1;

class RankResiduals : public testing::Test {
protected:
  RankResiduals() {
    qlora_arena arena = tables.arenas[kDemoGradient];
    arena.kind = QLORA_ARENA_RESIDUAL;
    tables.arenas.push_back(arena);
  }

  void SetUp() override {
    auto loaded = tables.load();
    ASSERT_TRUE(loaded.isOk()) << loaded.status().message();
    module.emplace(std::move(*loaded));
  }

  /// Runs `body` on that many ranks with a device that is loaded.
  void run(int ranks,
           const std::function<void(RankGroup &, Device &)> &body) const {
    runJob(ranks, /*shards=*/1, [&](RankGroup &group) {
      DeviceOptions options;
      options.collectives = group.groups();
      auto device = createDevice("cpu", options);
      ASSERT_TRUE(device.isOk()) << device.status().message();
      ASSERT_TRUE((*device)->load(*module, nullptr).isOk());
      body(group, **device);
    });
  }

  /// Element `at` of what a rank has left; sums of four are exact.
  static float numberOf(int rank, size_t at) {
    return at == 0
               ? -0.0F
               : static_cast<float>(rank + 1) * 0.25F + static_cast<float>(at);
  }

  /// That, of `ranks` ranks, in the folder as a checkpoint has it.
  void save(int ranks) const {
    run(ranks, [&](RankGroup &group, Device &device) {
      const uint32_t arena = *module->arena(QLORA_ARENA_RESIDUAL);
      std::vector<float> own(module->arenaBytes(QLORA_ARENA_RESIDUAL) / 4);
      for (const qlora_parameter *parameter : trainedParameters(*module))
        for (size_t at = 0; at < parameter->bytes / 4; ++at)
          own[parameter->offset / 4 + at] = numberOf(group.rank(), at);
      ASSERT_TRUE(device.write(arena, 0, bytesOf(own)).isOk());
      auto image = gatherResiduals(*module, device, group);
      ASSERT_TRUE(image.isOk()) << image.status().message();
      EXPECT_EQ(image->empty(), group.rank() != 0);
      if (group.rank() == 0)
        ASSERT_TRUE(writeSafetensors(folder.path(kResidualsFile),
                                     residualItems(*module, ranks, *image), {})
                        .isOk());
    });
  }

  /// What `ranks` ranks begin with, in bits.
  void expectRestored(int ranks,
                      const std::function<float(int, size_t)> &wanted) {
    run(ranks, [&](RankGroup &group, Device &device) {
      const Status status =
          restoreResiduals(folder.path(""), *module, device, group);
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

TEST_F(RankResiduals, AreTheSameOnAsManyRanks) {
  save(4);
  expectRestored(4, numberOf);
}

TEST_F(RankResiduals, AddUpToTheSameOnOthers) {
  save(4);
  expectRestored(2, [](int rank, size_t at) {
    return numberOf(rank, at) + numberOf(rank + 2, at);
  });
  save(2);
  expectRestored(4, [](int rank, size_t at) {
    return rank < 2 ? numberOf(rank, at) : 0.0F;
  });
}

TEST_F(RankResiduals, AreRefusedWhereTheyAreOfAnotherProgram) {
  save(2);
  tables.parameters[kTrained].shape[0] *= 2;
  tables.parameters[kTrained].shape[1] /= 2;
  SetUp();
  run(1, [&](RankGroup &group, Device &device) {
    const std::string text =
        restoreResiduals(folder.path(""), *module, device, group).message();
    EXPECT_NE(text.find("and train.so has [8, 2] for each rank; resume it with "
                        "the program that it is of"),
              std::string::npos)
        << text;
  });
}

} // namespace
