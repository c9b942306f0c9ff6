// SPDX-License-Identifier: MIT

// The shapes of the operands of the experts' ops.

#include "runtime/Kernels/Plans/Plans.h"

namespace qlora::plans {

/// Checks that the product of the named constants, a number of rows, fits i32.
static Reason needRows(const KernelRequest &r,
                       std::initializer_list<std::string_view> names) {
  static constexpr int64_t kMost = (int64_t(1) << 31) - 1;
  Size product = 1;
  for (std::string_view name : names)
    product = product * Size(r.constant(name));
  if (product.bytes() <= uint64_t(kMost))
    return std::nullopt;
  return refusalOf(r, *names.begin(), "be fewer, with all choices below 2^31");
}

static Reason needChoices(const KernelRequest &r) {
  if (r.constant("chosen") > r.constant("experts"))
    return refusalOf(r, "chosen", "be at most as many as experts");
  return needRows(r, {"rows", "experts"});
}

OperandShapes route::shapes(const KernelRequest &r) {
  if (Reason reason = needChoices(r))
    return *reason;
  const int64_t rows = r.constant("rows"), chosen = r.constant("chosen");
  return {{rows, r.constant("experts")}, {rows, chosen}, {rows, chosen}};
}

OperandShapes route_grad::shapes(const KernelRequest &r) {
  if (Reason reason = needChoices(r))
    return *reason;
  const int64_t rows = r.constant("rows"), chosen = r.constant("chosen");
  const int64_t experts = r.constant("experts");
  return {{rows, experts}, {rows, chosen}, {rows, chosen}, {rows, experts}};
}

OperandShapes sort_by_expert::shapes(const KernelRequest &r) {
  for (std::string_view name : {"rows", "experts", "ranks"})
    if (Reason reason = needRows(r, {name}))
      return *reason;
  const int64_t rows = r.constant("rows"), experts = r.constant("experts");
  const int64_t ranks = r.constant("ranks");
  if (experts % ranks != 0)
    return refusalOf(r, "ranks", "divide the experts");
  return {{1, rows}, {1, rows},        {1, rows},
          {1, rows}, {1, experts + 1}, {1, experts / ranks + 1}};
}

OperandShapes gather_rows::shapes(const KernelRequest &r) {
  if (Reason reason = needRows(r, {"rows", "chosen"}))
    return *reason;
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const int64_t sorted = rows * r.constant("chosen");
  return {{rows, columns}, {1, sorted}, {1, sorted}, {sorted, columns}};
}

OperandShapes combine_rows::shapes(const KernelRequest &r) {
  if (Reason reason = needRows(r, {"rows", "chosen"}))
    return *reason;
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const int64_t sorted = rows * r.constant("chosen");
  return {{sorted, columns}, {1, sorted}, {1, sorted}, {rows, columns}};
}

OperandShapes choice_grad::shapes(const KernelRequest &r) {
  if (Reason reason = needRows(r, {"rows", "chosen"}))
    return *reason;
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const int64_t sorted = rows * r.constant("chosen");
  return {{rows, columns}, {sorted, columns}, {1, sorted}, {1, sorted}};
}

OperandShapes transpose_rows::shapes(const KernelRequest &r) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  if (columns % r.constant("inner"))
    return refusalOf(r, "inner", "divide the columns");
  if (Reason reason = needRows(r, {"columns"}))
    return *reason;
  return {{rows, columns}, {rows, columns}};
}

OperandShapes grouped_matmul::shapes(const KernelRequest &r) {
  if (Reason reason = needStored(r))
    return *reason;
  for (std::string_view name : {"m", "groups"})
    if (Reason reason = needRows(r, {name}))
      return *reason;
  const int64_t groups = r.constant("groups"), m = r.constant("m");
  const bool isLast = r.constant("groups_last");
  const std::string_view shared = isLast ? "columns" : "rows";
  if (r.constant(shared) % groups)
    return refusalOf(r, shared, "be a multiple of the groups");
  if (isLast && storedFormat(r.type("w")))
    return std::string("w must not be quantized with groups_last");
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const int64_t out = isLast ? rows : rows / groups;
  const int64_t in = isLast ? columns / groups : columns;
  const bool isForward = r.constant("transpose_w");
  return {{m, isForward ? in : out},
          {rows, columns},
          {1, groups + 1},
          {m, isForward ? out : in}};
}

OperandShapes grouped_weight_grad::shapes(const KernelRequest &r) {
  for (std::string_view name : {"m", "groups"})
    if (Reason reason = needRows(r, {name}))
      return *reason;
  const int64_t groups = r.constant("groups"), m = r.constant("m");
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const Size whole = Size(groups) * Size(rows);
  if (whole.bytes() > uint64_t(1) << 40)
    return refusalOf(r, "rows", "be fewer, with all groups below 2^40");
  return {{m, rows}, {m, columns}, {1, groups + 1}, {groups * rows, columns}};
}

} // namespace qlora::plans
