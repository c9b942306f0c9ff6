// SPDX-License-Identifier: MIT

// How ops of the train dialect call the kernels of Kernels.def.

#include "dialects/Train/Train.h"

#include "runtime/Kernels/KernelTable.h"

using namespace mlir;
using namespace qlora::model;
using namespace qlora::train;

KernelCall DecodeOp::getKernelCall() {
  RankedTensorType type = tensorOf(getWeight());
  return {"decode",
          {{"w", getWeight()}, {"out", getResult()}},
          {{"rows", matrixRows(type)}, {"columns", matrixColumns(type)}}};
}

KernelCall LinearWeightGradOp::getKernelCall() {
  return {"matmul",
          {{"a", getDy()}, {"b", getX()}, {"c", getResult()}},
          {{"m", columnsOf(getDy())}, {"n", columnsOf(getX())},
           {"k", matrixRows(tensorOf(getX()))}, {"transpose_a", true},
           {"transpose_b", false}, {"alpha", getScale()},
           {"beta", getInit() ? 1.0 : 0.0}}};
}

KernelCall AttentionGradOp::getKernelCall() {
  RankedTensorType q = tensorOf(getQ());
  return {"attention_grad",
          {{"q", getQ()}, {"k", getK()}, {"v", getV()},
           {"segments", getSegments()}, {"out", getResult()}, {"lse", getLse()},
           {"dout", getDresult()}, {"dq", getDq()}, {"dk", getDk()},
           {"dv", getDv()}},
          {{"batch", q.getDimSize(0)}, {"length", q.getDimSize(1)},
           {"heads", getHeads()}, {"kv_heads", getKvHeads()},
           {"dim", getHeadDim()}, {"window", getWindow()},
           {"scale", getScale()}, {"cap", getCap()},
           {"slots", kAttentionSlots}}};
}

KernelCall HeadLossGradOp::getKernelCall() {
  RankedTensorType hidden = tensorOf(getHidden());
  const bool replaces = !getReplaced().empty();
  const Value columns = replaces ? getReplaced().front() : Value();
  const Value words = replaces ? getReplaced().back() : Value();
  return {"head_loss_grad",
          {{"hidden", getHidden()}, {"w", getWeight()},
           {"targets", getTargets()}, {"loss", getLoss()},
           {"count", getCount()}, {"correct", getCorrect()},
           {"dhidden", getDhidden()},
           {replaces ? "dcolumns" : "dw", getDtrained()}, {"columns", columns},
           {"words", words}},
          {{"rows", matrixRows(hidden)}, {"hidden_size", matrixColumns(hidden)},
           {"vocab", tensorOf(getWeight()).getDimSize(0)}, {"cap", getCap()},
           {"chunk_rows", kHeadChunkRows}, {"lines", columnsOf(getLoss())},
           {"replaced", words ? columnsOf(words) : 0},
           {"smoothing", getLabelSmoothing()},
           {"own_probability", getOwnProbability()}}};
}

KernelCall EmbeddingGradOp::getKernelCall() {
  RankedTensorType dy = tensorOf(getDy());
  const bool isTransposed = getTurned();
  return {"embedding_grad",
          {{"ids", getIds()}, {"dout", getDy()}, {"dw", getResult()}},
          {{"rows", matrixRows(dy)}, {"columns", matrixColumns(dy)},
           {"vocab", tensorOf(getResult()).getDimSize(isTransposed ? 1 : 0)},
           {"turned", isTransposed}, {"padding", getPadding()}}};
}

KernelCall ClipNormOp::getKernelCall() {
  Value lengths = getLengths();
  // The kernel reads the label count from the statistics row, which is first.
  return {"clip_norm",
          {{"gradient", getGradient()}, {"lengths", lengths},
           {"norm", getNorm()}, {"scale", getScale()}},
          {{"elements", tensorOf(getGradient()).getNumElements()},
           {"skip", kFlatColumns},
           {"others", lengths ? tensorOf(lengths).getNumElements() : 0}}};
}

KernelCall qlora::train::LengthOp::getKernelCall() {
  return {"length",
          {{"x", getX()}, {"length", getResult()}},
          {{"elements", tensorOf(getX()).getNumElements()}}};
}

/// The first operands of the kernel are p and the states.
KernelCall UpdateOp::getKernelCall() {
  SmallVector<CallOperand> operands = {{"gradient", getG()},
                                       {"scale", getScale()}};
  for (auto [operand, result] :
       llvm::zip(findKernelOp(getKernel())->operands, (*this)->getResults()))
    operands.push_back({operand.name, result});
  return {getKernel(),
          operands,
          {{"rows", matrixRows(tensorOf(getP()))},
           {"columns", columnsOf(getP())}, {"rate_scale", getRateScale()},
           {"undecayed", getUndecayed()}}};
}
