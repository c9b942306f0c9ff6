// SPDX-License-Identifier: MIT

// The shapes of the operands of the LM head's ops.

#include "runtime/Kernels/Plans/Plans.h"

namespace qlora::plans {

/// Checks that columns and words are present exactly if logits are replaced. If
/// there is a gradient too, dcolumns must be present and dw absent.
static Reason needReplaced(const KernelRequest &r) {
  const int64_t replaced = r.constant("replaced");
  if (replaced < 0 || replaced > r.constant("vocab"))
    return refusalOf(r, "replaced", "be in [0, vocab]");
  const auto agrees = [&](std::string_view name) {
    return r.dtype(name).has_value() == (replaced > 0);
  };
  const bool hasGradient = r.op->name == "head_loss_grad";
  if (!agrees("columns") || !agrees("words") ||
      (hasGradient && !agrees("dcolumns")))
    return refusalOf(r, "replaced", "be above 0 if there are columns, else 0");
  if (hasGradient && replaced > 0 && r.dtype("dw"))
    return refusalOf(r, "replaced", "be 0 with dw");
  return std::nullopt;
}

/// Checks that row indices and token ids fit i32, and checks the cap and the
/// smoothing.
static Reason needNumbers(const KernelRequest &r) {
  for (std::string_view name : {"rows", "vocab"})
    if (r.constant(name) > int64_t(1) << 31)
      return refusalOf(r, name, "be at most 2^31");
  const double smoothing = r.constantAsDouble("smoothing");
  if (!(smoothing >= 0 && smoothing <= 1))
    return std::string("smoothing must be in [0, 1]");
  return needCap(r);
}

OperandShapes head_loss::shapes(const KernelRequest &r) {
  if (Reason reason = needNumbers(r))
    return *reason;
  if (Reason reason = needReplaced(r))
    return *reason;
  const int64_t rows = r.constant("rows"), hidden = r.constant("hidden_size");
  const int64_t lines = r.constant("lines"), replaced = r.constant("replaced");
  if (rows % lines != 0)
    return refusalOf(r, "lines", "divide rows");
  return {{rows, hidden},   {r.constant("vocab"), hidden},
          {1, rows},        {1, lines},
          {1, lines},       {1, rows},
          {rows, replaced}, {1, replaced}};
}

OperandShapes head_loss_grad::shapes(const KernelRequest &r) {
  OperandShapes shapes = head_loss::shapes(r);
  if (shapes.refusal)
    return shapes;
  const OperandShape hidden = shapes.each[0], w = shapes.each[1];
  const OperandShape columns = shapes.each[6];
  shapes.each.insert(shapes.each.begin() + 6, {hidden, w});
  shapes.each.push_back(columns);
  return shapes;
}

/// Checks that the shards cover the vocabulary, and that token ids fit f32.
static Reason needPieces(const KernelRequest &r) {
  static constexpr int64_t kMostWords = int64_t(1) << 24;
  if (Reason reason = needNumbers(r))
    return reason;
  if (r.constantAsDouble("smoothing") != 0 && r.constantAsDouble("cap") != 0)
    return std::string("smoothing must be 0 with a cap");
  for (std::string_view name : {"vocab", "piece"})
    if (r.constant(name) > kMostWords)
      return refusalOf(r, name, "be at most 2^24");
  if (r.constant("shards") > int64_t(1) << 16)
    return refusalOf(r, "shards", "be at most 2^16");
  if (r.constant("shards") * r.constant("piece") < r.constant("vocab"))
    return refusalOf(r, "piece", "hold the vocabulary with the other shards'");
  return std::nullopt;
}

OperandShapes head_part::shapes(const KernelRequest &r) {
  if (Reason reason = needPieces(r))
    return *reason;
  const int64_t rows = r.constant("rows"), hidden = r.constant("hidden_size");
  return {{rows, hidden},
          {r.constant("piece"), hidden},
          {1, rows},
          {rows, headStateNumbers(r.constantAsDouble("smoothing"))},
          {rows, hidden}};
}

OperandShapes head_merge::shapes(const KernelRequest &r) {
  if (Reason reason = needPieces(r))
    return *reason;
  const bool hasGradient = r.dtype("gradient").has_value();
  if (r.dtype("w").has_value() != hasGradient ||
      (r.dtype("dhidden") && !hasGradient))
    return std::string("gradient and w must both be present or absent, and "
                       "dhidden only with them");
  const int64_t rows = r.constant("rows"), hidden = r.constant("hidden_size");
  const int64_t shards = r.constant("shards"), lines = r.constant("lines");
  const int64_t own = r.constant("own");
  if (own != rows && own * shards != rows)
    return refusalOf(r, "own", "be the rows of a shard, or all");
  if (own % lines != 0)
    return refusalOf(r, "lines", "divide own");
  return {{shards * rows, headStateNumbers(r.constantAsDouble("smoothing"))},
          {1, rows},
          {1, lines},
          {1, lines},
          {1, own},
          {rows, hidden},
          {r.constant("piece"), hidden},
          {rows, hidden}};
}

} // namespace qlora::plans
