// SPDX-License-Identifier: MIT

// The safetensors reader rejects each invalid input of the reference
// implementation's tests. The writer writes the same bytes as that
// implementation.

#include "runtime/Weights/Safetensors.h"

#include "tests/runtime/TemporaryFolder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>

namespace qlora {
namespace {

/// Returns the bytes of a file: header length, header, data.
std::string makeFile(const std::string &header, size_t dataBytes) {
  const uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + header + std::string(dataBytes, '\x01');
}

std::string openError(const std::string &bytes) {
  const TemporaryFolder folder;
  auto file = SafetensorsFile::open(folder.write("x.safetensors", bytes));
  return file.isOk() ? "" : file.status().message();
}

std::string headerError(const std::string &header, size_t dataBytes) {
  return openError(makeFile(header, dataBytes));
}

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

TEST(SafetensorsReader, ReadsTensorsInFileOrder) {
  const TemporaryFolder folder;
  auto file = SafetensorsFile::open(folder.write(
      "x.safetensors",
      makeFile(R"({"__metadata__":{"format":"pt"},)"
               R"("b":{"dtype":"F32","shape":[1,2],"data_offsets":[4,12]},)"
               R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
               R"("scalar":{"dtype":"U8","shape":[],"data_offsets":[12,13]},)"
               R"("none":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]}})",
               13)));
  ASSERT_TRUE(file.isOk()) << file.status().message();
  ASSERT_EQ(file->tensors().size(), 4u);
  EXPECT_EQ(file->tensors()[0].name, "a");
  EXPECT_EQ(file->tensors()[1].name, "none");
  EXPECT_EQ(file->tensors()[2].name, "b");
  EXPECT_EQ(file->metadata().at("format"), "pt");
  EXPECT_EQ(file->find("b")->elementCount(), 2);
  EXPECT_EQ(file->find("b")->byteCount(), 8u);
  uint8_t scalar = 0;
  ASSERT_TRUE(file->read(*file->find("scalar"), 0, {&scalar, 1}).isOk());
  EXPECT_EQ(scalar, 1);
  EXPECT_HAS(file->get("c").status().message(), "no tensor 'c'");
}

TEST(SafetensorsReader, AcceptsPaddedHeaders) {
  EXPECT_EQ(headerError("{}      ", 0), "");
  EXPECT_EQ(headerError("   {}", 0), "");
  EXPECT_EQ(headerError("{\"__metadata__\":null}", 0), "");
}

TEST(SafetensorsReader, RefusesBadHeaderLengths) {
  EXPECT_HAS(openError(""), "0 bytes, too few for a header");
  EXPECT_HAS(openError("\x02"), "1 bytes, too few for a header");
  EXPECT_HAS(openError(std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8)),
             "more than the 100000000 allowed");
  EXPECT_HAS(openError(std::string("\x40\0\0\0\0\0\0\0{}", 10)),
             "has 64 bytes, but the file ends after 2 of them");
}

TEST(SafetensorsReader, RefusesBadJson) {
  EXPECT_HAS(headerError("", 0), "not UTF-8 JSON");
  EXPECT_HAS(headerError("{", 0), "not UTF-8 JSON");
  EXPECT_HAS(headerError("{} x", 0), "not UTF-8 JSON");
  EXPECT_HAS(headerError("{\"\xff\xfe\":1}", 0), "not UTF-8 JSON");
  EXPECT_HAS(headerError("\xef\xbb\xbf{}", 0), "byte order mark");
  EXPECT_HAS(headerError("[]", 0), "not a JSON object");
  EXPECT_HAS(headerError("7", 0), "not a JSON object");
  EXPECT_HAS(headerError(std::string(100000, '['), 0), "nests deeper");
}

TEST(SafetensorsReader, RefusesNamesTwice) {
  EXPECT_HAS(
      headerError(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                  R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                  1),
      "'a' appears twice");
  EXPECT_HAS(headerError(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],)"
                         R"("data_offsets":[0,1]}})",
                         1),
             "'dtype' appears twice");
}

TEST(SafetensorsReader, RefusesBadMetadata) {
  EXPECT_HAS(headerError(R"({"__metadata__":{"a":1}})", 0), "not a string");
  EXPECT_HAS(headerError(R"({"__metadata__":[]})", 0), "not a JSON object");
}

TEST(SafetensorsReader, RefusesBadEntries) {
  EXPECT_HAS(headerError(R"({"a":3})", 0), "tensor 'a': not a JSON object");
  EXPECT_HAS(headerError(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1),
             "no dtype");
  EXPECT_HAS(headerError(
                 R"({"a":{"dtype":"F7","shape":[1],"data_offsets":[0,1]}})", 1),
             "unknown dtype \"F7\"");
  EXPECT_HAS(headerError(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1),
             "no shape");
  EXPECT_HAS(
      headerError(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})",
                  1),
      "not a count");
  EXPECT_HAS(
      headerError(R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})",
                  1),
      "not a count");
  EXPECT_HAS(headerError(R"({"a":{"dtype":"U8","shape":[1]}})", 1),
             "no pair of data_offsets");
  EXPECT_HAS(
      headerError(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1),
      "no pair of data_offsets");
  EXPECT_HAS(headerError(
                 R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1),
             "end at 0, before their start 1");
}

TEST(SafetensorsReader, RefusesShapeAgainstBytes) {
  EXPECT_HAS(
      headerError(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
                  4),
      "needs 8 bytes, but its data_offsets span 4");
  EXPECT_HAS(
      headerError(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],)"
                  R"("data_offsets":[0,0]}})",
                  0),
      "overflows");
  EXPECT_HAS(
      headerError(R"({"a":{"dtype":"F64","shape":[2305843009213693952,2],)"
                  R"("data_offsets":[0,0]}})",
                  0),
      "overflows");
  EXPECT_HAS(headerError(
                 R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2),
             "12 bits, not a whole number of bytes");
}

/// Types that occur in FP8, GPTQ and AWQ files.
TEST(SafetensorsReader, RefusesShapesAgainstBytesOfStoredFormats) {
  for (const auto &[dtype, bytes] :
       {std::pair{"F8_E4M3", 1}, std::pair{"F8_E5M2", 1},
        std::pair{"F8_E8M0", 1}, std::pair{"I32", 4}})
    for (const char *shape :
         {"3,5", "0,5", "5", "9223372036854775807,9223372036854775807",
          "4294967296,4294967296,4294967296", "18446744073709551615"})
      EXPECT_HAS(headerError(fmt::format(R"({{"a":{{"dtype":"{}","shape":[{}],)"
                                         R"("data_offsets":[0,{}]}}}})",
                                         dtype, shape, 14 * bytes),
                             14 * bytes),
                 "'a'")
          << dtype << " " << shape;
}

TEST(SafetensorsReader, RefusesHolesOverlapsMissingAndExtraBytes) {
  const std::string a =
      R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  EXPECT_HAS(headerError("{" + a + "}", 3), "the file is truncated");
  EXPECT_HAS(headerError("{" + a + "}", 5), "end at byte 4 of 5");
  EXPECT_HAS(headerError("{}", 1), "end at byte 0 of 1");
  EXPECT_HAS(headerError("{" + a +
                             R"(,"b":{"dtype":"U8","shape":[4],)"
                             R"("data_offsets":[2,6]}})",
                         6),
             "starts at byte 2");
  EXPECT_HAS(headerError("{" + a +
                             R"(,"b":{"dtype":"U8","shape":[4],)"
                             R"("data_offsets":[0,4]}})",
                         4),
             "starts at byte 0");
  EXPECT_HAS(headerError("{" + a +
                             R"(,"b":{"dtype":"U8","shape":[1],)"
                             R"("data_offsets":[5,6]}})",
                         6),
             "starts at byte 5");
}

TEST(SafetensorsReader, RefusesWhatIsNoFile) {
  const TemporaryFolder folder;
  EXPECT_EQ(SafetensorsFile::open(folder.path("x")).status().code(),
            StatusCode::kNotFound);
  EXPECT_HAS(SafetensorsFile::open(folder.path()).status().message(),
             "not a regular file");
}

/// Returns the tensors in reverse order; `storage` owns their bytes.
std::vector<SafetensorsItem>
itemsOf(const SafetensorsFile &file,
        std::deque<std::vector<uint8_t>> &storage) {
  std::vector<SafetensorsItem> items;
  for (const SafetensorsTensor &tensor : file.tensors()) {
    storage.emplace_back(tensor.byteCount());
    EXPECT_TRUE(file.read(tensor, 0, storage.back()).isOk());
    items.insert(items.begin(),
                 {tensor.name, tensor.dtype, tensor.shape, storage.back()});
  }
  return items;
}

TEST(SafetensorsWriter, WritesTheReferencesBytes) {
  const TemporaryFolder folder;
  for (const char *name :
       {"/goldens/prequantized-bnb/model/model.safetensors",
        "/goldens/llama-nf4/adapter_init/adapter_model.safetensors",
        "/goldens/llama-nf4/batches.safetensors"}) {
    const std::string path = std::string(QLORA_TEST_INPUTS) + name;
    auto file = SafetensorsFile::open(path);
    ASSERT_TRUE(file.isOk()) << file.status().message();
    std::deque<std::vector<uint8_t>> storage;
    const Status status = writeSafetensors(
        folder.path("out"), itemsOf(*file, storage), file->metadata());
    ASSERT_TRUE(status.isOk()) << status.message();
    std::ostringstream expected;
    expected << std::ifstream(path, std::ios::binary).rdbuf();
    EXPECT_TRUE(folder.read("out") == expected.str()) << name;
  }
  EXPECT_EQ(folder.fileCount(), 1u);
}

/// The sizes include some that are not multiples of 32 bytes.
TEST(SafetensorsWriter, RoundsAnyNumberOfElements) {
  const TemporaryFolder folder;
  const std::vector<uint8_t> numbers(4 * 13);
  const Rounding round = [](const uint8_t *, uint8_t *to, int64_t count) {
    std::fill(to, to + 2 * count, uint8_t(count));
  };
  const Status status = writeSafetensors(
      folder.path("x"), {{"a", SafetensorsDtype::kF16, {13}, numbers, round}},
      {});
  ASSERT_TRUE(status.isOk()) << status.message();
  auto file = SafetensorsFile::open(folder.path("x"));
  ASSERT_TRUE(file.isOk()) << file.status().message();
  std::vector<uint8_t> halves(2 * 13);
  ASSERT_TRUE(file->read(file->tensors().front(), 0, halves).isOk());
  EXPECT_EQ(halves, std::vector<uint8_t>(2 * 13, 13));
}

TEST(SafetensorsWriter, PutsPartsBesideEachOther) {
  const std::vector<float> first = {1, 2, 3, 4}, second = {5, 6, 7, 8};
  const auto bytes = [](const std::vector<float> &values) {
    return std::span(reinterpret_cast<const uint8_t *>(values.data()),
                     values.size() * sizeof(float));
  };
  SafetensorsItem below = {"a", SafetensorsDtype::kF32, {4, 2}, bytes(first)};
  below.beside = bytes(second);
  SafetensorsItem beside = below;
  beside.name = "b";
  beside.shape = {2, 4};
  beside.parts = 2;
  const std::string path = testing::TempDir() + "/beside.safetensors";
  ASSERT_TRUE(writeSafetensors(path, {below, beside}, {}).isOk());
  auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.isOk()) << file.status().message();
  std::vector<float> values(16);
  ASSERT_TRUE(file->read(file->tensors()[0], 0,
                         {reinterpret_cast<uint8_t *>(values.data()), 32})
                  .isOk());
  ASSERT_TRUE(file->read(file->tensors()[1], 0,
                         {reinterpret_cast<uint8_t *>(values.data() + 8), 32})
                  .isOk());
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, //
                                        1, 2, 5, 6, 3, 4, 7, 8}));
}

TEST(SafetensorsWriter, RefusesWhatItCouldNotRead) {
  const TemporaryFolder folder;
  const uint8_t byte = 0;
  const SafetensorsItem item{"a", SafetensorsDtype::kU8, {2}, {&byte, 1}};
  EXPECT_EQ(writeSafetensors(folder.path("x"), {item}, {}).code(),
            StatusCode::kInternal);
  EXPECT_EQ(folder.fileCount(), 0u);
}

TEST(SafetensorsWriter, NamesAMissingFolder) {
  EXPECT_HAS(writeSafetensors("/nonexistent/x", {}, {}).message(),
             "cannot write '/nonexistent/x'");
}

} // namespace
} // namespace qlora
