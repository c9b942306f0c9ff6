// SPDX-License-Identifier: MIT

// Launches of a module that are worth timing: each kernel with its types,
// constants and sizes once, however many commands launch it. Also launches that
// the module would have if compiled otherwise: the decode of each stored
// weight, and attention at other lengths.

#ifndef QLORA_BENCH_MICROLAUNCHES_H
#define QLORA_BENCH_MICROLAUNCHES_H

#include <nlohmann/json.hpp>

#include "bench/MicroGpu.h"
#include "runtime/Device/PreparedLaunches.h"
#include "runtime/Kernels/DeviceProfile.h"

namespace qlora {

struct MicroLaunch {
  std::string label; ///< of the first command
  LaunchKey key;     ///< equal for launches that are timed once
  int64_t count = 0; ///< per micro-batch or update; 0: in neither
  bool isUpdate = false;
  const qlora_command *command = nullptr; ///< null: not from a module
  const KernelRow *planned = nullptr;     ///< null: a generated kernel
  KernelRequest request = {};             ///< of a kernel row
  /// Segments in each row of the batch, for attention. A module's own attention
  /// has one, as rows of full length have.
  int64_t segments = 1;
};

/// Returns a CUDA module's launches in the order of its commands, then decodes,
/// then attention at `lengths` of as many tokens, with and without segments.
std::vector<MicroLaunch> microLaunches(const LoadedModule &module,
                                       std::span<const int64_t> lengths);

/// Returns everything that gpu-micro prints, except the time and the name of
/// the row. `module` is the launch's; `row` is null for a generated kernel.
nlohmann::ordered_json describe(const LoadedModule &module,
                                const MicroLaunch &launch,
                                const DeviceProfile &rates,
                                const KernelRow *row = nullptr);

/// Makes a request from names; constants are in the order of Kernels.def.
KernelRequest microRequest(
    const char *op,
    std::initializer_list<std::pair<std::string_view, qlora_dtype>> types,
    std::vector<int64_t> constants);

/// Returns the operands of a generated kernel.
std::vector<MicroOperand> microOperands(std::span<const qlora_operand> given);
/// Returns the operands of a row, with valid ids, labels and segments.
std::vector<MicroOperand> microOperands(const KernelRow &row,
                                        const KernelRequest &request,
                                        int64_t segments = 1);

} // namespace qlora

#endif // QLORA_BENCH_MICROLAUNCHES_H
