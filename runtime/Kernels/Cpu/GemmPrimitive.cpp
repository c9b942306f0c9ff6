// SPDX-License-Identifier: MIT

// A matmul by oneDNN's matmul primitive.

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/Gemm.h"
#include "runtime/Kernels/Cpu/InstructionLimit.h"
#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora {

using plans::GemmCopies;

/// hidesTileSizes() queries the CPU, not oneDNN. Any earlier call of oneDNN
/// would select its instruction set, and the limit would have no effect.
void limitInstructions() {
  static const bool isDone [[maybe_unused]] = [] {
    if (hidesTileSizes() && !std::getenv("ONEDNN_MAX_CPU_ISA") &&
        !std::getenv("DNNL_MAX_CPU_ISA"))
      dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
    return true;
  }();
}

namespace {

using Dims = dnnl::memory::dims;

dnnl::memory::data_type dataType(qlora_dtype dtype) {
  return dtype == QLORA_DTYPE_BF16 ? dnnl::memory::data_type::bf16
                                   : dnnl::memory::data_type::f32;
}

/// A dense [rows, columns] matrix, or its transpose.
dnnl::memory::desc denseDesc(qlora_dtype dtype, int64_t rows, int64_t columns,
                             bool isTransposed) {
  return {Dims{rows, columns}, dataType(dtype),
          isTransposed ? Dims{1, rows} : Dims{columns, 1}};
}

/// Whether oneDNN uses matrix tiles (AMX).
bool usesTiles() {
  limitInstructions();
  constexpr int kTiles = static_cast<int>(dnnl::cpu_isa::avx512_core_amx);
  return (static_cast<int>(dnnl::get_effective_cpu_isa()) & kTiles) == kTiles;
}

GemmCopies copiesOf(const GemmProblem &problem) {
  return GemmCopies::of(problem, usesTiles());
}

class GemmPrimitive final : public Gemm {
public:
  GemmPrimitive(const GemmProblem &problem, const dnnl::engine &engine,
                const dnnl::matmul::primitive_desc &desc);
  Status run(const void *a, const void *b, void *c, uint8_t *scratch) override;

private:
  Status execute(const void *a, const void *b, void *c, uint8_t *scratch);

  GemmProblem p;
  GemmCopies copies;
  dnnl::stream stream;
  dnnl::matmul primitive;
  dnnl::memory aMemory, bMemory, cMemory, scratchMemory;
};

GemmPrimitive::GemmPrimitive(const GemmProblem &problem,
                             const dnnl::engine &engine,
                             const dnnl::matmul::primitive_desc &desc)
    : p(problem), copies(copiesOf(problem)), stream(engine),
      primitive(desc), aMemory(desc.src_desc(), engine, DNNL_MEMORY_NONE),
      bMemory(desc.weights_desc(), engine, DNNL_MEMORY_NONE),
      cMemory(desc.dst_desc(), engine, DNNL_MEMORY_NONE),
      scratchMemory(desc.scratchpad_desc(), engine, DNNL_MEMORY_NONE) {}

Status GemmPrimitive::execute(const void *a, const void *b, void *c,
                              uint8_t *scratch) {
  // Use the C interface: the C++ interface allocates a map for every execution.
  dnnl_memory_set_data_handle(aMemory.get(), const_cast<void *>(a));
  dnnl_memory_set_data_handle(bMemory.get(), const_cast<void *>(b));
  dnnl_memory_set_data_handle(cMemory.get(), c);
  dnnl_memory_set_data_handle(scratchMemory.get(), scratch);
  const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, aMemory.get()},
                                  {DNNL_ARG_WEIGHTS, bMemory.get()},
                                  {DNNL_ARG_DST, cMemory.get()},
                                  {DNNL_ARG_SCRATCHPAD, scratchMemory.get()}};
  const dnnl_status_t status =
      dnnl_primitive_execute(primitive.get(), stream.get(), 4, args);
  if (status != dnnl_success)
    return Status::error(StatusCode::kInternal,
                         "oneDNN matmul {} x {} x {} failed with status {}",
                         p.m, p.n, p.k, static_cast<int>(status));
  return Status::ok();
}

struct Stored {
  qlora_dtype dtype;
  const void *data;
  int64_t rows, columns, ld;
};

/// Copies a matrix to bf16 without gaps, padded with zeros to [rows, columns].
void copyDense(const Stored &from, int64_t rows, int64_t columns, uint8_t *to) {
  static constexpr int64_t kGrain = 8192; // elements
  const auto at = [&](int64_t element) {
    return elementAt(to, QLORA_DTYPE_BF16, element);
  };
  // Without gaps and padding, convert all elements as one run.
  if (from.ld == columns && from.columns == columns && from.rows == rows) {
    parallelRanges(rows * columns, kGrain, [&](int64_t begin, int64_t end) {
      convertRun(from.dtype, elementAt(from.data, from.dtype, begin),
                 QLORA_DTYPE_BF16, at(begin), end - begin);
    });
    return;
  }
  const auto copyRow = [&](int64_t row) {
    const int64_t filled = row < from.rows ? from.columns : 0;
    if (filled)
      convertRun(from.dtype, elementAt(from.data, from.dtype, row * from.ld),
                 QLORA_DTYPE_BF16, at(row * columns), filled);
    std::memset(at(row * columns + filled), 0,
                static_cast<size_t>(columns - filled) * 2);
  };
  parallelRanges(rows, 1 + kGrain / columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      copyRow(row);
  });
}

Status GemmPrimitive::run(const void *a, const void *b, void *c,
                          uint8_t *scratch) {
  uint8_t *const aCopy = copies.a.in(scratch);
  uint8_t *const bCopy = copies.b.in(scratch);
  uint8_t *const cCopy = copies.c.in(scratch);
  uint8_t *const rest = scratch + copies.bytes;
  const int64_t depth = copies.depth;
  if (aCopy) {
    if (p.transposeA)
      copyDense({p.a, a, p.k, p.m, p.lda}, depth, p.m, aCopy);
    else
      copyDense({p.a, a, p.m, p.k, p.lda}, p.m, depth, aCopy);
    a = aCopy;
  }
  if (bCopy) {
    if (p.transposeB)
      copyDense({p.b, b, p.n, p.k, p.ldb}, p.n, depth, bCopy);
    else
      copyDense({p.b, b, p.k, p.n, p.ldb}, depth, p.n, bCopy);
    b = bCopy;
  }
  if (!cCopy)
    return execute(a, b, c, rest);

  QLORA_RETURN_IF_ERROR(execute(a, b, cCopy, rest));
  const auto *sum = reinterpret_cast<const float *>(cCopy);
  parallelRanges(p.m, 1 + 65536 / p.n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      narrowSum(sum + row * p.n, p.beta, p.c, elementAt(c, p.c, row * p.ldc),
                p.n);
  });
  return Status::ok();
}

/// Describes the primitive, which will run with the number of threads that the
/// calling thread has now.
dnnl::matmul::primitive_desc describe(const GemmProblem &p,
                                      const dnnl::engine &engine) {
  const GemmCopies copies = copiesOf(p);
  const bool hasCopy = bool(copies.c);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (p.alpha != 1.0f)
    attributes.set_output_scales(0, {p.alpha});
  if (p.beta != 0.0f && !hasCopy) {
    dnnl::post_ops sum;
    sum.append_sum(p.beta);
    attributes.set_post_ops(sum);
  }
  const dnnl::matmul::desc product(
      denseDesc(p.isBF16() ? QLORA_DTYPE_BF16 : p.a, p.m, copies.depth,
                p.transposeA),
      denseDesc(p.isBF16() ? QLORA_DTYPE_BF16 : p.b, copies.depth, p.n,
                p.transposeB),
      denseDesc(hasCopy ? QLORA_DTYPE_F32 : p.c, p.m, p.n, false));
  return {product, attributes, engine};
}

} // namespace

static StatusOr<std::unique_ptr<Gemm>> createFitting(const GemmProblem &p,
                                                     uint64_t scratchBytes) {
  const GemmCopies copies = copiesOf(p);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const int64_t available = threadCount();
  for (int64_t threads = available; threads > 0; threads /= 2) {
    const ScopedThreads scoped(threads);
    const dnnl::matmul::primitive_desc desc = describe(p, engine);
    if (!std::string_view(desc.impl_info_str()).starts_with("brg:"))
      return Status::unavailable("oneDNN has no blocked matmul for this CPU");
    const uint64_t wanted = desc.scratchpad_desc().get_size();
    if (wanted <= scratchBytes && copies.bytes <= scratchBytes - wanted)
      return std::unique_ptr<Gemm>(
          std::make_unique<GemmPrimitive>(p, engine, desc));
  }
  return Status::unavailable("oneDNN needs more than {} bytes of scratch",
                             scratchBytes);
}

namespace {

/// Two GEMMs that split the depth: c := first, then c += second.
class GemmPair final : public Gemm {
public:
  GemmPair(const GemmProblem &problem, std::unique_ptr<Gemm> first,
           std::unique_ptr<Gemm> second, int64_t aOffset, int64_t bOffset)
      : p(problem), first(std::move(first)), second(std::move(second)),
        aOffset(aOffset), bOffset(bOffset) {}
  Status run(const void *a, const void *b, void *c, uint8_t *scratch) override {
    QLORA_RETURN_IF_ERROR(first->run(a, b, c, scratch));
    return second->run(elementAt(a, p.a, aOffset), elementAt(b, p.b, bOffset),
                       c, scratch);
  }

private:
  GemmProblem p;
  std::unique_ptr<Gemm> first, second;
  int64_t aOffset, bOffset;
};

} // namespace

static StatusOr<std::unique_ptr<Gemm>> createUnsplit(const GemmProblem &p,
                                                     uint64_t scratchBytes) {
  try {
    return createFitting(p, scratchBytes);
  } catch (const dnnl::error &error) {
    return Status::unavailable("oneDNN: {}", error.what());
  }
}

/// oneDNN 2.6 (brgemm_matmul_utils.cpp, bwd_w_par_k_blk) splits the depth of a
/// matmul with a transposed bf16 `a` among threads if the depth is a power of
/// two from 2048 on. Then the sum depends on the number of threads. Two GEMMs,
/// of the depths 1024 and k - 1024, avoid that.
static StatusOr<std::unique_ptr<Gemm>> createPair(const GemmProblem &p,
                                                  uint64_t scratchBytes) {
  if (p.c != QLORA_DTYPE_F32)
    return Status::unavailable("two matmuls would round their bf16 sum twice");
  GemmProblem first = p, second = p;
  second.k = 1024;
  second.beta = 1;
  first.k = p.k - second.k;
  QLORA_ASSIGN_OR_RETURN(std::unique_ptr<Gemm> firstGemm,
                         createUnsplit(first, scratchBytes));
  QLORA_ASSIGN_OR_RETURN(std::unique_ptr<Gemm> secondGemm,
                         createUnsplit(second, scratchBytes));
  return std::unique_ptr<Gemm>(std::make_unique<GemmPair>(
      p, std::move(firstGemm), std::move(secondGemm), first.k * p.lda,
      first.k * (p.transposeB ? 1 : p.ldb)));
}

StatusOr<std::unique_ptr<Gemm>> createGemmPrimitive(const GemmProblem &p,
                                                    uint64_t scratchBytes) {
  const bool isF32 = p.a == QLORA_DTYPE_F32 && p.b == QLORA_DTYPE_F32 &&
                     p.c == QLORA_DTYPE_F32;
  const bool isDense = p.isDenseA() && p.isDenseB() && p.isDenseC();
  if (!p.isBF16() && !(isF32 && isDense))
    return Status::unavailable(
        "oneDNN does not support these types or strides");
  // GemmTiles is as fast for these f32 GEMMs and does not split the depth.
  if (isF32 && (p.transposeA || p.k >= 16384))
    return Status::unavailable("oneDNN may split the depth among threads");
  if (p.transposeA && p.k >= 2048 && (p.k & (p.k - 1)) == 0)
    return createPair(p, scratchBytes);
  return createUnsplit(p, scratchBytes);
}

} // namespace qlora
