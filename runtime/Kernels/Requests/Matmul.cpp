// SPDX-License-Identifier: MIT

// Requests of matmul, panel_matmul and decode.

#include "runtime/Kernels/Requests/Workspaces.h"

namespace qlora::requests {

static constexpr qlora_dtype kF32 = QLORA_DTYPE_F32;
static constexpr qlora_dtype kBF16 = QLORA_DTYPE_BF16;
static constexpr qlora_dtype kF16 = QLORA_DTYPE_F16;
static constexpr qlora_dtype kNF4 = QLORA_DTYPE_NF4;

// matmul ------------------------------------------------------------------

std::vector<uint64_t> matmul::operandBytes(const KernelRequest &r) {
  const int64_t m = r.constant("m"), n = r.constant("n"), k = r.constant("k");
  const bool ta = r.constant("transpose_a"), tb = r.constant("transpose_b");
  return {
      matrixBytes(typeOf(r, "a"), ta ? k : m, ta ? m : k, r.constant("lda"))
          .bytes(),
      matrixBytes(typeOf(r, "b"), tb ? n : k, tb ? k : n, r.constant("ldb"))
          .bytes(),
      matrixBytes(typeOf(r, "c"), m, n, r.constant("ldc")).bytes(),
      0,
  };
}

Reason matmul::reference::reject(const KernelRequest &r) {
  return firstOf(
      [&] { return needShape(r); },
      [&] {
        return needPositive(r, {"m", "n", "k"});
      },
      [&] {
        return needFlag(r, {"transpose_a", "transpose_b"});
      },
      [&] {
        return needStride(r, "lda",
                          r.constant(r.constant("transpose_a") ? "m" : "k"));
      },
      [&] {
        return needStride(r, "ldb",
                          r.constant(r.constant("transpose_b") ? "k" : "n"));
      },
      [&] { return needStride(r, "ldc", r.constant("n")); },
      [&] {
        return needType(r, "a", {kF32, kBF16, kF16});
      },
      [&] {
        return needType(r, "b", {kF32, kBF16, kF16});
      },
      [&] {
        return needType(r, "c", {kF32, kBF16, kF16});
      },
      [&] { return needAddressable(r); });
}

uint64_t matmul::reference::workspaceBytes(const KernelRequest &) { return 0; }

Reason matmul::onednn::reject(const KernelRequest &r) {
  return firstOf([&] { return reference::reject(r); },
                 [&] {
                   return needType(r, "a", {kF32, kBF16});
                 },
                 [&] {
                   return needType(r, "b", {kF32, kBF16});
                 },
                 [&] {
                   return needType(r, "c", {kF32, kBF16});
                 });
}

uint64_t matmul::onednn::workspaceBytes(const KernelRequest &r) {
  return gemmWorkspace(matmulProblem(r)).bytes();
}

// panel_matmul --------------------------------------------------------------

std::vector<uint64_t> panel_matmul::operandBytes(const KernelRequest &r) {
  const int64_t m = r.constant("m");
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const bool isForward = r.constant("transpose_w");
  return {matrixBytes(typeOf(r, "a"), m, isForward ? columns : rows,
                      r.constant("lda"))
              .bytes(),
          weightBytes(r, "w").bytes(),
          matrixBytes(typeOf(r, "c"), m, isForward ? rows : columns,
                      r.constant("ldc"))
              .bytes(),
          0};
}

Reason panel_matmul::reference::reject(const KernelRequest &r) {
  return firstOf(
      [&] { return needShape(r); },
      [&] {
        return needPositive(r, {"m", "rows", "columns", "panel_columns"});
      },
      [&] { return needFlag(r, {"transpose_w"}); },
      [&] {
        const bool isForward = r.constant("transpose_w");
        return needStride(r, "lda", r.constant(isForward ? "columns" : "rows"));
      },
      [&] {
        const bool isForward = r.constant("transpose_w");
        return needStride(r, "ldc", r.constant(isForward ? "rows" : "columns"));
      },
      [&] {
        return needType(r, "a", {kF32, kBF16});
      },
      [&] {
        return needType(r, "w", {kNF4, kBF16, kF16, kF32});
      },
      [&] {
        return needType(r, "c", {kF32, kBF16});
      },
      [&] { return needNF4(r, "w"); }, [&] { return needAddressable(r); });
}

uint64_t panel_matmul::reference::workspaceBytes(const KernelRequest &) {
  return 0;
}

Reason panel_matmul::onednn::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t panel_matmul::onednn::workspaceBytes(const KernelRequest &r) {
  return PanelPlan::of(r).total().bytes();
}

// decode ----------------------------------------------------------------------

std::vector<uint64_t> decode::operandBytes(const KernelRequest &r) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  return {weightBytes(r, "w").bytes(),
          matrixBytes(typeOf(r, "out"), rows, columns, columns).bytes()};
}

Reason decode::reference::reject(const KernelRequest &r) {
  return firstOf([&] { return needShape(r); },
                 [&] {
                   return needPositive(r, {"rows", "columns"});
                 },
                 [&] {
                   return needType(r, "w", {kNF4, kBF16, kF16, kF32});
                 },
                 [&] {
                   return needType(r, "out", {kF32, kBF16, kF16});
                 },
                 [&] { return needNF4(r, "w"); },
                 [&] { return needAddressable(r); });
}

uint64_t decode::reference::workspaceBytes(const KernelRequest &) { return 0; }

Reason decode::vector::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t decode::vector::workspaceBytes(const KernelRequest &) { return 0; }

} // namespace qlora::requests
