// SPDX-License-Identifier: MIT

// What code generation asks of a target. Everything else is shared.

#ifndef QLORA_COMPILER_CODEGEN_TARGET_H
#define QLORA_COMPILER_CODEGEN_TARGET_H

#include <string>
#include <vector>

#include "compiler/Codegen/KernelDialect.h"
#include "compiler/Codegen/Tools.h"
#include "runtime/Core/Status.h"

namespace qlora {

class Target {
public:
  virtual ~Target() = default;
  /// enum qlora_target.
  virtual uint32_t kind() const = 0;
  /// What the loader has to find in /proc/cpuinfo, comma-separated.
  virtual std::string cpuFeatures() const = 0;
  virtual const KernelDialect &dialect() const = 0;
  /// Compiles printed functions to objects in `folder`; returns their paths.
  /// The same functions give the same bytes.
  virtual StatusOr<std::vector<std::string>>
  compile(const std::vector<std::string> &functions,
          const ScratchFolder &folder) = 0;
};

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_TARGET_H
