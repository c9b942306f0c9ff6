// SPDX-License-Identifier: MIT

// The target-specific part of code generation.

#ifndef QLORA_COMPILER_CODEGEN_TARGET_H
#define QLORA_COMPILER_CODEGEN_TARGET_H

#include <string>
#include <vector>

#include "compiler/Codegen/KernelSpelling.h"
#include "compiler/Codegen/Tools.h"
#include "runtime/ABI/module.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// A compiled device image (qlora_image) whose bytes are in a file.
struct DeviceImage {
  std::string file;
  uint32_t unit = 0;
  qlora_image_kind kind = QLORA_IMAGE_CUBIN;
  uint32_t arch = 0;
};

/// Files of compiled kernels.
struct CompiledKernels {
  std::vector<std::string> objects; ///< linked into train.so
  std::vector<DeviceImage> images;  ///< embedded in train.so as data
  uint32_t cudaVersion = 0;         ///< qlora_module::cuda_version
};

class Target {
public:
  virtual ~Target() = default;
  /// CPU features that the loader requires in /proc/cpuinfo, comma-separated.
  virtual std::string cpuFeatures() const = 0;
  virtual const KernelSpelling &spelling() const = 0;
  /// Compiles printed functions to files in `folder`. The same functions give
  /// the same bytes.
  virtual StatusOr<CompiledKernels>
  compile(const std::vector<std::string> &functions,
          const ScratchFolder &folder) = 0;
};

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_TARGET_H
