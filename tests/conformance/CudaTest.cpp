// SPDX-License-Identifier: MIT

// Properties of the CUDA implementations: vector accesses to operands at any
// element offset, and tests on a machine without a GPU.

#include "tests/conformance/AttentionCase.h"

#include <cstring>

namespace qlora {
namespace {

constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
constexpr qlora_dtype BF16 = QLORA_DTYPE_BF16;
constexpr qlora_dtype F16 = QLORA_DTYPE_F16;
constexpr qlora_dtype NF4 = QLORA_DTYPE_NF4;

class Cuda : public testing::Test {
protected:
  void SetUp() override {
    if (!CudaGpu::get())
      GTEST_SKIP() << CudaGpu::reason();
  }
};

/// Expects equal result bytes for operands at the start of an allocation and
/// for operands one element later.
template <typename Make>
void expectSameShifted(const Make &make, const char *implementation,
                       const char *result) {
  KernelCase aligned = make(), shifted = make();
  shifted.isShifted = true;
  expectOk(aligned.run(implementation));
  expectOk(shifted.run(implementation));
  EXPECT_EQ(std::memcmp(aligned.data(result), shifted.data(result),
                        aligned.bytes(result)),
            0);
}

TEST_F(Cuda, DecodesToAnyElement) {
  for (qlora_dtype out : {F32, BF16, F16})
    for (int64_t isDouble : {0, 1})
      expectSameShifted(
          [&] {
            KernelCase test("decode", {{"w", NF4}, {"out", out}},
                            {{"rows", 90},
                             {"columns", 64},
                             {"block", 32},
                             {"double_quant", isDouble}});
            fillStored(
                test.data("w"),
                StoredLayout::of(QLORA_DTYPE_NF4, 90 * 64, 32, isDouble != 0),
                5);
            return test;
          },
          "cuda", "out");
}

TEST_F(Cuda, CopiesFromAnyElement) {
  expectSameShifted(
      [] {
        KernelCase test(
            "copy_rows", {{"x", BF16}, {"out", BF16}},
            {{"rows", 5}, {"columns", 24}, {"ldx", 32}, {"ldo", 24}});
        test.fill("x", 5, 24, 32, 1);
        return test;
      },
      "cuda", "out");
}

/// Separate kernels handle operands that do not allow 16-byte loads. They sum
/// in the same order, so results are equal bit by bit.
TEST_F(Cuda, AttendsFromAnyElement) {
  const Attention a = {1, 130, 2, 1, 64, 0, 0, Segments::kPadded, BF16};
  expectSameShifted([&] { return makeCase(a, false); }, "cuda", "out");
  for (const char *name : {"dq", "dk", "dv"})
    expectSameShifted([&] { return makeGradient(a); }, "cuda", name);
}

/// cuBLASLt may split sums differently for unaligned operands, so results are
/// compared within a tolerance.
TEST_F(Cuda, MultipliesFromAnyElement) {
  for (qlora_dtype type : {F32, BF16}) {
    const auto make = [&] {
      KernelCase test("matmul", {{"a", type}, {"b", type}, {"c", F32}},
                      {{"m", 24},
                       {"n", 40},
                       {"k", 64},
                       {"lda", 64},
                       {"ldb", 40},
                       {"ldc", 40},
                       {"transpose_a", 0},
                       {"transpose_b", 0},
                       {"alpha", bits(1)},
                       {"beta", bits(0)}});
      test.fill("a", 24, 64, 64, 1);
      test.fill("b", 64, 40, 40, 2);
      return test;
    };
    KernelCase expected = make(), shifted = make();
    shifted.isShifted = true;
    expectOk(expected.run("reference"));
    expectOk(shifted.run("cublaslt"));
    for (int64_t i = 0; i < 24 * 40; ++i)
      ASSERT_NEAR(shifted.at("c", i), expected.at("c", i),
                  tolerance(F32, expected.at("c", i), 64));
  }
}

/// Ensures that AttentionTest compares cuDNN whenever cuDNN is installed.
TEST_F(Cuda, TakesCudnnWhereItIs) {
  const auto cudnn = CudaGpu::get()->cudnn();
  RecordProperty("cudnn", cudnn.isOk() ? "" : cudnn.status().message());
  if (!CudaGpu::isReal())
    expectOk(cudnn.status());
  const Attention a = {1, 256, 2, 1, 64, 0, 0, Segments::kPadded, BF16};
  EXPECT_EQ(makeCase(a, false).isTaken("cudnn"), cudnn.isOk());
}

/// Checks qlora_attention_reach, which counts the keys that each query attends
/// to, in blocks of 1,024 tokens. Segments span several blocks, begin at a
/// block border, and follow padding.
TEST_F(Cuda, CountsHowFarQueriesSee) {
  for (const int64_t length : {1024, 1152, 5000})
    for (const int64_t window : {0, 100}) {
      SCOPED_TRACE(testing::Message() << length << " window " << window);
      const int64_t batch = 2;
      std::vector<int32_t> segments, got(size_t(batch * length), -1), expected;
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t t = 0; t < length; ++t) {
          segments.push_back(t >= length - 7 ? 0
                             : b == 0        ? 1 + (t >= 1024) + (t >= 1030)
                                             : 1 + (t >= 300));
          const bool goesOn = t > 0 && segments.back() == *(segments.end() - 2);
          expected.push_back(goesOn ? expected.back() + 1 : 1);
        }
      if (window)
        for (int32_t &reach : expected)
          reach = std::min<int32_t>(reach, int32_t(window));
      const int64_t constants[] = {length, window};
      CudaGpu &gpu = *CudaGpu::get();
      auto launch = CudaLaunch::prepare(
          gpu, "qlora_attention_reach",
          {batch * ((length + 1023) / 1024), 1024}, constants);
      expectOk(launch.status());
      auto kernel = makeCudaKernel([&](const CudaKernelArgs &args) {
        return launch->enqueue(args.buffers, args);
      });
      const auto bytes = [](std::vector<int32_t> &values) {
        return CudaOperand{{reinterpret_cast<uint8_t *>(values.data()),
                            values.size() * sizeof(int32_t)}};
      };
      const CudaOperand operands[] = {bytes(segments), bytes(got)};
      expectOk(gpu.run(**kernel, operands, nullptr, nullptr));
      EXPECT_EQ(got, expected);
    }
}

/// If each sequence has one segment, cuDNN's graph does not read `segments`.
TEST_F(Cuda, LooksAtNoSegmentsWhereLinesHaveOne) {
  const Attention packed = {1, 256, 2, 1, 64, 0, 0, Segments::kPacked, BF16};
  Attention none = packed;
  none.segments = Segments::kNone;
  KernelCase told = makeCase(packed, false), without = makeCase(none, false);
  if (!told.isTaken("cudnn"))
    GTEST_SKIP() << "no cuDNN";
  told.hasOneSegment = true;
  expectOk(told.run("cudnn"));
  expectOk(without.run("cudnn"));
  for (int64_t i = 0; i < packed.tokens() * packed.width(); ++i)
    ASSERT_EQ(told.at("out", i), without.at("out", i));
}

/// Input of the kernels that treat padding before and after cuDNN's attention:
/// two heads and five tokens, of which the last two are padding (segment 0).
const Attention kPadded = {1, 5, 2, 2, 8, 0, 8, Segments::kPadded, BF16};

TEST_F(Cuda, ClearsTheOutputOfPadding) {
  const int64_t ld = kPadded.width() + kPadded.gap;
  KernelCase before = makeCase(kPadded, false);
  KernelCase test = makeCase(kPadded, false);
  for (KernelCase *filled : {&before, &test}) {
    filled->fill("out", 5, kPadded.width(), ld, 5);
    filled->fill("lse", 1, 10, 10, 6);
  }
  GuardedBuffer workspace;
  expectOk(test.launch("qlora_attention_padding_out", {1}, workspace));
  for (int64_t i = 0; i < 10; ++i) {
    const int64_t token = i % 5, head = i / 5;
    const bool isPadding = segmentOf(kPadded, 0, token) == 0;
    EXPECT_EQ(test.at("lse", i), isPadding ? 0 : before.at("lse", i));
    for (int64_t d = 0; d < 8; ++d) {
      const int64_t at = token * ld + head * 8 + d;
      EXPECT_EQ(test.at("out", at), isPadding ? 0 : before.at("out", at));
    }
  }
  EXPECT_TRUE(test.gapsHold("out", 5, kPadded.width(), ld));
  test.checkGuards("attention");
}

TEST_F(Cuda, GivesPaddingNoProbability) {
  KernelCase test = makeCase(kPadded, true);
  test.fill("lse", 1, 10, 10, 6);
  GuardedBuffer workspace(10 * sizeof(float));
  expectOk(test.launch("qlora_attention_padding_lse", {1}, workspace));
  for (int64_t i = 0; i < 10; ++i)
    EXPECT_EQ(loadNumber(F32, workspace.data(), i),
              segmentOf(kPadded, 0, i % 5) == 0 ? double(1e30f)
                                                : test.at("lse", i));
  EXPECT_TRUE(workspace.guardsHold());
  test.checkGuards("attention_grad");
}

/// Returns a row of logits with equal maxima at `vocab` - 77 and `vocab` - 5.
std::vector<float> longRow(int64_t vocab, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits;
  for (int64_t i = 0; i < vocab; ++i)
    logits.push_back(normal(generator));
  logits[size_t(vocab - 77)] = logits[size_t(vocab - 5)] = 14;
  return logits;
}

/// Checks two rows: their losses, `correct`, and the gradients that overwrite
/// the logits.
void checkLongRows(int64_t vocab, qlora_dtype type) {
  CudaGpu &gpu = *CudaGpu::get();
  const auto bytes = uint64_t(vocab) * 4;
  GuardedBuffer logits(2 * bytes), targets(8), labelled(8), losses(16),
      correct(8);
  for (int row = 0; row < 2; ++row) {
    std::memcpy(logits.data() + uint64_t(row) * bytes,
                longRow(vocab, unsigned(row)).data(), bytes);
    qlora_store_i32(labelled.data(), row, row);
    qlora_store_i32(targets.data(), row, int32_t(vocab - (row ? 5 : 77)));
    qlora_store_i32(correct.data(), row, 0);
  }
  const int64_t constants[] = {0, vocab};
  const auto launch = CudaLaunch::prepare(
      gpu, "qlora_head_loss_rows_" + std::string(dtypeName(type)), {2, 512},
      constants);
  ASSERT_TRUE(launch.isOk());
  auto kernel = makeCudaKernel([&](const CudaKernelArgs &args) {
    return launch->enqueue(args.buffers, args);
  });
  std::vector<CudaOperand> operands;
  for (GuardedBuffer *buffer :
       {&logits, &targets, &labelled, &losses, &correct})
    operands.push_back({buffer->guarded(), GuardedBuffer::kGuard});
  expectOk(gpu.run(**kernel, operands, nullptr, nullptr));
  EXPECT_TRUE(logits.guardsHold());
  for (int row = 0; row < 2; ++row) {
    const std::vector<float> before = longRow(vocab, unsigned(row));
    double sum = 0;
    for (float logit : before)
      sum += std::exp(double(logit));
    const int64_t target = vocab - (row ? 5 : 77);
    EXPECT_NEAR(reinterpret_cast<double *>(losses.data())[row],
                std::log(sum) - 14, 1e-6);
    EXPECT_EQ(qlora_load_i32(correct.data(), row), row == 0);
    // The exponent is at most 32 in magnitude, and log(sum) < 16.
    const double relative = 0x1p-22 + 32 * 0x1p-23 + 16 * 0x1p-24;
    for (int64_t i = 0; i < vocab; ++i) {
      const double likely = std::exp(double(before[size_t(i)]) - std::log(sum));
      const double exact = likely - (i == target);
      ASSERT_NEAR(loadNumber(type, logits.data() + uint64_t(row) * bytes, i),
                  exact,
                  relative * likely + unitRoundoff(type) * std::abs(exact))
          << i << " of " << vocab;
    }
  }
}

/// A row takes several iterations and barriers of a thread block. Kernels read
/// four elements at once, or one if rows are not aligned to 16 bytes.
TEST_F(Cuda, ReplacesLongRowsOfLogitsByTheirGradient) {
  for (qlora_dtype type : {F32, BF16})
    for (int64_t vocab : {70000, 33333})
      checkLongRows(vocab, type);
}

TEST_F(Cuda, RefusesAnUnknownRowAndASmallWorkspace) {
  CudaGpu &gpu = *CudaGpu::get();
  KernelCase test("column_sum", {{"x", F32}, {"out", F32}},
                  {{"rows", 3}, {"columns", 7}, {"ldx", 7}});
  const KernelRow *row = findKernelRow("column_sum.cuda");
  const uint64_t bytes = row->workspaceBytes(test.request);
  EXPECT_TRUE(prepareCudaKernel(*row, test.request, bytes, gpu).isOk());
  EXPECT_EQ(
      prepareCudaKernel(*row, test.request, bytes - 1, gpu).status().code(),
      StatusCode::kUnavailable);
  const KernelRow *other = findKernelRow("column_sum.cpu");
  EXPECT_EQ(prepareCudaKernel(*other, test.request, bytes, gpu).status().code(),
            StatusCode::kUnavailable);
}

} // namespace
} // namespace qlora
