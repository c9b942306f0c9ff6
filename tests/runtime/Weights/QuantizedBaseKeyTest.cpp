// SPDX-License-Identifier: MIT

// Cache keys of quantized weights: they differ if and only if the layout or a
// file differs.

#include "runtime/Weights/QuantizedBase.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "tests/runtime/TemporaryFolder.h"
#include "tests/runtime/Weights/OneParameter.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

/// A model folder with one weight [4, 64], and the cache key of that weight.
class BaseKeyTest : public testing::Test {
protected:
  BaseKeyTest() {
    std::vector<uint16_t> values(256, 0x3f80);
    const Status status =
        writeSafetensors(file(),
                         {{"w",
                           SafetensorsDtype::kBF16,
                           {4, 64},
                           {reinterpret_cast<const uint8_t *>(values.data()),
                            values.size() * sizeof(uint16_t)}}},
                         {});
    EXPECT_TRUE(status.isOk()) << status.message();
  }

  std::string file() const { return folder.path("model.safetensors"); }
  std::string keyOf(OneParameter &parameter, const std::string &model) {
    auto module = parameter.tables.load();
    EXPECT_TRUE(module.isOk()) << module.status().message();
    auto files = ModelFiles::open(model);
    EXPECT_TRUE(files.isOk()) << files.status().message();
    return baseKey(*module, *files).value();
  }
  std::string keyOf(OneParameter &parameter) {
    return keyOf(parameter, folder.path());
  }

  const TemporaryFolder folder;
  OneParameter nf4{"w", {4, 64}, QLORA_QUANTIZATION_ON_LOAD, QLORA_DTYPE_NF4};
};

TEST_F(BaseKeyTest, AnotherLayoutIsAnotherKey) {
  const std::string key = keyOf(nf4);
  EXPECT_EQ(key.size(), 32u);
  EXPECT_EQ(keyOf(nf4), key);
  OneParameter single("w", {4, 64}, QLORA_QUANTIZATION_ON_LOAD, QLORA_DTYPE_NF4,
                      /*doubleQuant=*/false);
  OneParameter resident("w", {4, 64}, QLORA_QUANTIZATION_ON_LOAD,
                        QLORA_DTYPE_F32);
  OneParameter name("v", {4, 64}, QLORA_QUANTIZATION_ON_LOAD, QLORA_DTYPE_NF4);
  OneParameter shape("w", {64, 4}, QLORA_QUANTIZATION_ON_LOAD, QLORA_DTYPE_NF4);
  OneParameter type("w", {4, 64}, QLORA_QUANTIZATION_ON_LOAD, QLORA_DTYPE_NF4);
  type.tables.parameters[0].file_dtype = QLORA_DTYPE_F32;
  OneParameter offset("w", {4, 64}, QLORA_QUANTIZATION_ON_LOAD,
                      QLORA_DTYPE_NF4);
  offset.tables.parameters[0].offset = 64;
  offset.tables.arenas[kDemoFrozen].bytes += 64;
  OneParameter longer("w", {4, 64}, QLORA_QUANTIZATION_ON_LOAD,
                      QLORA_DTYPE_NF4);
  longer.tables.arenas[kDemoFrozen].bytes += 64;
  for (OneParameter *other :
       {&single, &resident, &name, &shape, &type, &offset, &longer})
    EXPECT_NE(keyOf(*other), key);
  // Memory outside the frozen arena does not change the key.
  OneParameter other("w", {4, 64}, QLORA_QUANTIZATION_ON_LOAD, QLORA_DTYPE_NF4);
  other.tables.arenas[kDemoActivation].bytes += 64;
  EXPECT_EQ(keyOf(other), key);
}

TEST_F(BaseKeyTest, APieceIsAnotherKeyAndTheWholeIsNot) {
  auto files = ModelFiles::open(folder.path());
  ASSERT_TRUE(files.isOk()) << files.status().message();
  const std::string key = keyOf(nf4);
  const auto pieceKey = [&](uint32_t shards, uint64_t size, uint32_t piece) {
    OneParameter parameter = nf4;
    parameter.tables.header.mesh.fsdp = shards;
    parameter.tables.parameters[0].piece = size;
    auto module = parameter.tables.load();
    EXPECT_TRUE(module.isOk()) << module.status().message();
    return baseKey(*module, *files, piece).value();
  };
  EXPECT_EQ(pieceKey(1, 0, 0), key);
  const uint64_t half = (nf4.tables.parameters[0].bytes / 2 + 63) / 64 * 64;
  const std::set<std::string> keys = {
      key, pieceKey(2, half, 0), pieceKey(2, half, 1), pieceKey(3, half, 0),
      pieceKey(2, half + 64, 0), pieceKey(2, 0, 0)};
  EXPECT_EQ(keys.size(), 6u);
}

TEST_F(BaseKeyTest, AChangedFileIsAnotherKeyWhateverItsTime) {
  const std::string key = keyOf(nf4);
  struct stat before {};
  ASSERT_EQ(stat(file().c_str(), &before), 0);
  // 20 ms are longer than the resolution of coarse file times on Linux.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::fstream(file(), std::ios::in | std::ios::out | std::ios::binary)
      .seekp(-1, std::ios::end)
      .put(0x40);
  const timespec times[] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, file().c_str(), times, 0), 0);
  struct stat after {};
  ASSERT_EQ(stat(file().c_str(), &after), 0);
  EXPECT_EQ(std::memcmp(&before.st_mtim, &after.st_mtim, sizeof(timespec)), 0);
  EXPECT_NE(keyOf(nf4), key);
}

TEST_F(BaseKeyTest, ALinkIsTheSameFileAndACopyIsNot) {
  const std::string key = keyOf(nf4);
  const TemporaryFolder link, copy;
  fs::create_symlink(file(), link.path("model.safetensors"));
  fs::copy_file(file(), copy.path("model.safetensors"));
  EXPECT_EQ(keyOf(nf4, link.path()), key);
  EXPECT_NE(keyOf(nf4, copy.path()), key);
}

TEST_F(BaseKeyTest, AFileJustWrittenIsNotTrusted) {
  auto fresh = ModelFiles::open(folder.path());
  ASSERT_TRUE(fresh.isOk());
  EXPECT_HAS(checkSettled(*fresh).message(), "less than two seconds ago");
  // A modification time in the future is not trusted, because another machine's
  // clock set it.
  fs::last_write_time(file(),
                      fs::file_time_type::clock::now() + std::chrono::hours(1));
  auto future = ModelFiles::open(folder.path());
  EXPECT_FALSE(checkSettled(*future).isOk());
  auto golden = ModelFiles::open(kGoldens + "llama-nf4/model");
  ASSERT_TRUE(golden.isOk());
  EXPECT_TRUE(checkSettled(*golden).isOk());
}

TEST_F(BaseKeyTest, AChangeWhileReadingIsSeen) {
  auto files = ModelFiles::open(folder.path());
  ASSERT_TRUE(files.isOk());
  EXPECT_TRUE(checkUnchanged(*files).isOk());
  fs::resize_file(file(), fs::file_size(file()) + 1);
  EXPECT_HAS(checkUnchanged(*files).message(), "changed while it was read");
  fs::remove(file());
  EXPECT_FALSE(checkUnchanged(*files).isOk());
}

TEST_F(BaseKeyTest, OnlyWhatIsQuantizedWhenLoadedIsKept) {
  const auto quantizes = [](OneParameter parameter) {
    auto module = parameter.tables.load();
    EXPECT_TRUE(module.isOk()) << module.status().message();
    return quantizesBase(*module);
  };
  EXPECT_TRUE(
      quantizes({"w", {4, 64}, QLORA_QUANTIZATION_ON_LOAD, QLORA_DTYPE_NF4}));
  EXPECT_TRUE(
      quantizes({"w", {4, 64}, QLORA_QUANTIZATION_ON_LOAD, QLORA_DTYPE_F32}));
  EXPECT_TRUE(
      quantizes({"w", {4, 64}, QLORA_QUANTIZATION_TURNED, QLORA_DTYPE_NF4}));
  EXPECT_FALSE(
      quantizes({"w", {4, 64}, QLORA_QUANTIZATION_NONE, QLORA_DTYPE_BF16}));
  EXPECT_FALSE(quantizes(
      {"w", {4, 64}, QLORA_QUANTIZATION_STORED, QLORA_DTYPE_NF4}));
}

} // namespace
} // namespace qlora
