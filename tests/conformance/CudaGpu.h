// SPDX-License-Identifier: MIT

// The GPU for CUDA kernels in conformance tests. By default, it is the software
// platform of tests/cuda, whose folder is in the tests' run path. To use a real
// GPU, put its driver's folder first in LD_LIBRARY_PATH, and set
// QLORA_CUDA_IMAGES to a folder of cubins, one per file of Kernels/Cuda/Device.

#ifndef QLORA_TESTS_CONFORMANCE_CUDAGPU_H
#define QLORA_TESTS_CONFORMANCE_CUDAGPU_H

#include <string>
#include <vector>

#include "runtime/Kernels/Cuda/CudaKernel.h"

namespace qlora {

/// A range of host memory that is copied to the device before a launch and back
/// after the launch. Its device address is `shift` bytes after an aligned
/// address. The operand begins `offset` bytes after the start of the range.
struct CudaOperand {
  std::span<uint8_t> bytes;
  uint64_t offset = 0, shift = 0;
  bool isAbsent = false;
};

/// The process has one instance, which must be used from one thread.
class CudaGpu final : public CudaContext {
public:
  /// Returns nullptr if there is no GPU; `reason` then returns the cause.
  static CudaGpu *get();
  static const std::string &reason();
  /// Returns whether the GPU is not the software platform.
  static bool isReal();

  const CudaDriver &driver() const override { return *driverTable; }
  const CublasLt &blas() const override { return *blasTable; }
  cublasLtHandle_t blasHandle() const override { return handle; }
  StatusOr<const CudnnHandle *> cudnn() override { return cudnnHandle.get(); }
  int multiprocessors() const override { return 1; }
  uint32_t arch() const override { return architecture; }
  StatusOr<CUfunction> function(std::string_view symbol) override;

  /// Launches the kernel once and waits for it. Captures a graph, or launches
  /// directly if there is an observer. A null `step` means that all rows may
  /// have labels.
  Status run(CudaKernel &kernel, std::span<const CudaOperand> operands,
             const qlora_step_block *step, KernelObserver *observer,
             bool hasOneSegment = false);

  static Status openInto(CudaGpu &gpu);

private:
  Status open();
  Status loadImages();
  /// Copies the bytes to new device memory and appends its address to `owned`.
  StatusOr<CUdeviceptr> upload(std::span<const uint8_t> bytes, uint64_t shift,
                               std::vector<CUdeviceptr> &owned);
  Status launch(CudaKernel &kernel, const CudaKernelArgs &args);

  const CudaDriver *driverTable = nullptr;
  const CublasLt *blasTable = nullptr;
  cublasLtHandle_t handle = nullptr;
  CudnnHandle cudnnHandle;
  uint32_t architecture = 0;
  CUstream stream = nullptr;
  std::vector<CUmodule> modules;
};

} // namespace qlora

#endif // QLORA_TESTS_CONFORMANCE_CUDAGPU_H
