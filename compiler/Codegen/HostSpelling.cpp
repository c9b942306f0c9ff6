// SPDX-License-Identifier: MIT

// Host C++: plain loops that clang vectorizes.

#include "compiler/Codegen/KernelSpelling.h"

#include <fmt/format.h>

#include <limits>

using namespace qlora;

/// Number of partial results of a reduction. Their number and order are part of
/// the printed text, so the result does not depend on the CPU's vector width.
static constexpr int64_t kLanes = 16;

/// Widest row that is stored in an array: 32 KiB of stack per float array.
static constexpr int64_t kMaxArrayColumns = 8192;

namespace {

struct HostSpelling : KernelSpelling {
  KernelGeometry geometry(int64_t) const override { return {}; }
  std::string geometryText(int64_t) const override { return ""; }
  int64_t maxRowArrays(int64_t columns) const override {
    return columns <= kMaxArrayColumns ? std::numeric_limits<int64_t>::max()
                                       : 0;
  }
  bool hasQuickFunctions() const override { return false; }
  /// Returns 1, because the C++ compiler vectorizes the loop.
  int64_t lanes(int64_t, int64_t, int64_t) const override { return 1; }
  std::string include() const override { return "runtime/Kernels/Rows.h"; }
  std::string tableType() const override { return "static const float"; }
  Statements signature(std::string_view name, int64_t) const override {
    return {fmt::format("extern \"C\" void {}(const qlora_kernel_args *args, "
                        "int64_t row_begin, int64_t row_end) {{",
                        name)};
  }
  std::string argument(std::string_view field) const override {
    return fmt::format("args->{}", field);
  }
  Statements beginRows(int64_t) const override {
    return {"for (int64_t row = row_begin; row < row_end; ++row) {"};
  }
  Statements endRows() const override { return {"}"}; }
  std::string rowQuotient(int64_t divisor) const override {
    return divisor == 1 ? "row" : fmt::format("row / {}", divisor);
  }
  std::string rowRemainder(int64_t divisor) const override {
    return fmt::format("row % {}", divisor);
  }
  Statements rowArray(std::string_view name, int64_t columns) const override {
    return {fmt::format("alignas(64) float {}[{}];", name, columns)};
  }
  Statements loop(const ColumnLoop &loop) const override;
  Statements oncePerRow(std::string_view statement, int64_t) const override {
    return {std::string(statement)};
  }
};

} // namespace

/// Prints a loop over independent columns. A result may overwrite an operand,
/// so `restrict` would be wrong; the pragma states the independence instead.
static Statements elementwise(const ColumnLoop &loop) {
  Statements lines;
  appendStatement(lines, 0, "#pragma clang loop vectorize(assume_safety)");
  appendStatement(lines, 0,
         fmt::format("for (int64_t c = 0; c < {}; ++c) {{", loop.columns));
  for (const std::string &line : loop.body)
    appendStatement(lines, 2, line);
  appendStatement(lines, 0, "}");
  return lines;
}

/// Declares and initializes the partial results of a reduction.
static void appendStart(Statements &lines, const Reduction &reduction) {
  appendStatement(lines, 0, fmt::format("float {}_lanes[{}]{};",
                                        reduction.name, kLanes,
                                        reduction.isMax ? "" : " = {}"));
  if (reduction.isMax)
    appendStatement(
        lines, 0, fmt::format("qlora_lowest_lanes({}_lanes);", reduction.name));
}

/// Prints a loop over blocks of kLanes columns, each lane with its own partial
/// result, then the remaining columns.
static Statements reduced(const ColumnLoop &loop) {
  Statements lines;
  for (const Reduction &reduction : loop.reductions)
    appendStart(lines, reduction);
  auto appendBody = [&](int indent) {
    for (const std::string &line : loop.body)
      appendStatement(lines, indent, line);
    for (const auto &[name, isMax, terms] : loop.reductions)
      for (const std::string &term : terms)
        appendStatement(
            lines, indent,
            isMax ? fmt::format("{0}_lanes[lane] = "
                                "qlora_maximum({0}_lanes[lane], {1});",
                                name, term)
                  : fmt::format("{}_lanes[lane] += {};", name, term));
  };
  const int64_t whole = loop.columns / kLanes * kLanes;
  if (whole > 0) {
    appendStatement(lines, 0, fmt::format("for (int64_t block = 0; block < {}; "
                                 "block += {})", whole, kLanes));
    appendStatement(lines, 2, fmt::format("for (int64_t lane = 0; lane < {}; "
                                 "++lane) {{", kLanes));
    appendStatement(lines, 4, "const int64_t c = block + lane;");
    appendBody(4);
    appendStatement(lines, 2, "}");
  }
  if (whole < loop.columns) {
    appendStatement(lines, 0, fmt::format("for (int64_t lane = 0; lane < {}; "
                                 "++lane) {{", loop.columns - whole));
    appendStatement(lines, 2,
                    fmt::format("const int64_t c = {} + lane;", whole));
    appendBody(2);
    appendStatement(lines, 0, "}");
  }
  for (const auto &[name, isMax, terms] : loop.reductions)
    appendStatement(lines, 0,
                    fmt::format("const float {0} = qlora_{1}_lanes({0}_lanes);",
                                name, isMax ? "max" : "sum"));
  return lines;
}

Statements HostSpelling::loop(const ColumnLoop &loop) const {
  return loop.reductions.empty() ? elementwise(loop) : reduced(loop);
}

const KernelSpelling &qlora::hostSpelling() {
  static const HostSpelling spelling;
  return spelling;
}
