// SPDX-License-Identifier: MIT

// Choice of a GEMM algorithm by measured time. The software platform simulates
// times, so the expected choices are exact. On a real GPU, they may vary.

#include "tests/conformance/CudaGpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/Device/Cuda/GemmTiming.h"
#include "runtime/Kernels/Cuda/Gemm.h"

namespace qlora {
namespace {

using plans::GemmProblem;
using std::chrono::milliseconds;

constexpr milliseconds kLong = std::chrono::minutes(5);
constexpr uint64_t kScratch = 1 << 16;

/// slack() is the allowed ratio between two times of one algorithm. It is large
/// on a real GPU. On the software platform it is small, but candidates within 1
/// % count as equal.
bool isGpu() { return std::getenv("QLORA_CUDA_IMAGES"); }
double slack() { return isGpu() ? 1.25 : 1.02; }

/// Returns whether another candidate has the same attributes as the chosen
/// algorithm. In cuBLASLt 13.1, the attributes are the first half of an
/// algorithm's bytes.
bool isToldByBytesOnly(const GemmChoice &choice) {
  const auto hasAttributesOfChosen = [&](const GemmAlgorithm &candidate) {
    return std::equal(candidate.choice.data, candidate.choice.data + 4,
                      choice.algorithm->choice.data);
  };
  return std::ranges::count_if(choice.candidates, hasAttributesOfChosen) > 1;
}

GemmProblem problemOf(int64_t m, qlora_dtype type, float beta) {
  return {m, 48, 80, 80, 48, 48, false, false, type, type, QLORA_DTYPE_F32,
          1, beta};
}

class GemmTiming : public testing::Test {
protected:
  void SetUp() override {
    if (!CudaGpu::get())
      GTEST_SKIP() << CudaGpu::reason();
    gpu = CudaGpu::get();
    gpu->gemms.choices.clear();
    gpu->gemms.setCandidates(8);
    ok(queues.create(gpu->driver(), 0));
    ok(transfers.create(gpu->driver(), queues, 1 << 20));
  }
  void TearDown() override {
    if (!gpu)
      return;
    products.clear();
    gpu->gemms.choices.clear();
    gpu->gemms.setCandidates(1);
    for (const CudaSpan &span : memory)
      ok(gpu->driver().check(gpu->driver().memFree(span.address), "free"));
  }
  static void ok(const Status &status) {
    ASSERT_TRUE(status.isOk()) << status.message();
  }

  void allocate(uint64_t bytes) {
    CudaSpan span = {0, bytes};
    const CudaDriver &driver = gpu->driver();
    ok(driver.check(driver.memAlloc(&span.address, bytes), "memory"));
    ok(driver.check(
        driver.memsetD8Async(span.address, 0, bytes, queues.compute()),
        "zeros"));
    memory.push_back(span);
  }
  void add(const GemmProblem &problem, uint64_t scratch = kScratch) {
    auto product = CudaGemm::create(*gpu, problem, scratch);
    ok(product.status());
    products.push_back(std::move(*product));
  }
  /// Adds six GEMMs of several shapes, types and workspaces.
  void addSome() {
    for (const int64_t m : {16, 33, 64})
      for (const qlora_dtype type : {QLORA_DTYPE_F32, QLORA_DTYPE_BF16})
        add(problemOf(m, type, m == 33), m == 64 ? 0 : kScratch);
  }
  GemmTimingResult measure(milliseconds bound = kLong) {
    auto result = measureGemms(gpu->gemms, gpu->driver(), queues, transfers,
                               memory, bound);
    EXPECT_TRUE(result.isOk()) << result.status().message();
    return result.isOk() ? *result : GemmTimingResult();
  }

  CudaGpu *gpu = nullptr;
  CudaQueues queues;
  CudaTransfers transfers;
  std::vector<CudaSpan> memory;
  std::vector<std::unique_ptr<CudaGemm>> products;
};

TEST_F(GemmTiming, TheFastestIsChosen) {
  allocate(1 << 20);
  addSome();
  EXPECT_EQ(measure().measured, 6u);
  int others = 0, toldByBytesOnly = 0;
  for (auto &[signature, choice] : gpu->gemms.choices) {
    if (signature.alignment < GemmSelection::kAlignment) {
      EXPECT_EQ(choice.microseconds, 0);
      continue;
    }
    ASSERT_TRUE(choice.algorithm);
    // Time each candidate alone, if it can run. None may be clearly faster than
    // the chosen algorithm.
    for (const GemmAlgorithm &candidate : choice.candidates) {
      GemmSelection alone;
      GemmChoice only;
      only.description = choice.description;
      only.candidates = {candidate};
      alone.choices.emplace(signature, std::move(only));
      auto result =
          measureGemms(alone, gpu->driver(), queues, transfers, memory, kLong);
      if (!result.isOk()) {
        EXPECT_EQ(result.status().code(), StatusCode::kUnavailable);
        EXPECT_NE(candidate, *choice.algorithm);
        continue;
      }
      const double time = alone.choices.begin()->second.microseconds;
      EXPECT_LE(choice.microseconds, slack() * time) << signature.text();
    }
    others += *choice.algorithm != choice.candidates.front();
    toldByBytesOnly += isToldByBytesOnly(choice);
  }
  EXPECT_GT(others, 0) << "cuBLASLt's first choice was always the fastest";
  EXPECT_TRUE(isGpu() || toldByBytesOnly > 0);
}

TEST_F(GemmTiming, CandidatesAreReproducibleAndWithinTheWorkspace) {
  addSome();
  for (const auto &[signature, choice] : gpu->gemms.choices)
    for (const GemmAlgorithm &candidate : choice.candidates) {
      EXPECT_LE(candidate.scratchBytes, signature.scratchLimit);
      auto again =
          choice.description->restore(candidate.choice, signature.scratchLimit);
      ASSERT_TRUE(again.isOk());
      EXPECT_EQ(*again, candidate);
      // cuBLASLt 13.1 stores the reduction scheme in data[2].
      cublasLtMatmulAlgo_t inPlace = candidate.choice;
      inPlace.data[2] |= kCublasReductionInPlace;
      auto refused = choice.description->restore(inPlace, ~uint64_t{0});
      ASSERT_TRUE(refused.isOk());
      EXPECT_FALSE(*refused);
      auto tooLarge = choice.description->restore(
          candidate.choice, std::max<uint64_t>(candidate.scratchBytes, 1) - 1);
      ASSERT_TRUE(tooLarge.isOk());
      EXPECT_EQ(tooLarge->has_value(), candidate.scratchBytes == 0);
    }
}

/// Excludes candidates that cannot run. Some of the software cuBLASLt never
/// run, and some fail in a capture.
TEST_F(GemmTiming, WhatCannotRunIsOut) {
  if (isGpu())
    GTEST_SKIP() << "a GPU may run all";
  allocate(1 << 20);
  add(problemOf(16, QLORA_DTYPE_F32, 0));
  // Signatures sort the GEMM with aligned operands last.
  const auto &[signature, choice] = *gpu->gemms.choices.rbegin();
  size_t out = 0;
  for (const GemmAlgorithm &candidate : choice.candidates) {
    GemmSelection alone;
    GemmChoice only;
    only.description = choice.description;
    only.candidates = {candidate};
    alone.choices.emplace(signature, std::move(only));
    auto result =
        measureGemms(alone, gpu->driver(), queues, transfers, memory, kLong);
    out += !result.isOk();
    if (!result.isOk())
      EXPECT_NE(result.status().message().find("no algorithm of cuBLASLt runs "
                                               "for GEMM 16 x 48 x 80"),
                std::string::npos)
          << result.status().message();
  }
  EXPECT_EQ(out, 2u);
  EXPECT_EQ(measure().measured, 1u);
}

TEST_F(GemmTiming, MemoryIsZeroAfterwards) {
  // No single allocation can hold the operands.
  for (const uint64_t bytes : {20000, 16000, 12345, 70000})
    allocate(bytes);
  addSome();
  EXPECT_EQ(measure().measured, 6u);
  for (const CudaSpan &span : memory) {
    std::vector<uint8_t> bytes(span.bytes, 1);
    ok(transfers.read(span.address, bytes));
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0),
              std::ptrdiff_t(span.bytes));
  }
}

TEST_F(GemmTiming, WithoutRoomOrTimeTheFirstChoiceStays) {
  allocate(4096);
  addSome();
  const GemmTimingResult small = measure();
  EXPECT_EQ(small.outOfRoom, 6u);
  allocate(1 << 20);
  const GemmTimingResult late = measure(milliseconds(0));
  EXPECT_EQ(late.outOfTime, 6u);
  EXPECT_EQ(small.measured + late.measured, 0u);
  for (const auto &[signature, choice] : gpu->gemms.choices)
    EXPECT_EQ(*choice.algorithm, choice.candidates.front());
  EXPECT_EQ(measure().measured, 6u);
  EXPECT_EQ(measure().measured, 0u) << "twice";
}

} // namespace
} // namespace qlora
