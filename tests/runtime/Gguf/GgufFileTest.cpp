// SPDX-License-Identifier: MIT

// GGUF files, compared byte by byte with a file of the Python package gguf
// (Inputs/gguf/make_gguf.py).

#include "runtime/Gguf/GgufFile.h"

#include "tests/runtime/TemporaryFolder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace qlora {
namespace {

std::string referenceFile() {
  std::ostringstream text;
  text << std::ifstream(QLORA_TEST_INPUTS "/gguf/small.gguf", std::ios::binary)
              .rdbuf();
  return text.str();
}

GgufMetadata referenceKeys() {
  return {{"general.architecture", std::string("llama")},
          {"a.uint32", uint32_t{7}},
          {"a.int32", int32_t{-7}},
          {"a.float32", 0.5f},
          {"a.bool", true},
          {"a.uint64", uint64_t{1} << 40},
          {"a.string", std::string("grüße")},
          {"an.array.of.int32", std::vector<int32_t>{1, -2, 3}},
          {"an.array.of.float32", std::vector<float>{0.25f, -1.5f}},
          {"an.array.of.bool", std::vector<bool>{true, false, true}},
          {"an.array.of.string", std::vector<std::string>{"a", "", "ü"}}};
}

std::vector<GgufTensor> referenceTensors() {
  return {{"first", GgufType::kF32, {2, 3}},
          {"second", GgufType::kF16, {5}},
          {"third", GgufType::kQ8_0, {2, 32}}};
}

std::span<const uint8_t> bytesOf(const std::string &text, size_t begin,
                                 int64_t count) {
  return {reinterpret_cast<const uint8_t *>(text.data()) + begin,
          static_cast<size_t>(count)};
}

TEST(GgufFile, HasThePackagesBytes) {
  const TemporaryFolder folder;
  const std::string expected = referenceFile();
  auto writer = GgufWriter::create(folder.path("model.gguf"), referenceKeys(),
                                   referenceTensors());
  ASSERT_TRUE(writer.isOk()) << writer.status().message();
  EXPECT_EQ(writer->bytes(), expected.size());
  // The data of each tensor is at a multiple of 32 bytes, at the end.
  size_t begin = expected.size() - (32 + 32 + 96);
  for (const GgufTensor &tensor : referenceTensors()) {
    const auto data = bytesOf(expected, begin, tensor.bytes());
    ASSERT_TRUE(writer->append(data.first(5)).isOk());
    ASSERT_TRUE(writer->append(data.subspan(5)).isOk());
    begin += (data.size() + 31) / 32 * 32;
  }
  ASSERT_TRUE(writer->commit().isOk());
  EXPECT_EQ(folder.read("model.gguf"), expected);
}

TEST(GgufFile, LeavesNothingBeforeItIsCommitted) {
  const TemporaryFolder folder;
  {
    auto writer = GgufWriter::create(folder.path("model.gguf"),
                                     referenceKeys(), referenceTensors());
    ASSERT_TRUE(writer.isOk());
  }
  EXPECT_EQ(folder.fileCount(), 0u);
}

TEST(GgufFile, RefusesWrongNames) {
  const TemporaryFolder folder;
  std::vector<GgufTensor> tensors = referenceTensors();
  tensors[1].name = "first";
  const auto twice =
      GgufWriter::create(folder.path("model.gguf"), {}, tensors);
  EXPECT_NE(twice.status().message().find("two tensors"), std::string::npos);
  tensors[1].name = std::string(kMaxGgufName + 1, 'x');
  const auto tooLong =
      GgufWriter::create(folder.path("model.gguf"), {}, tensors);
  EXPECT_NE(tooLong.status().message().find("64 bytes"), std::string::npos);
}

TEST(GgufFile, RefusesAFolderThatDoesNotExist) {
  const TemporaryFolder folder;
  const auto writer = GgufWriter::create(folder.path("no/model.gguf"), {},
                                         referenceTensors());
  EXPECT_FALSE(writer.isOk());
}

} // namespace
} // namespace qlora
