// SPDX-License-Identifier: MIT

// The cost model: every op of Kernels.def has a cost. Comments derive the
// expected costs.

#include "runtime/Kernels/CostModel.h"

#include <bit>

#include <gtest/gtest.h>

using namespace qlora;

namespace {

/// A device with round rates: 100 GFLOP/s (bf16 200), 10 GB/s of memory, 4 GB/s
/// of decoding.
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

/// Returns a request with the given constants by name; all other constants are
/// 1.
KernelRequest request(const char *op,
                      std::vector<std::pair<const char *, int64_t>> constants,
                      std::vector<std::optional<qlora_dtype>> dtypes) {
  KernelRequest result;
  result.op = findKernelOp(op);
  result.dtypes = std::move(dtypes);
  for (ConstantKind kind : result.op->kinds)
    result.constants.push_back(kind == ConstantKind::kDouble ? 0 : 1);
  for (auto [name, value] : constants)
    result.constants[result.op->constantIndex(name)] = value;
  return result;
}

TEST(CostModel, AGemmIsArithmeticOrMemory) {
  // 2 * 1000^3 = 2e9 FLOPs at 100 GFLOP/s take 20 ms. Moving 3 * 4e6 bytes
  // takes 1.2 ms, which overlaps. Packing b moves 2 * 4e6 bytes in 0.8 ms.
  Work large = gemmWork(1000, 1000, 1000, QLORA_DTYPE_F32, QLORA_DTYPE_F32,
                        QLORA_DTYPE_F32, false);
  EXPECT_DOUBLE_EQ(secondsOf(large, roundDevice()), kLaunch + 20e-3 + 0.8e-3);
  // bf16 is twice as fast on this device; GEMMs of mixed types are computed in
  // f32.
  Work narrow = gemmWork(1000, 1000, 1000, QLORA_DTYPE_BF16,
                         QLORA_DTYPE_BF16, QLORA_DTYPE_BF16, false);
  EXPECT_DOUBLE_EQ(secondsOf(narrow, roundDevice()),
                   kLaunch + 10e-3 + 0.4e-3);
  Work mixed = gemmWork(1000, 1000, 1000, QLORA_DTYPE_BF16, QLORA_DTYPE_F32,
                        QLORA_DTYPE_BF16, false);
  EXPECT_DOUBLE_EQ(secondsOf(mixed, roundDevice()), kLaunch + 20e-3 + 0.8e-3);
  // With k = 1, 2e6 FLOPs take only 20 us. Memory takes longer: it moves 8e6
  // bytes of c (read and written) and 8e3 of a and b. Packing b then moves 8e3.
  Work skinny = gemmWork(1000, 1000, 1, QLORA_DTYPE_F32, QLORA_DTYPE_F32,
                         QLORA_DTYPE_F32, true);
  EXPECT_DOUBLE_EQ(secondsOf(skinny, roundDevice()),
                   kLaunch + (8e6 + 8e3) / 10e9 + 8e3 / 10e9);
}

TEST(CostModel, RowsAreMemoryAndFunctions) {
  // 1e6 bytes at 10 GB/s, and 4e5 exponentials at 4e8 per second and core.
  EXPECT_DOUBLE_EQ(secondsOf(rowWork(1e6, 4e5), roundDevice()),
                   kLaunch + 1e-4 + 1e-3);
}

TEST(CostModel, ADecodeIsPaidPerPanelUseAndOncePerScratch) {
  KernelRequest panel = request(
      "panel_matmul",
      {{"m", 1000},
       {"rows", 1000},
       {"columns", 1000},
       {"transpose_w", 1},
       {"block", 64}},
      {QLORA_DTYPE_F32, QLORA_DTYPE_NF4, QLORA_DTYPE_F32, std::nullopt});
  // The GEMM runs at 0.65 of a large GEMM's rate. These times are added:
  //   decoding   1e6 elements of 4 bytes at 4 GB/s: 1 ms
  //   packing    8e6 bytes at memory speed
  //   waiting    517120 bytes of the stored weight, 8e6 bytes of a and c
  // a and c count once, because they fit in the cache.
  const double waited = (517120 + 8e6) / 10e9;
  EXPECT_DOUBLE_EQ(secondsOf(kernelWork(panel), roundDevice()),
                   kLaunch + 20e-3 / 0.65 + 1e-3 + 8e6 / 10e9 + waited);
  EXPECT_DOUBLE_EQ(neededFlops(panel), 2e9);
  DeviceProfile measured = roundDevice();
  measured.kernels = {50, 150, 30, 60, 20};
  EXPECT_DOUBLE_EQ(secondsOf(kernelWork(panel), measured),
                   kLaunch + 40e-3 + 1e-3 + 8e6 / 20e9 + waited);
  KernelRequest decode =
      request("decode", {{"rows", 1000}, {"columns", 1000}, {"block", 64}},
              {QLORA_DTYPE_NF4, QLORA_DTYPE_F32});
  // Decoding takes 1 ms, as above. Meanwhile, memory moves 4 bytes per element
  // and the stored tensor: 500032 bytes of codes, 15680 scales, 62 nested
  // scales in 256 bytes, tables of 1024 and 64 bytes, and an offset. The total
  // is rounded up to a multiple of 64.
  const Work work = kernelWork(decode);
  EXPECT_DOUBLE_EQ(secondsOf(work, roundDevice()), kLaunch + 1e-3);
  DeviceProfile quick = roundDevice();
  quick.decodeGbps = 1000;
  EXPECT_DOUBLE_EQ(secondsOf(work, quick), kLaunch + (4e6 + 517120) / 10e9);
}

TEST(CostModel, FewRowsReadTheWeightWhileTheyDecodeIt) {
  KernelRequest panel = request(
      "panel_matmul",
      {{"m", 4},
       {"rows", 1000},
       {"columns", 1000},
       {"transpose_w", 1},
       {"block", 64}},
      {QLORA_DTYPE_F32, QLORA_DTYPE_NF4, QLORA_DTYPE_F32, std::nullopt});
  // 8e6 FLOPs at 100 GFLOP/s, and 1e6 elements of 4 bytes decoded at 4 GB/s.
  // Meanwhile, memory moves the stored weight, and 32e3 bytes of a and c.
  EXPECT_DOUBLE_EQ(secondsOf(kernelWork(panel), roundDevice()),
                   kLaunch + 8e-5 + 1e-3);
  DeviceProfile quick = roundDevice();
  quick.decodeGbps = quick.gemmF32Gflops = 1e6;
  EXPECT_DOUBLE_EQ(secondsOf(kernelWork(panel), quick),
                   kLaunch + (517120 + 32e3) / 10e9);
  KernelRequest dense = request(
      "matmul", {{"m", 4}, {"n", 1000}, {"k", 1000}, {"transpose_a", 0}},
      {QLORA_DTYPE_BF16, QLORA_DTYPE_BF16, QLORA_DTYPE_BF16, std::nullopt});
  EXPECT_DOUBLE_EQ(secondsOf(kernelWork(dense), roundDevice()),
                   kLaunch + (2e6 + 16e3) / 10e9);
}

TEST(CostModel, WhatWasJustWrittenIsInACacheOnceItFits) {
  // 32 MiB of the 80 MB are in the cache, whose rate is four times memory's.
  const Work work = withCached(rowWork(80e6, 0), 60e6);
  const double cached = 32 << 20;
  EXPECT_DOUBLE_EQ(secondsOf(work, roundDevice()),
                   kLaunch + (80e6 - 0.75 * cached) / 10e9);
}

TEST(CostModel, AttentionIsCausalAndWindowed) {
  // 4 queries see 1 + 2 + 3 + 4 = 10 keys; with a window of 2, 1 + 2 + 2 + 2.
  Work full = attentionWork({1, 4, 2, 1, 8, 0}, QLORA_DTYPE_F32, false);
  EXPECT_DOUBLE_EQ(full.transcendentals, 2 * 10);
  EXPECT_DOUBLE_EQ(full.attentionFlops(), 2 * 10 * 4 * 8);
  Work windowed = attentionWork({1, 4, 2, 1, 8, 2}, QLORA_DTYPE_F32, true);
  EXPECT_DOUBLE_EQ(windowed.attentionFlops(), 2.5 * 2 * 7 * 4 * 8);
}

/// A GPU with round attention rates at any length, in GFLOP/s: 1000 forward and
/// 500 backward with cuDNN, 400 and 200 with our kernels.
DeviceProfile roundGpu() {
  DeviceProfile device = roundDevice();
  GpuRates &gpu = device.gpu.emplace();
  gpu.cudnnAttention = {{1000, 1000}, {500, 500}};
  gpu.cudaAttention = {{400, 400}, {200, 200}};
  gpu.thinGemmGbps = 6;
  gpu.issueGops = 100;
  gpu.launchMicroseconds = 2;
  return device;
}

TEST(CostModel, AGpuHidesAllButTheLongest) {
  // 1e6 bytes take 100 us.
  EXPECT_DOUBLE_EQ(secondsOf(rowWork(1e6, 4e6), roundGpu()), 2e-6 + 100e-6);
  Work decode = rowWork(1e6, 0);
  decode.decodedNumbers = 4e5; // 1.6e6 bytes at 4 GB/s
  EXPECT_DOUBLE_EQ(secondsOf(decode, roundGpu()), 2e-6 + 400e-6);
}

TEST(CostModel, AGpuThatIssuesTooLittleIsBoundByIt) {
  // A row op has five instructions per byte. 5e6 instructions at 20e9 per
  // second take 250 us; memory takes 100 us.
  DeviceProfile slow = roundGpu();
  slow.gpu->issueGops = 20;
  EXPECT_DOUBLE_EQ(secondsOf(rowWork(1e6, 0), slow), 2e-6 + 250e-6);
  // The row op does not use tensor cores.
  EXPECT_EQ(demandOf(rowWork(1e6, 0), slow).arithmetic, 0);
  // A GEMM's measured rate already includes the time to issue instructions.
  Work product = gemmWork(1000, 1000, 1, QLORA_DTYPE_F32, QLORA_DTYPE_F32,
                          QLORA_DTYPE_F32, false);
  EXPECT_DOUBLE_EQ(secondsOf(product, slow), 2e-6 + (4e6 + 8e3) / 10e9);
}

/// Returns the request of a bf16 GEMM with dense matrices.
KernelRequest product(int64_t m, int64_t n, int64_t k) {
  return request("matmul",
                 {{"m", m}, {"n", n}, {"k", k}, {"lda", k}, {"ldb", n},
                  {"ldc", n}, {"transpose_a", 0}, {"transpose_b", 0}},
                 {QLORA_DTYPE_BF16, QLORA_DTYPE_BF16, QLORA_DTYPE_BF16,
                  std::nullopt});
}

TEST(CostModel, OnCudaAThinProductIsSlowerThanACopy) {
  DeviceProfile gpu = roundGpu();
  gpu.gemmBf16Gflops = 1e6; // so that memory bounds all
  const auto bytes = [](double m, double n, double k) {
    return 2 * (m * k + k * n + m * n);
  };
  // GEMMs move 6 GB/s if any of m, n and k is at most 64, and 10 GB/s
  // otherwise.
  EXPECT_DOUBLE_EQ(secondsOf(product(1000, 64, 1000), gpu),
                   2e-6 + bytes(1000, 64, 1000) / 6e9);
  EXPECT_DOUBLE_EQ(secondsOf(product(1000, 1000, 16), gpu),
                   2e-6 + bytes(1000, 1000, 16) / 6e9);
  EXPECT_DOUBLE_EQ(secondsOf(product(16, 1000, 1000), gpu),
                   2e-6 + bytes(16, 1000, 1000) / 6e9);
  EXPECT_DOUBLE_EQ(secondsOf(product(1000, 65, 1000), gpu),
                   2e-6 + bytes(1000, 65, 1000) / 10e9);
}

TEST(CostModel, OnCudaAttentionIsThatOfItsRow) {
  // With a causal mask, N queries attend to N (N + 1) / 2 keys in total:
  // 5.005e5 keys for N = 1000.
  std::vector<std::pair<const char *, int64_t>> shape = {
      {"length", 1024}, {"dim", 64}, {"ldq", 64}, {"ldk", 64}, {"ldv", 64},
      {"ldo", 64}, {"window", 0}, {"cap", 0}};
  std::vector<std::optional<qlora_dtype>> dtypes(8, QLORA_DTYPE_BF16);
  dtypes[findKernelOp("attention")->operandIndex("sinks")] = std::nullopt;
  dtypes[findKernelOp("attention")->operandIndex("segments")] = std::nullopt;
  dtypes[findKernelOp("attention")->operandIndex("lse")] = QLORA_DTYPE_F32;
  const KernelRequest forward = request("attention", shape, dtypes);
  const double flops = 1024 * 1025 / 2.0 * 4 * 64;
  const auto seconds = [&](const KernelRequest &request, const char *row) {
    return secondsOf(cudaKernelWork(request, findKernelRow(row))[0],
                     roundGpu());
  };
  EXPECT_DOUBLE_EQ(seconds(forward, "attention.cudnn"), 2e-6 + flops / 1e12);
  EXPECT_DOUBLE_EQ(seconds(forward, "attention.cuda"), 2e-6 + flops / 0.4e12);
  // Until an implementation is selected, the cost is that of the first one that
  // accepts the request. cuDNN accepts lengths that are multiples of 128.
  EXPECT_DOUBLE_EQ(secondsOf(forward, roundGpu()), 2e-6 + flops / 1e12);
  shape[0].second = 1000;
  EXPECT_DOUBLE_EQ(secondsOf(request("attention", shape, dtypes), roundGpu()),
                   2e-6 + 5.005e5 * 4 * 64 / 0.4e12);

  shape[0].second = 1024;
  for (const char *ld : {"lddo", "lddq", "lddk", "lddv"})
    shape.push_back({ld, 64});
  dtypes.assign(11, QLORA_DTYPE_BF16);
  dtypes[findKernelOp("attention_grad")->operandIndex("segments")] =
      std::nullopt;
  dtypes[findKernelOp("attention_grad")->operandIndex("lse")] = QLORA_DTYPE_F32;
  const KernelRequest backward = request("attention_grad", shape, dtypes);
  EXPECT_DOUBLE_EQ(seconds(backward, "attention_grad.cudnn"),
                   2e-6 + 2.5 * flops / 0.5e12);
  EXPECT_DOUBLE_EQ(seconds(backward, "attention_grad.cuda"),
                   2e-6 + 2.5 * flops / 0.2e12);
  EXPECT_DOUBLE_EQ(neededFlops(backward), 2.5 * flops);
}

TEST(CostModel, AttentionOfAGpuHasRatesOfItsOwn) {
  // 1e3 queries attend to 5.005e5 keys in total: 4 * 64 FLOPs per key, and 2.5
  // times as many in the backward.
  const AttentionExtents shape = {1, 1000, 1, 1, 64, 0};
  const double flops = 5.005e5 * 4 * 64;
  Work forward = attentionWork(shape, QLORA_DTYPE_BF16, false);
  EXPECT_DOUBLE_EQ(secondsOf(forward, roundGpu()), 2e-6 + flops / 0.4e12);
  Work backward = attentionWork(shape, QLORA_DTYPE_BF16, true);
  EXPECT_DOUBLE_EQ(secondsOf(backward, roundGpu()),
                   2e-6 + 2.5 * flops / 0.2e12);
  // The rates 300 and 360 are for 2k and 8k tokens. The 1,000 tokens here have
  // a lower rate: a FLOP takes 1.2327 times as long as with 2k tokens.
  DeviceProfile uneven = roundGpu();
  uneven.gpu->cudaAttention.forward = {300, 360};
  EXPECT_GT(secondsOf(forward, uneven) - 2e-6, flops / 0.3e12);
  EXPECT_NEAR((secondsOf(forward, uneven) - 2e-6) * 0.3e12 / flops,
              1.2327, 1e-4);
  // f32 attention does not use tensor cores; its rate is 0.35 of the f32 GEMM
  // rate.
  Work exact = attentionWork(shape, QLORA_DTYPE_F32, false);
  EXPECT_DOUBLE_EQ(secondsOf(exact, roundGpu()), 2e-6 + flops / 0.35e11);
}

TEST(CostModel, AttentionOfACpuHasRatesOfItsOwn) {
  // 1e3 queries attend to 5.005e5 keys; the rate includes exponentials.
  const AttentionExtents shape = {1, 1000, 1, 1, 64, 0};
  const double flops = 5.005e5 * 4 * 64;
  DeviceProfile device = roundDevice();
  const Work narrow = attentionWork(shape, QLORA_DTYPE_BF16, true);
  EXPECT_DOUBLE_EQ(secondsOf(narrow, device), kLaunch + 2.5 * flops / 35e9);
  device.kernels = {50, 150, 30, 60, 20};
  EXPECT_DOUBLE_EQ(secondsOf(narrow, device), kLaunch + 2.5 * flops / 60e9);
  const Work exact = attentionWork(shape, QLORA_DTYPE_F32, false);
  EXPECT_DOUBLE_EQ(secondsOf(exact, device), kLaunch + flops / 30e9);
}

TEST(CostModel, OnCudaAMixedProductConvertsFirst) {
  KernelRequest mixed = request(
      "matmul", {{"m", 100}, {"n", 16}, {"k", 200}, {"lda", 200}, {"ldb", 16},
                 {"ldc", 16}, {"transpose_a", 0}, {"transpose_b", 0}},
      {QLORA_DTYPE_BF16, QLORA_DTYPE_F32, QLORA_DTYPE_BF16, std::nullopt});
  std::vector<Work> kernels = cudaKernelWork(mixed);
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_DOUBLE_EQ(kernels[0].bytes, 200 * 16 * (4 + 2));
  EXPECT_DOUBLE_EQ(kernels[1].bf16Flops, 2.0 * 100 * 16 * 200);
  EXPECT_DOUBLE_EQ(kernels[1].bytes, 2.0 * (100 * 200 + 200 * 16 + 100 * 16));
}

TEST(CostModel, OnCudaTheHeadIsChunksOfProducts) {
  std::vector<std::optional<qlora_dtype>> dtypes;
  for (const KernelOperand &operand : findKernelOp("head_loss_grad")->operands)
    dtypes.push_back(operand.isOptional ? std::nullopt
                                        : std::optional(QLORA_DTYPE_BF16));
  KernelRequest head = request("head_loss_grad",
                               {{"rows", 10},
                                {"hidden_size", 20},
                                {"vocab", 30},
                                {"ldh", 20},
                                {"lddh", 20},
                                {"chunk_rows", 4},
                                {"lines", 1},
                                {"replaced", 0}},
                               dtypes);
  // One kernel lists the rows. Each chunk (4, 4 and 2 rows) has five kernels:
  // gather, logits, softmax, gradient, scatter. A last kernel adds the losses.
  std::vector<Work> kernels = cudaKernelWork(head);
  ASSERT_EQ(kernels.size(), 1 + 3 * 5 + 1u);
  Work all;
  for (const Work &work : kernels)
    all += work;
  EXPECT_DOUBLE_EQ(all.bf16Flops, 2 * 2.0 * 10 * 20 * 30);
  // Every chunk reads W twice. Logits are written, read three times, written in
  // bf16 and read again. `hidden` is read, written and read again; its gradient
  // is written, read and written again. The first and the last kernel move
  // 12 bytes per row.
  const double weights = 3 * 2 * 30 * 20 * 2, logits = 10 * 30,
               rows = 10 * 20 * 2 * 6;
  EXPECT_DOUBLE_EQ(all.bytes,
                   weights + rows + logits * (4 + 12 + 2 + 2) + 2 * 12 * 10);
}

TEST(CostModel, OnCudaAPanelIsADecodeAndAProduct) {
  KernelRequest panel = request("panel_matmul",
                                {{"m", 64},
                                 {"rows", 128},
                                 {"columns", 256},
                                 {"lda", 256},
                                 {"ldc", 128},
                                 {"transpose_w", 1},
                                 {"block", 64}},
                                {QLORA_DTYPE_BF16, QLORA_DTYPE_NF4,
                                 QLORA_DTYPE_BF16, std::nullopt});
  std::vector<Work> kernels = cudaKernelWork(panel);
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_DOUBLE_EQ(kernels[0].decodedNumbers, 128 * 256);
  EXPECT_DOUBLE_EQ(kernels[1].bf16Flops, 2.0 * 64 * 128 * 256);
  EXPECT_DOUBLE_EQ(secondsOf(panel, roundGpu()),
                   secondsOf(kernels[0], roundGpu()) +
                       secondsOf(kernels[1], roundGpu()));
}

TEST(CostModel, ATrainedHeadComputesItsLogitsTwice) {
  std::vector<std::optional<qlora_dtype>> dtypes(9, QLORA_DTYPE_F32);
  std::vector<std::pair<const char *, int64_t>> constants = {
      {"rows", 10}, {"hidden_size", 20}, {"vocab", 30}};
  EXPECT_DOUBLE_EQ(
      kernelWork(request("head_loss_grad", constants, dtypes)).f32Flops,
      4 * 2.0 * 10 * 20 * 30);
  dtypes[findKernelOp("head_loss_grad")->operandIndex("dw")] = std::nullopt;
  EXPECT_DOUBLE_EQ(
      kernelWork(request("head_loss_grad", constants, dtypes)).f32Flops,
      2 * 2.0 * 10 * 20 * 30);
  constants[0].second = 300; // two blocks of rows
  EXPECT_DOUBLE_EQ(
      kernelWork(request("head_loss_grad", constants, dtypes)).bytes,
      4.0 * (2 * 30 * 20 + 2 * 300 * 20));
}

} // namespace
