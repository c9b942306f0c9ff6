// SPDX-License-Identifier: MIT

// Selects and launches the kernels of Device/Attention*.cu. An f32 kernel has
// one variant. A bf16 kernel has three variants, on tensor cores. Two need rows
// aligned to 16 bytes and heads of up to 64 or 128 dimensions; `any` handles
// all other cases.

#include <algorithm>

#include <fmt/format.h>

#include "runtime/Kernels/Cuda/CudaKernel.h"

namespace qlora::cuda {

/// Rows per thread block; equals kTile of Device/Attention.cuh.
static constexpr int64_t kTile = 64;
/// Rows per thread block of the delta kernel, one per warp.
static constexpr int64_t kDeltaRows = 8;
/// Row alignment that all variants except `any` need: bytes, bf16 elements.
static constexpr int64_t kAlignment = 16, kAlignedHalves = 8;

namespace {

/// A variant of a kernel in Device/Attention*.cu: its symbol's suffix, and the
/// head dimensions and threads of a block.
struct Variant {
  std::string_view suffix;
  int64_t width;
  unsigned threads;
};

/// Names of an operand that a kernel loads in 16-byte words, and of its stride.
struct Matrix {
  std::string_view operand, ld;
};

/// Two launches: for operands aligned to 16 bytes, and for all other operands.
class AttentionLaunch {
public:
  /// Prepares both launches. A block computes up to 64 rows and Variant::width
  /// dimensions of a head. `heads` names the constant that has the number of
  /// heads.
  static StatusOr<AttentionLaunch>
  prepare(CudaContext &context, std::string_view kernel, const KernelRequest &r,
          std::span<const Matrix> matrices, std::string_view heads,
          std::span<const int64_t> constants);
  Status enqueue(const CudaKernelArgs &args) const;

private:
  CudaLaunch aligned, any;
  std::vector<unsigned> operands; ///< indices of the matrices
};

} // namespace

static constexpr Variant kF32 = {"f32", 128, 256};
static constexpr Variant kBF16Any = {"bf16_any", 64, 128};
static constexpr Variant kBF16By64 = {"bf16_64", 64, 128};
static constexpr Variant kBF16By128 = {"bf16_128", 128, 128};

/// Returns the variant for operands aligned to 16 bytes.
static Variant alignedVariant(const KernelRequest &r,
                              std::span<const Matrix> matrices) {
  const int64_t dim = r.constant("dim");
  if (dim % kAlignedHalves != 0 || dim > kBF16By128.width)
    return kBF16Any;
  for (const Matrix &matrix : matrices)
    if (r.constant(matrix.ld) % kAlignedHalves != 0)
      return kBF16Any;
  return dim <= kBF16By64.width ? kBF16By64 : kBF16By128;
}

/// Returns the grid of a variant. The number of blocks is clamped to fit
/// int64_t. CudaLaunch::prepare() refuses so large a grid.
static CudaGrid gridOf(const KernelRequest &r, std::string_view heads,
                       const Variant &variant) {
  const int64_t parts = blocksOf(r.constant("dim"), variant.width);
  const __int128 blocks = __int128(blocksOf(r.constant("length"), kTile)) *
                          r.constant("batch") * r.constant(heads) * parts;
  return {static_cast<int64_t>(std::min<__int128>(blocks, __int128(1) << 62)),
          variant.threads};
}

StatusOr<AttentionLaunch> AttentionLaunch::prepare(
    CudaContext &context, std::string_view kernel, const KernelRequest &r,
    std::span<const Matrix> matrices, std::string_view heads,
    std::span<const int64_t> constants) {
  const bool isF32 = r.type("q") == QLORA_DTYPE_F32;
  const auto launchOf = [&](const Variant &variant) {
    return CudaLaunch::prepare(
        context, fmt::format("qlora_{}_{}", kernel, variant.suffix),
        gridOf(r, heads, variant), constants);
  };
  AttentionLaunch launch;
  QLORA_ASSIGN_OR_RETURN(launch.aligned,
                         launchOf(isF32 ? kF32 : alignedVariant(r, matrices)));
  QLORA_ASSIGN_OR_RETURN(launch.any, launchOf(isF32 ? kF32 : kBF16Any));
  for (const Matrix &matrix : matrices)
    launch.operands.push_back(r.op->operandIndex(matrix.operand));
  return launch;
}

Status AttentionLaunch::enqueue(const CudaKernelArgs &args) const {
  const bool isAligned = std::ranges::all_of(operands, [&](unsigned operand) {
    return reinterpret_cast<uintptr_t>(args.buffers[operand]) % kAlignment == 0;
  });
  return (isAligned ? aligned : any).enqueue(args.buffers, args);
}

PreparedCudaKernel attention::cuda::prepare(const KernelRequest &r,
                                            CudaContext &context) {
  static constexpr Matrix kMatrices[] = {
      {"q", "ldq"}, {"k", "ldk"}, {"v", "ldv"}};
  QLORA_ASSIGN_OR_RETURN(AttentionLaunch launch,
                         AttentionLaunch::prepare(context, "attention", r,
                                                  kMatrices, "heads",
                                                  r.constants));
  return makeCudaKernel(
      [=](const CudaKernelArgs &args) { return launch.enqueue(args); });
}

PreparedCudaKernel attention_grad::cuda::prepare(const KernelRequest &r,
                                                 CudaContext &context) {
  static constexpr Matrix kMatrices[] = {
      {"q", "ldq"}, {"k", "ldk"}, {"v", "ldv"}, {"dout", "lddo"}};
  const int64_t rows =
      r.constant("batch") * r.constant("length") * r.constant("heads");
  std::vector<int64_t> constants = r.constants;
  constants.push_back(rows);
  QLORA_ASSIGN_OR_RETURN(
      CudaLaunch delta,
      CudaLaunch::prepare(
          context,
          fmt::format("qlora_attention_delta_{}", dtypeName(r.type("q"))),
          {blocksOf(rows, kDeltaRows)}, constants));
  QLORA_ASSIGN_OR_RETURN(
      AttentionLaunch keys,
      AttentionLaunch::prepare(context, "attention_grad_keys", r, kMatrices,
                               "kv_heads", constants));
  QLORA_ASSIGN_OR_RETURN(
      AttentionLaunch queries,
      AttentionLaunch::prepare(context, "attention_grad_queries", r, kMatrices,
                               "heads", constants));
  return makeCudaKernel([=](const CudaKernelArgs &args) {
    QLORA_RETURN_IF_ERROR(delta.enqueue(args.buffers, args));
    QLORA_RETURN_IF_ERROR(keys.enqueue(args));
    return queries.enqueue(args);
  });
}

} // namespace qlora::cuda
