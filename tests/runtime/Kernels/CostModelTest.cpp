// SPDX-License-Identifier: MIT

// The cost model: every op of Kernels.def has a cost, and the costs are the
// sums written beside them.

#include "runtime/Kernels/CostModel.h"

#include <bit>

#include <gtest/gtest.h>

using namespace qlora;

namespace {

/// Round numbers: 100 GFLOP/s (bf16 200), 10 GB/s, 4 GB/s of numbers.
DeviceProfile roundDevice() {
  DeviceProfile device;
  device.cores = 1;
  device.gemmF32Gflops = 100;
  device.gemmBf16Gflops = 200;
  device.copyGbps = 10;
  device.decodeGbps = 4;
  return device;
}

constexpr double kLaunch = 5e-6;

/// A request with the given constants by name; the others are 1.
KernelRequest request(const char *op,
                      std::vector<std::pair<const char *, int64_t>> constants,
                      std::vector<std::optional<qlora_dtype>> dtypes) {
  KernelRequest result;
  result.op = findKernelOp(op);
  result.dtypes = std::move(dtypes);
  for (bool isDouble : result.op->isDouble)
    result.constants.push_back(isDouble ? 0 : 1);
  for (auto [name, value] : constants)
    result.constants[result.op->constantIndex(name)] = value;
  return result;
}

TEST(CostModel, EveryOpOfTheTableHasACost) {
  for (const KernelOp &op : kernelOps())
    EXPECT_TRUE(hasKernelWork(op.name)) << op.name;
}

TEST(CostModel, AGemmIsArithmeticOrMemory) {
  // 2 * 1000^3 = 2e9 at 100 GFLOP/s: 20 ms; 3 * 4e6 bytes are 1.2 ms.
  Work large = gemmWork(1000, 1000, 1000, QLORA_DTYPE_F32, QLORA_DTYPE_F32,
                        QLORA_DTYPE_F32, false);
  EXPECT_DOUBLE_EQ(secondsOf(large, roundDevice()), kLaunch + 20e-3);
  // bf16 is twice as fast here; mixed types are computed in f32.
  Work narrow = gemmWork(1000, 1000, 1000, QLORA_DTYPE_BF16,
                         QLORA_DTYPE_BF16, QLORA_DTYPE_BF16, false);
  EXPECT_DOUBLE_EQ(secondsOf(narrow, roundDevice()), kLaunch + 10e-3);
  Work mixed = gemmWork(1000, 1000, 1000, QLORA_DTYPE_BF16, QLORA_DTYPE_F32,
                        QLORA_DTYPE_BF16, false);
  EXPECT_DOUBLE_EQ(secondsOf(mixed, roundDevice()), kLaunch + 20e-3);
  // Rank 1: 2e6 flops are 20 us, but c, read and written, is 8e6 bytes.
  Work skinny = gemmWork(1000, 1000, 1, QLORA_DTYPE_F32, QLORA_DTYPE_F32,
                         QLORA_DTYPE_F32, true);
  EXPECT_DOUBLE_EQ(secondsOf(skinny, roundDevice()),
                   kLaunch + (8e6 + 8e3) / 10e9);
}

TEST(CostModel, RowsAreMemoryAndFunctions) {
  // 1e6 bytes at 10 GB/s, 4e5 functions at 4e8 per second and core.
  EXPECT_DOUBLE_EQ(secondsOf(rowWork(1e6, 4e5), roundDevice()),
                   kLaunch + 1e-4 + 1e-3);
}

TEST(CostModel, ADecodeIsPaidPerPanelUseAndOncePerScratch) {
  KernelRequest panel = request(
      "panel_matmul",
      {{"m", 1000}, {"rows", 1000}, {"columns", 1000}, {"transpose_w", 1}},
      {QLORA_DTYPE_F32, QLORA_DTYPE_NF4, QLORA_DTYPE_F32, std::nullopt});
  // 1e6 numbers are 4e6 bytes at 4 GB/s: 1 ms more than the GEMM, which runs
  // at 0.8 of the rate of a large one.
  EXPECT_DOUBLE_EQ(secondsOf(kernelWork(panel), roundDevice()),
                   kLaunch + 20e-3 / 0.8 + 1e-3);
  KernelRequest decode =
      request("decode", {{"rows", 1000}, {"columns", 1000}},
              {QLORA_DTYPE_NF4, QLORA_DTYPE_F32});
  // The same, and 0.53 + 4 bytes of each number through memory.
  EXPECT_DOUBLE_EQ(secondsOf(kernelWork(decode), roundDevice()),
                   kLaunch + 1e-3 + 4.53e6 / 10e9);
}

TEST(CostModel, AttentionIsCausalAndWindowed) {
  // 4 queries see 1 + 2 + 3 + 4 = 10 keys; with a window of 2, 1 + 2 + 2 + 2.
  Work full = attentionWork({1, 4, 2, 1, 8, 0}, QLORA_DTYPE_F32, false);
  EXPECT_DOUBLE_EQ(full.transcendentals, 2 * 10);
  EXPECT_DOUBLE_EQ(full.attentionFlops, 2 * 10 * 4 * 8);
  Work windowed = attentionWork({1, 4, 2, 1, 8, 2}, QLORA_DTYPE_F32, true);
  EXPECT_DOUBLE_EQ(windowed.attentionFlops, 2.5 * 2 * 7 * 4 * 8);
}

TEST(CostModel, TheHeadOfATrainedModelHasOneProductMore) {
  std::vector<std::optional<qlora_dtype>> dtypes(9, QLORA_DTYPE_F32);
  std::vector<std::pair<const char *, int64_t>> constants = {
      {"rows", 10}, {"hidden_size", 20}, {"vocab", 30}};
  EXPECT_DOUBLE_EQ(
      kernelWork(request("head_loss_grad", constants, dtypes)).f32Flops,
      3 * 2.0 * 10 * 20 * 30);
  dtypes[findKernelOp("head_loss_grad")->operandIndex("dw")] = std::nullopt;
  EXPECT_DOUBLE_EQ(
      kernelWork(request("head_loss_grad", constants, dtypes)).f32Flops,
      2 * 2.0 * 10 * 20 * 30);
}

} // namespace
