// SPDX-License-Identifier: MIT

// Every launch command of a module, ready to run on the CPU: pointers
// resolved, library kernels prepared. Layers share kernels: commands of the
// same op, types, constants and workspace have one.

#ifndef QLORA_RUNTIME_DEVICE_CPU_PREPAREDLAUNCHES_H
#define QLORA_RUNTIME_DEVICE_CPU_PREPAREDLAUNCHES_H

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/Core/ModuleLoader.h"
#include "runtime/Kernels/LibraryKernel.h"

namespace qlora {

/// One library kernel and the row of Kernels.def that it is.
struct ChosenKernel {
  std::unique_ptr<LibraryKernel> kernel;
  const KernelRow *row = nullptr;
};

class PreparedLaunches {
public:
  /// Prepares all launches of `module`. `arenaBases` are the arenas'
  /// addresses. A row that is unavailable is passed over for the op's next
  /// one, with a line in `remarks`; a launch that no row can do is an error.
  Status prepare(const LoadedModule &module,
                 std::span<uint8_t *const> arenaBases,
                 std::vector<std::string> &remarks);

  /// The library kernel of a command; nullptr for a generated one.
  LibraryKernel *kernel(size_t commandIndex) const {
    return byCommand[commandIndex] ? byCommand[commandIndex]->kernel.get()
                                   : nullptr;
  }
  /// The row that runs a launch of the table; nullptr for a generated one.
  const KernelRow *row(uint32_t launch) const { return rowOfLaunch[launch]; }
  /// Addresses of a command's operands; null where absent.
  std::span<void *const> buffers(const qlora_command &command) const {
    return std::span(addresses).subspan(command.first_operand,
                                        command.operand_count);
  }

private:
  using Key = std::vector<int64_t>;
  StatusOr<ChosenKernel> choose(const LoadedModule &module,
                                const qlora_command &command,
                                const KernelRow &planned,
                                const KernelRequest &request,
                                std::vector<std::string> &remarks);

  std::map<Key, ChosenKernel> kernels;
  std::vector<const ChosenKernel *> byCommand; ///< per command
  std::vector<const KernelRow *> rowOfLaunch;
  std::vector<void *> addresses; ///< per operand of the module
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CPU_PREPAREDLAUNCHES_H
