// SPDX-License-Identifier: MIT

// `--target cpu`: kernels are host C++, compiled by clang 22.
//
// clang is used even if another compiler built qloracc: the kernels' text
// relies on clang's vectorizers, and the output bytes depend on its version.

#ifndef QLORA_COMPILER_CODEGEN_CPUTARGET_H
#define QLORA_COMPILER_CODEGEN_CPUTARGET_H

#include "compiler/Codegen/CpuLevel.h"
#include "compiler/Codegen/KernelCache.h"
#include "compiler/Codegen/Target.h"

namespace qlora {

class CpuTarget : public Target {
public:
  CpuTarget(CpuLevel level, KernelCache cache, std::string clang,
            ProgressListener progress = {})
      : level(std::move(level)), cache(std::move(cache)),
        clang(std::move(clang)), progress(std::move(progress)) {}

  std::string cpuFeatures() const override { return level.features; }
  const KernelSpelling &spelling() const override { return hostSpelling(); }
  StatusOr<CompiledKernels> compile(const std::vector<std::string> &functions,
                                    const ScratchFolder &folder) override;

private:
  std::vector<std::string> flags() const;

  CpuLevel level;
  KernelCache cache;
  std::string clang;
  ProgressListener progress;
};

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_CPUTARGET_H
