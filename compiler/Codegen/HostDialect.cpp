// SPDX-License-Identifier: MIT

// Host C++: plain loops that clang vectorises.

#include "compiler/Codegen/KernelDialect.h"

#include <fmt/format.h>

using namespace qlora;

/// Partial sums of a reduction. Their number and order are part of the
/// printed text, so the result does not depend on the vector width.
static constexpr int64_t kLanes = 16;

namespace {

struct HostDialect : KernelDialect {
  std::string signature(std::string_view name) const override {
    return fmt::format("extern \"C\" void {}(const qlora_kernel_args *args, "
                       "int64_t row_begin, int64_t row_end) {{",
                       name);
  }
  std::string pointer(std::string_view name, size_t index, qlora_dtype dtype,
                      bool isResult) const override {
    std::string type = pointerType(dtype, isResult);
    return fmt::format("{}const {} = static_cast<{}>(args->buffers[{}]);",
                       type, name, type, index);
  }
  std::string pointerType(qlora_dtype dtype, bool isResult) const override;
  std::string beginRows() const override {
    return "for (int64_t row = row_begin; row < row_end; ++row) {";
  }
  std::string endRows() const override { return "}"; }
  std::string rowArray(std::string_view name, int64_t columns) const override {
    return fmt::format("alignas(64) float {}[{}];", name, columns);
  }
  std::string load(qlora_dtype dtype, std::string_view pointer,
                   std::string_view index) const override;
  std::string store(qlora_dtype dtype, std::string_view pointer,
                    std::string_view index,
                    std::string_view value) const override;
  Statements loop(const ColumnLoop &loop) const override;
};

} // namespace

std::string HostDialect::pointerType(qlora_dtype dtype, bool isResult) const {
  const char *element = dtype == QLORA_DTYPE_F32   ? "float"
                        : dtype == QLORA_DTYPE_I32 ? "int32_t"
                                                   : "uint16_t";
  return fmt::format("{}{} *", isResult ? "" : "const ", element);
}

/// The suffix of Rows.h's load and store.
static const char *suffix(qlora_dtype dtype) {
  switch (dtype) {
  case QLORA_DTYPE_BF16:
    return "bf16";
  case QLORA_DTYPE_F16:
    return "f16";
  case QLORA_DTYPE_I32:
    return "i32";
  default:
    return "f32";
  }
}

std::string HostDialect::load(qlora_dtype dtype, std::string_view pointer,
                              std::string_view index) const {
  if (dtype == QLORA_DTYPE_F32)
    return fmt::format("{}[{}]", pointer, index);
  std::string value =
      fmt::format("qlora_load_{}({}, {})", suffix(dtype), pointer, index);
  return dtype == QLORA_DTYPE_I32 ? fmt::format("float({})", value) : value;
}

std::string HostDialect::store(qlora_dtype dtype, std::string_view pointer,
                               std::string_view index,
                               std::string_view value) const {
  if (dtype == QLORA_DTYPE_F32)
    return fmt::format("{}[{}] = {};", pointer, index, value);
  return fmt::format("qlora_store_{}({}, {}, {});", suffix(dtype), pointer,
                     index, value);
}

static void append(Statements &lines, int indent, std::string_view text) {
  lines.push_back(fmt::format("{:{}}{}", "", indent, text));
}

/// Columns are independent of each other, also where a result is written over
/// an operand: the pragma says so, in place of `restrict`, which would not be
/// true there.
static Statements elementwise(const ColumnLoop &loop) {
  Statements lines;
  append(lines, 0, "#pragma clang loop vectorize(assume_safety)");
  append(lines, 0,
         fmt::format("for (int64_t c = 0; c < {}; ++c) {{", loop.columns));
  for (const std::string &line : loop.body)
    append(lines, 2, line);
  append(lines, 0, "}");
  return lines;
}

/// Blocks of kLanes columns, each lane with its own partial sum, then what is
/// left over.
static Statements reduction(const ColumnLoop &loop) {
  Statements lines;
  for (const std::string &sum : loop.sums)
    append(lines, 0, fmt::format("float {}_lanes[{}] = {{}};", sum, kLanes));
  auto appendBody = [&](int indent) {
    for (const std::string &line : loop.body)
      append(lines, indent, line);
    for (const auto &[sum, term] : loop.terms)
      append(lines, indent, fmt::format("{}_lanes[lane] += {};", sum, term));
  };
  const int64_t whole = loop.columns / kLanes * kLanes;
  if (whole > 0) {
    append(lines, 0, fmt::format("for (int64_t block = 0; block < {}; "
                                 "block += {})", whole, kLanes));
    append(lines, 2, fmt::format("for (int64_t lane = 0; lane < {}; "
                                 "++lane) {{", kLanes));
    append(lines, 4, "const int64_t c = block + lane;");
    appendBody(4);
    append(lines, 2, "}");
  }
  if (whole < loop.columns) {
    append(lines, 0, fmt::format("for (int64_t lane = 0; lane < {}; "
                                 "++lane) {{", loop.columns - whole));
    append(lines, 2, fmt::format("const int64_t c = {} + lane;", whole));
    appendBody(2);
    append(lines, 0, "}");
  }
  for (const std::string &sum : loop.sums)
    append(lines, 0, fmt::format("const float {} = qlora_sum_lanes({}_lanes);",
                                 sum, sum));
  return lines;
}

Statements HostDialect::loop(const ColumnLoop &loop) const {
  return loop.sums.empty() ? elementwise(loop) : reduction(loop);
}

const KernelDialect &qlora::hostDialect() {
  static const HostDialect dialect;
  return dialect;
}
