// SPDX-License-Identifier: MIT

// Contents of Kernels.def, and errors for requests that an implementation
// rejects.

#include "runtime/Kernels/KernelTable.h"

#include <gtest/gtest.h>

#include <bit>

#include "runtime/Kernels/LibraryKernel.h"

namespace qlora {
namespace {

KernelRequest matmulRequest(int64_t m, int64_t n, int64_t k) {
  const int64_t one = std::bit_cast<int64_t>(1.0);
  return {findKernelOp("matmul"),
          {QLORA_DTYPE_F32, QLORA_DTYPE_F32, QLORA_DTYPE_F32, QLORA_DTYPE_U8},
          {m, n, k, k, n, n, 0, 0, one, 0}};
}

TEST(KernelTable, ReadsMarksOfOperandsAndConstants) {
  const KernelOp *op = findKernelOp("head_loss_grad");
  ASSERT_NE(op, nullptr);
  const KernelOperand &dw = op->operands[op->operandIndex("dw")];
  EXPECT_TRUE(dw.isRead && dw.isWritten && dw.isOptional);
  const KernelOperand &loss = op->operands[op->operandIndex("loss")];
  EXPECT_TRUE(!loss.isRead && loss.isWritten && !loss.isOptional);
  const KernelOperand &hidden = op->operands[op->operandIndex("hidden")];
  EXPECT_TRUE(hidden.isRead && !hidden.isWritten && !hidden.isOptional);
  const KernelOp *matmul = findKernelOp("matmul");
  EXPECT_EQ(matmul->kinds[matmul->constantIndex("alpha")],
            ConstantKind::kDouble);
  EXPECT_EQ(matmul->kinds[matmul->constantIndex("lda")], ConstantKind::kOther);
  EXPECT_EQ(hidden.types, (std::vector{QLORA_DTYPE_F32, QLORA_DTYPE_BF16}));
  const KernelOp *attention = findKernelOp("attention");
  EXPECT_EQ(attention->operands[attention->operandIndex("k")].like, "q");
}

TEST(KernelTable, ReferencesAreNoRowsToRun) {
  for (const KernelOp &op : kernelOps()) {
    unsigned cpu = 0, cuda = 0;
    for (const KernelRow &row : kernelRows()) {
      EXPECT_EQ(row.isOracle, row.implementation == "reference")
          << row.fullName();
      if (row.op == &op && !row.isOracle)
        ++(row.target == "cpu" ? cpu : cuda);
    }
    EXPECT_GE(cpu, 1u) << op.name;
    EXPECT_GE(cuda, 1u) << op.name;
    EXPECT_FALSE(findKernelRow(op.name + ".reference") &&
                 findKernelRow(op.name + ".cpu"))
        << op.name;
  }
  EXPECT_EQ(findKernelRow("matmul.unknown"), nullptr);
  EXPECT_EQ(findKernelOp("unknown"), nullptr);
}

TEST(KernelTable, ARowThatTunesTakesWhatItTunes) {
  for (const char *name : {"head_loss.cuda", "head_loss_grad.cuda"}) {
    const KernelRow *row = findKernelRow(name);
    ASSERT_NE(row->tune, nullptr) << name;
    KernelRequest request{row->op, {}, {}};
    for (const KernelOperand &operand : row->op->operands)
      request.dtypes.push_back(
          operand.isOptional ? std::nullopt
                             : std::optional(QLORA_DTYPE_BF16));
    for (const char *f32 : {"loss", "count"})
      request.dtypes[row->op->operandIndex(f32)] = QLORA_DTYPE_F32;
    for (const char *i32 : {"targets", "correct"})
      request.dtypes[row->op->operandIndex(i32)] = QLORA_DTYPE_I32;
    request.dtypes[row->op->operandIndex("workspace")] = QLORA_DTYPE_U8;
    const auto chunkOf = [&](int64_t rows, int64_t vocab, WorkspaceSize size) {
      request.constants.assign(row->op->neededConstants, 64);
      request.constants[row->op->constantIndex("rows")] = rows;
      request.constants[row->op->constantIndex("vocab")] = vocab;
      request.constants[row->op->constantIndex("lines")] = 1;
      request.constants[row->op->constantIndex("replaced")] = 0;
      row->tune(request, size);
      EXPECT_EQ(row->reject(request), std::nullopt);
      return request.constant("chunk_rows");
    };
    // 2^25 logits are 1024 rows of 2^15 tokens. The rows of a chunk are a
    // multiple of 64 and at least 256, or all rows if there are fewer. With
    // large workspaces, a chunk has at least 1024 rows.
    constexpr WorkspaceSize kModest = WorkspaceSize::kModest;
    EXPECT_EQ(chunkOf(4096, 1 << 15, kModest), 1024);
    EXPECT_EQ(chunkOf(4096, 50000, kModest), 640);
    EXPECT_EQ(chunkOf(4096, 1 << 20, kModest), 256);
    EXPECT_EQ(chunkOf(100, 1 << 15, kModest), 100);
    EXPECT_EQ(chunkOf(4096, 1 << 14, WorkspaceSize::kLarge), 2048);
    EXPECT_EQ(chunkOf(4096, 128256, WorkspaceSize::kLarge), 1024);
    EXPECT_EQ(chunkOf(700, 128256, WorkspaceSize::kLarge), 700);
    // kSmall keeps the given chunk_rows, but at most 2^25 logits per chunk.
    EXPECT_EQ(chunkOf(4096, 1 << 15, WorkspaceSize::kSmall), 64);
    request.constants[row->op->constantIndex("chunk_rows")] = 4096;
    row->tune(request, WorkspaceSize::kSmall);
    EXPECT_EQ(request.constant("chunk_rows"), 1024);
  }
  EXPECT_EQ(findKernelRow("head_loss.chunked")->tune, nullptr);
}

/// With vocabulary shards, the chunk size depends only on the shard's logits.
TEST(KernelTable, AHeadWithAPieceHasTheChunkOfIt) {
  const KernelRow *row = findKernelRow("head_part.cuda");
  ASSERT_NE(row->tune, nullptr);
  KernelRequest request{row->op, {}, {}};
  request.constants.assign(row->op->constants.size(), 64);
  for (auto [name, value] : {std::pair("rows", 4096), {"vocab", 1 << 18},
                             {"piece", 1 << 15}, {"shards", 8}})
    request.constants[row->op->constantIndex(name)] = value;
  row->tune(request, WorkspaceSize::kModest);
  EXPECT_EQ(request.constant("chunk_rows"), 1024);
}

TEST(KernelTable, SaysWhyARequestIsRefused) {
  const KernelRow *row = findKernelRow("matmul.onednn");
  EXPECT_EQ(row->reject(matmulRequest(3, 4, 5)), std::nullopt);

  KernelRequest request = matmulRequest(3, 4, 5);
  request.dtypes[1] = QLORA_DTYPE_NF4;
  EXPECT_EQ(row->reject(request), "b must be f32 or bf16 or f16, got nf4");
  request = matmulRequest(3, 4, 5);
  request.constants[3] = 4;
  EXPECT_EQ(row->reject(request), "lda must hold 5 columns, got 4");
  request = matmulRequest(3, 0, 5);
  EXPECT_EQ(row->reject(request), "n must be in [1, 2^40], got 0");
  request = matmulRequest(3, 4, 5);
  request.constants[6] = 2;
  EXPECT_EQ(row->reject(request), "transpose_a must be 0 or 1, got 2");
  request = matmulRequest(3, 4, 5);
  request.constants.pop_back();
  EXPECT_EQ(row->reject(request), "matmul takes 10 constants, got 9");
  request = matmulRequest(3, 4, 5);
  request.dtypes[0] = std::nullopt;
  EXPECT_EQ(row->reject(request), "operand a is absent");
  EXPECT_TRUE(row->reject(matmulRequest(int64_t(1) << 40, 4, 1 << 30)));
}

TEST(KernelTable, NoRowAcceptsARequestOfNothing) {
  for (const KernelRow &row : kernelRows()) {
    KernelRequest request = {row.op, {}, {}};
    EXPECT_TRUE(row.reject(request).has_value()) << row.fullName();
    request.dtypes.assign(row.op->operands.size(), QLORA_DTYPE_F32);
    request.constants.assign(row.op->constants.size(), -1);
    EXPECT_TRUE(row.reject(request).has_value()) << row.fullName();
  }
}

TEST(KernelTable, PrepareRefusesASmallWorkspace) {
  const KernelRow *row = findKernelRow("matmul.onednn");
  KernelRequest request = matmulRequest(300, 400, 500);
  const uint64_t needed = row->workspaceBytes(request);
  EXPECT_TRUE(prepareCpuKernel(*row, request, needed).isOk());
  const Status refused = prepareCpuKernel(*row, request, needed - 1).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
}

} // namespace
} // namespace qlora
