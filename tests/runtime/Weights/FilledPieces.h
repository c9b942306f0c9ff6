// SPDX-License-Identifier: MIT

// Fills frozen arenas of ranks, which are threads, from a model of random
// weights, and compares them with an unsharded arena.

#ifndef QLORA_TESTS_RUNTIME_WEIGHTS_FILLEDPIECES_H
#define QLORA_TESTS_RUNTIME_WEIGHTS_FILLEDPIECES_H

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/Weights/Parameters.h"
#include "tests/runtime/Ranks/ThreadedRanks.h"
#include "tests/runtime/TemporaryFolder.h"
#include "tests/runtime/Weights/PieceTables.h"

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

namespace qlora {

inline constexpr auto kNone = QLORA_QUANTIZATION_NONE;
inline constexpr auto kOnLoad = QLORA_QUANTIZATION_ON_LOAD;
inline constexpr auto kStored = QLORA_QUANTIZATION_STORED;
inline constexpr auto kTurned = QLORA_QUANTIZATION_TURNED;
inline constexpr auto kF32 = QLORA_DTYPE_F32;
inline constexpr auto kBF16 = QLORA_DTYPE_BF16;
inline constexpr auto kNF4 = QLORA_DTYPE_NF4;

/// Collects tensors, owns their bytes, and writes them to a safetensors file.
class ModelWriter {
public:
  void addNormal(std::string name, std::vector<int64_t> shape,
                 qlora_dtype dtype) {
    size_t elements = 1;
    for (const int64_t extent : shape)
      elements *= static_cast<size_t>(extent);
    std::normal_distribution<float> normal(0, 0.02f);
    std::vector<float> values(elements);
    for (float &value : values)
      value = normal(random);
    std::vector<uint8_t> bytes(elements * weightBytes(dtype));
    weightsFromFloat(dtype, values.data(), static_cast<int64_t>(elements),
                     bytes.data());
    add(std::move(name),
        dtype == kF32 ? SafetensorsDtype::kF32 : SafetensorsDtype::kBF16,
        std::move(shape), std::move(bytes));
  }
  void add(std::string name, SafetensorsDtype dtype, std::vector<int64_t> shape,
           std::vector<uint8_t> bytes) {
    all.push_back(std::make_unique<std::vector<uint8_t>>(std::move(bytes)));
    items.push_back({std::move(name), dtype, std::move(shape), *all.back()});
  }
  void write(const TemporaryFolder &folder) const {
    const Status status =
        writeSafetensors(folder.path("model.safetensors"), items, {});
    ASSERT_TRUE(status.isOk()) << status.message();
  }

private:
  std::mt19937 random{3};
  std::vector<std::unique_ptr<std::vector<uint8_t>>> all;
  std::vector<SafetensorsItem> items;
};

using Bytes = std::vector<uint8_t>;

/// Fills an arena of arbitrary previous contents.
inline Status fillArena(const LoadedModule &module, const std::string &folder,
                        Collectives *shards, Bytes &out,
                        const LoraInitFactors *factors = nullptr,
                        Collectives *slices = nullptr) {
  QLORA_ASSIGN_OR_RETURN(const ModelFiles model, ModelFiles::open(folder));
  ParameterSources sources;
  sources.model = &model;
  sources.shards = shards;
  sources.slices = slices;
  sources.factors = factors;
  uint64_t done = 0, total = 0;
  sources.progress = [&](uint64_t filled, uint64_t of) {
    EXPECT_GT(filled, done);
    done = filled;
    total = of;
  };
  out.assign(module.arenaBytes(QLORA_ARENA_FROZEN), 0xa5);
  HostArena arena(out);
  QLORA_RETURN_IF_ERROR(
      fillFrozen(module, sources, {}, QLORA_ARENA_FROZEN, arena));
  EXPECT_EQ(done, total);
  uint64_t share = 0;
  for (const qlora_parameter &parameter : module.parameters())
    share += parameter.role == QLORA_ROLE_FROZEN ? arenaBytesOf(parameter) : 0;
  EXPECT_EQ(total, share);
  return Status::ok();
}

inline std::vector<Bytes> fillRanks(const LoadedModule &module,
                                    const std::string &folder, int ranks,
                                    const LoraInitFactors *factors = nullptr) {
  std::vector<Bytes> arenas(static_cast<size_t>(ranks));
  runRanks(ranks, [&](RingCollectives &group) {
    EXPECT_EQ(fillArena(module, folder, &group,
                        arenas[static_cast<size_t>(group.rank())], factors)
                  .message(),
              "");
  });
  return arenas;
}

/// Expects that each parameter's concatenated fsdp shards equal the parameter
/// in an unsharded arena, followed by zeros.
inline void expectPieces(const LoadedModule &whole, const Bytes &expected,
                         const LoadedModule &cut,
                         const std::vector<Bytes> &arenas) {
  for (size_t i = 0; i < whole.parameters().size(); ++i) {
    const qlora_parameter &from = whole.parameters()[i];
    const qlora_parameter &to = cut.parameters()[i];
    if (from.role != QLORA_ROLE_FROZEN)
      continue;
    Bytes wanted(expected.begin() + static_cast<ptrdiff_t>(from.offset),
                 expected.begin() +
                     static_cast<ptrdiff_t>(from.offset + from.bytes));
    Bytes got;
    for (const Bytes &arena : arenas) {
      const auto piece = std::span(arena).subspan(to.offset, arenaBytesOf(to));
      if (to.piece == 0)
        EXPECT_TRUE(std::ranges::equal(piece, wanted)) << to.name;
      got.insert(got.end(), piece.begin(), piece.end());
    }
    if (to.piece == 0)
      continue;
    ASSERT_GE(got.size(), wanted.size());
    wanted.resize(got.size());
    EXPECT_TRUE(got == wanted) << to.name << " of " << arenas.size();
  }
}

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_WEIGHTS_FILLEDPIECES_H
