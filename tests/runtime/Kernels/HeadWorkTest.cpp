// SPDX-License-Identifier: MIT

// Cost of the LM head if ranks have shards of the vocabulary.

#include <gtest/gtest.h>

#include "runtime/Kernels/CostModel.h"

namespace qlora {
namespace {

/// Returns a request in which all operands are present and bf16.
KernelRequest
request(const char *op,
        const std::vector<std::pair<const char *, int64_t>> &constants) {
  KernelRequest request{findKernelOp(op), {}, {}};
  request.dtypes.assign(request.op->operands.size(), QLORA_DTYPE_BF16);
  request.constants.assign(request.op->constants.size(), 0);
  for (auto [name, value] : constants)
    request.constants[request.op->constantIndex(name)] = value;
  return request;
}

KernelRequest part(int64_t piece) {
  return request("head_part", {{"rows", 12},
                               {"hidden_size", 20},
                               {"vocab", 30},
                               {"piece", piece},
                               {"shards", 30 / piece},
                               {"ldh", 20},
                               {"chunk_rows", 4}});
}

TEST(HeadWork, PartsAndTheirMergeAreOfTheHead) {
  for (const char *op : {"head_loss", "head_part", "head_merge"})
    EXPECT_EQ(categoryOf(*findKernelOp(op)), WorkCategory::kHead) << op;
}

TEST(HeadWork, PiecesHaveTheProductsOfTheWhole) {
  // GEMMs of the logits and of the gradient.
  EXPECT_DOUBLE_EQ(kernelWork(part(30)).bf16Flops, 2 * 2.0 * 12 * 20 * 30);
  EXPECT_DOUBLE_EQ(kernelWork(part(10)).bf16Flops, 2 * 2.0 * 12 * 20 * 10);
  KernelRequest forward = part(10);
  forward.dtypes[forward.op->operandIndex("gradient")] = std::nullopt;
  EXPECT_DOUBLE_EQ(kernelWork(forward).bf16Flops, 2.0 * 12 * 20 * 10);
}

TEST(HeadWork, OnCudaAPieceIsChunksOfProducts) {
  // One kernel lists the rows. Each chunk of four rows has five kernels:
  // gather, logits, softmax, gradient, scatter. A last kernel computes the
  // states of the unlabelled rows.
  const std::vector<Work> kernels = cudaKernelWork(part(10));
  ASSERT_EQ(kernels.size(), 1 + 3 * 5 + 1u);
  Work all;
  for (const Work &work : kernels)
    all += work;
  EXPECT_DOUBLE_EQ(all.bf16Flops, 2 * 2.0 * 12 * 20 * 10);
}

TEST(HeadWork, MergingReadsStatesAndTheGradient) {
  KernelRequest merge = request("head_merge", {{"rows", 12},
                                               {"hidden_size", 20},
                                               {"vocab", 30},
                                               {"piece", 10},
                                               {"shards", 3},
                                               {"lines", 1},
                                               {"own", 4}});
  // States are four f32 values per rank and row; gradients are f32, dhidden is
  // bf16.
  const double states = 3 * 12 * 4 * 4, numbers = 12 * 20;
  EXPECT_DOUBLE_EQ(kernelWork(merge).bytes, states + numbers * (4 + 2));
  merge.dtypes[merge.op->operandIndex("dhidden")] = std::nullopt;
  EXPECT_DOUBLE_EQ(kernelWork(merge).bytes, states + numbers * (4 + 4));
  merge.dtypes[merge.op->operandIndex("gradient")] = std::nullopt;
  EXPECT_DOUBLE_EQ(kernelWork(merge).bytes, states);
}

} // namespace
} // namespace qlora
