// SPDX-License-Identifier: MIT

// `--target cuda`: units of CUDA C++, compiled by nvcc for every architecture.
//
// Unit 0 contains the generated kernels. Each hand-written file of
// runtime/Kernels/Cuda/Device is another unit. Each unit is compiled once per
// architecture, with at most one process per core. The cache key consists of
// the unit's text, the flags and the compiler's version. Units include no CUDA
// header, so ptxas takes most of the compile time.

#ifndef QLORA_COMPILER_CODEGEN_CUDATARGET_H
#define QLORA_COMPILER_CODEGEN_CUDATARGET_H

#include "compiler/Codegen/KernelCache.h"
#include "compiler/Codegen/Target.h"

namespace qlora {

/// One GPU architecture (cubin), or PTX for it and all later architectures.
struct CudaArch {
  uint32_t number = 0; ///< 10 * major + minor
  qlora_image_kind kind = QLORA_IMAGE_CUBIN;

  /// nvcc's name: sm_90, or compute_80 for PTX.
  std::string name() const;
};

class CudaTarget : public Target {
public:
  /// If `archs` is empty, kernels get no image and no compiler is needed. The
  /// plan of such a program can be read, but the program cannot run.
  CudaTarget(std::vector<CudaArch> archs, KernelCache cache,
             std::string compiler, ProgressListener progress = {})
      : archs(std::move(archs)), cache(std::move(cache)),
        compiler(std::move(compiler)), progress(std::move(progress)) {}

  std::string cpuFeatures() const override { return ""; }
  const KernelSpelling &spelling() const override { return cudaSpelling(); }
  StatusOr<CompiledKernels> compile(const std::vector<std::string> &functions,
                                    const ScratchFolder &folder) override;

  /// Parses architectures of `--cuda-arch`: 90 and sm_90 are a cubin,
  /// compute_80 is PTX. Returns them sorted, without duplicates.
  static StatusOr<std::vector<CudaArch>>
  parseArchs(const std::vector<std::string> &names);
  /// Returns "release 13.0" of `nvcc --version` as 13000, or kUnavailable if
  /// the text names no release.
  static StatusOr<uint32_t> parseVersion(std::string_view text);

private:
  std::vector<CudaArch> archs;
  KernelCache cache;
  std::string compiler;
  ProgressListener progress;
};

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_CUDATARGET_H
