// SPDX-License-Identifier: MIT

// The launches of a module that are worth timing: each kernel with its types,
// constants and sizes once, however many commands ask for it; and what a
// module could ask for, had it been compiled otherwise: the decode of each
// stored weight, and attention at other lengths.

#ifndef QLORA_BENCH_MICROLAUNCHES_H
#define QLORA_BENCH_MICROLAUNCHES_H

#include <nlohmann/json.hpp>

#include "bench/MicroCard.h"
#include "runtime/Device/PreparedLaunches.h"
#include "runtime/Kernels/DeviceProfile.h"

namespace qlora {

struct MicroLaunch {
  std::string label; ///< of the first command
  LaunchKey key;     ///< equal for what is timed once
  int64_t count = 0; ///< in a micro-batch, or in an update; 0: in none
  bool isUpdate = false;
  const qlora_command *command = nullptr; ///< null: of no module
  const KernelRow *planned = nullptr;     ///< null: a generated kernel
  KernelRequest request = {};             ///< of a row
  /// Of attention that may have some: in each row of the batch. A module's own
  /// has one, as rows of full length have.
  int64_t segments = 1;
};

/// Of a module for CUDA, in the order of its commands; then decodes, then
/// attention with and without segments at `lengths`, of as many tokens.
std::vector<MicroLaunch> microLaunches(const LoadedModule &module,
                                       std::span<const int64_t> lengths);

/// All but the time and the name of the row, as gpu-micro prints it; `module`
/// is the launch's, and `row` is null for a generated kernel.
nlohmann::ordered_json describe(const LoadedModule &module,
                                const MicroLaunch &launch,
                                const DeviceProfile &rates,
                                const KernelRow *row = nullptr);

/// A request by names; constants in the order of Kernels.def.
KernelRequest microRequest(
    const char *op,
    std::initializer_list<std::pair<std::string_view, qlora_dtype>> types,
    std::vector<int64_t> constants);

/// Operands of a generated kernel.
std::vector<MicroOperand> microOperands(std::span<const qlora_operand> given);
/// Operands of a row, with ids, labels and segments that there may be.
std::vector<MicroOperand> microOperands(const KernelRow &row,
                                        const KernelRequest &request,
                                        int64_t segments = 1);

} // namespace qlora

#endif // QLORA_BENCH_MICROLAUNCHES_H
