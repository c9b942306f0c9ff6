// SPDX-License-Identifier: MIT

// Files of GEMM algorithms: a written table can be read back, and each error in
// a file gives one line.

#include "runtime/Kernels/Cuda/GemmTable.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/Base/UserFiles.h"

namespace qlora {
namespace {

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

GpuKind kindOf(const char *name) { return {name, 90, 132, 130002, 12080}; }

GemmSignature signatureOf(int64_t m) {
  return {m,     64,   4096,  4096,           4096,           64, false,
          true, false, QLORA_DTYPE_BF16, QLORA_DTYPE_F32, 16, 1 << 25};
}

GemmTable makeTable() {
  GemmTable table;
  GemmAlgorithm algorithm;
  algorithm.choice = {{0x1400000042, 2, 3, 4, 5, 6, 7, 0xfedcba9876543210}};
  algorithm.scratchBytes = 4096;
  const GemmEntry measured = {algorithm, 21.125};
  table.gpus[kindOf("GPU A")][signatureOf(512)] = measured;
  table.gpus[kindOf("GPU A")][signatureOf(1)] = {};
  table.gpus[kindOf("GPU B")][signatureOf(512)] = {algorithm, 0};
  return table;
}

/// Returns the table's text with `word` replaced by `other`.
std::string with(std::string_view word, std::string_view other) {
  std::string text = makeTable().text();
  const size_t at = text.find(word);
  EXPECT_NE(at, std::string::npos) << word;
  return text.replace(at, word.size(), other);
}

std::string errorOf(std::string_view text) {
  const Status status = GemmTable::parse(text).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << text;
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
  return status.message();
}

TEST(GemmTable, ReadsBackWhatItWrites) {
  const GemmTable table = makeTable();
  auto read = GemmTable::parse(table.text());
  ASSERT_TRUE(read.isOk()) << read.status().message();
  EXPECT_EQ(read->gpus, table.gpus);
  EXPECT_EQ(read->text(), table.text());
  EXPECT_HAS(table.text(),
             "\"algorithm\": \"0000001400000042000000000000000200");
  EXPECT_HAS(table.text(), "0007fedcba9876543210\"");
}

TEST(GemmTable, SaysWhatIsWrong) {
  const std::string text = makeTable().text();
  for (size_t bytes = 0; bytes + 2 < text.size(); bytes += 7)
    EXPECT_HAS(errorOf(std::string_view(text).substr(0, bytes)),
               "the whole expects an object");
  EXPECT_HAS(errorOf("[1, 2]"), "the whole expects an object");
  EXPECT_HAS(errorOf("{}"), "format expects an integer");
  EXPECT_HAS(errorOf(with("\"format\": 2", "\"format\": 1")),
             "format expects 2");
  EXPECT_HAS(errorOf("{\"format\": 2, \"cards\": 3}"), "cards expects a list");
  EXPECT_HAS(errorOf("{\"format\": 2, \"cards\": [3]}"),
             "cards[0]. expects an object");
  EXPECT_HAS(errorOf(with("\"m\": 512", "\"m\": -1")),
             "cards[0].products[1].m expects an integer from 0");
  EXPECT_HAS(errorOf(with("\"m\": 512", "\"m\": 1.5")), "m expects");
  EXPECT_HAS(errorOf(with("\"bf16\"", "\"f64\"")), "type expects f32 or bf16");
  EXPECT_HAS(errorOf(with("\"adds\": false", "\"adds\": 0")),
             "adds expects true or false");
  for (const char *digits : {"fedcba987654321", "fedcba98765432100",
                             "fedcba987654321g", "-edcba9876543210"})
    EXPECT_HAS(errorOf(with("fedcba9876543210", digits)),
               "products[1].algorithm expects 128 hexadecimal digits or null");
  EXPECT_HAS(errorOf(with("\"algorithm\": null", "\"algorithm\": 3")),
             "products[0].algorithm expects 128 hexadecimal digits");
  EXPECT_HAS(errorOf(with("\"algorithm\"", "\"algebra\"")),
             "algorithm expects 128 hexadecimal digits");
  EXPECT_HAS(errorOf(with("21.125", "-1")), "microseconds expects a time");
}

TEST(GemmTable, MergesByGpuAndProduct) {
  GemmTable table = makeTable(), other;
  GemmEntry faster = table.gpus[kindOf("GPU A")][signatureOf(512)];
  faster.microseconds = 3;
  other.gpus[kindOf("GPU A")][signatureOf(512)] = faster;
  other.gpus[kindOf("GPU C")][signatureOf(7)] = faster;
  table.merge(other);
  EXPECT_EQ(table.gpus.size(), 3u);
  EXPECT_EQ(table.find(kindOf("GPU A"))->at(signatureOf(512)), faster);
  EXPECT_EQ(table.find(kindOf("GPU A"))->size(), 2u);
  GpuKind newer = kindOf("GPU A");
  newer.driver += 10;
  EXPECT_EQ(table.find(newer), nullptr);
}

TEST(GemmTable, NamesTheFile) {
  const std::string path =
      (std::filesystem::path(testing::TempDir()) / "gemm/table.json").string();
  EXPECT_EQ(GemmTable::read(path + ".not").status().code(),
            StatusCode::kNotFound);
  ASSERT_TRUE(replaceWholeFile(path, makeTable().text()).isOk());
  auto read = GemmTable::read(path);
  ASSERT_TRUE(read.isOk());
  EXPECT_EQ(read->gpus, makeTable().gpus);
  ASSERT_TRUE(replaceWholeFile(path, "").isOk());
  EXPECT_HAS(GemmTable::read(path).status().message(), path);
  const Status unwritable = replaceWholeFile(path + "/below.json", "{}");
  EXPECT_EQ(unwritable.code(), StatusCode::kUnavailable);
  std::filesystem::remove_all(std::filesystem::path(path).parent_path());
}

} // namespace
} // namespace qlora
