// SPDX-License-Identifier: MIT

// The memory that a rank needs for the rows of its data.

#include <malloc.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "runtime/Base/HostMemory.h"
#include "tests/runtime/Data/DataFiles.h"

namespace qlora {
namespace {

constexpr int64_t kLongest = 32;

/// Writes rows of 9 to 32 tokens, with ids, labels and judgements of 0, which
/// take no space on the disk.
std::string writeSparse(const char *name, int64_t rows,
                        std::map<std::string, std::string> metadata = {},
                        bool isJudged = false) {
  std::vector<int64_t> offsets = {0};
  for (int64_t row = 0; row < rows; ++row)
    offsets.push_back(offsets.back() + 9 + row * 7919 % (kLongest - 8));
  const int64_t tokens = offsets.back();
  std::vector<SafetensorsTensor> tensors;
  const auto add = [&](const char *tensor, SafetensorsDtype dtype,
                       int64_t count) {
    const uint64_t begin = tensors.empty() ? 0 : tensors.back().end;
    const uint64_t bytes =
        static_cast<uint64_t>(count) * safetensorsDtypeBits(dtype) / 8;
    tensors.push_back({tensor, dtype, {count}, begin, begin + bytes});
  };
  add("row_offsets", SafetensorsDtype::kI64, rows + 1);
  add("input_ids", SafetensorsDtype::kI32, tokens);
  add("labels", SafetensorsDtype::kI32, tokens);
  if (isJudged)
    add("desirable", SafetensorsDtype::kI32, rows);
  const std::string header = formatSafetensorsHeader(tensors, metadata);
  const uint64_t headerBytes = header.size();
  const std::string path = testing::TempDir() + name;
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char *>(&headerBytes), sizeof headerBytes)
      .write(header.data(), static_cast<std::streamsize>(header.size()))
      .write(reinterpret_cast<const char *>(offsets.data()),
             static_cast<std::streamsize>(offsets.size() * sizeof(int64_t)));
  std::filesystem::resize_file(path, sizeof headerBytes + headerBytes +
                                         tensors.back().end);
  return path;
}

/// Returns the peak of the process's memory per row of a file while its rows
/// are opened, identified, and read in an epoch's order and in file order.
double bytesPerRow(const WeightedPath &file, int64_t rows,
                   const CompiledVariants &shape, bool packing = false,
                   double validationSize = 0) {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5"; // the peak starts from here
  const uint64_t before = readProcessMemory().residentBytes;
  DataMix mix;
  mix.files = {file};
  mix.validationSize = validationSize;
  ScheduleOptions options;
  options.packing = packing;
  auto parts = openMix(mix, shape, options);
  EXPECT_TRUE(parts.isOk()) << parts.status().message();
  for (Dataset *data : {parts->training.get(), parts->validation.get()}) {
    if (!data)
      continue;
    MicroBatch batch;
    ContentHash hash;
    data->identify(hash);
    for (int64_t step = 0; step < 2; ++step)
      EXPECT_TRUE(data->read(step, 0, {}, batch).isOk());
    EXPECT_TRUE(data->readInOrder(3, batch).isOk());
  }
  const uint64_t after = readProcessMemory().peakBytes;
  return static_cast<double>(after - before) / static_cast<double>(rows);
}

/// QLORA_TEST_ROWS sets the number of rows for measurements by hand.
TEST(RowMemory, IsAtMost20BytesPerRow) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "sanitizers need more memory";
#endif
  if (!(std::ofstream("/proc/self/clear_refs") << "5").flush())
    GTEST_SKIP() << "the peak of the memory cannot be reset";
  // By default freed memory of up to 64 MiB is kept.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  const char *given = std::getenv("QLORA_TEST_ROWS");
  const int64_t rows = given ? std::atoll(given) : 1 << 21;
  const std::string plain = writeSparse("plain", rows);
  const std::string ktoFile = writeSparse("kto", rows, {}, true);
  const std::string pairFile = writeSparse("pairs", rows, {{"pairs", "true"}});
  const CompiledVariants padded = {4, {16, kLongest}, 10};
  CompiledVariants pairs = padded, kto = padded, buckets = padded;
  buckets.batch = 1;
  buckets.buckets = {16, kLongest};
  pairs.sides = kto.sides = 2;
  kto.isUnpaired = true;
  const auto expectFew = [&](const char *name, double bytes) {
    std::printf("%-32s %5.2f bytes per row\n", name, bytes);
    EXPECT_LE(bytes, 20) << name;
  };
  expectFew("padded", bytesPerRow({plain}, rows, padded));
  expectFew("weight 1.5", bytesPerRow({plain, 1.5}, rows, padded));
  for (const auto &[name, size] : {std::pair("", 0.0), {" validation", 0.1}}) {
    const auto expect = [&](const std::string &rule, double bytes) {
      expectFew((rule + name).c_str(), bytes);
    };
    expect("packing", bytesPerRow({plain}, rows, padded, true, size));
    expect("step packing", bytesPerRow({plain}, rows, buckets, false, size));
    expect("both packings", bytesPerRow({plain}, rows, buckets, true, size));
    expect("pairs", bytesPerRow({pairFile}, rows, pairs, false, size));
    expect("kto", bytesPerRow({ktoFile}, rows, kto, false, size));
  }
}

} // namespace
} // namespace qlora
