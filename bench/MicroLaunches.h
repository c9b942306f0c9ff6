// SPDX-License-Identifier: MIT

// The launches that gpu-micro times. A module contributes one launch for each
// distinct combination of kernel, types, constants and sizes. Further launches
// show other compile options: the decode of each quantized weight, and
// attention at other sequence lengths.

#ifndef QLORA_BENCH_MICROLAUNCHES_H
#define QLORA_BENCH_MICROLAUNCHES_H

#include <nlohmann/json.hpp>

#include "bench/MicroGpu.h"
#include "runtime/Device/PreparedLaunches.h"
#include "runtime/Kernels/DeviceProfile.h"

namespace qlora {

struct MicroLaunch {
  /// What is computed, from the first command with this key. For launches that
  /// are not in the module: a text such as "decode of W".
  std::string label;
  LaunchKey key;     ///< launches with the same key are timed once
  int64_t count = 0; ///< per micro-batch or update; 0: not in the module
  bool isUpdate = false;
  const qlora_command *command = nullptr; ///< null: not in the module
  const KernelRow *planned = nullptr;     ///< null: a generated kernel
  KernelRequest request = {};             ///< for library kernels only
  /// For attention: segments in each row of the batch. The module's launches
  /// have 1, as for rows of full length.
  int64_t segments = 1;
};

/// Returns the launches of a CUDA module: first its commands in order, then
/// decodes, then attention at each of `lengths`, with and without segments. At
/// each length, the batch size is chosen such that batch * length is the
/// module's number of tokens.
std::vector<MicroLaunch> microLaunches(const LoadedModule &module,
                                       std::span<const int64_t> lengths);

/// Returns gpu-micro's output for a launch of `module`, except the time and the
/// name of the row. `row` is null for a generated kernel.
nlohmann::ordered_json describe(const LoadedModule &module,
                                const MicroLaunch &launch,
                                const DeviceProfile &rates,
                                const KernelRow *row = nullptr);

/// Makes a request for the library op `op`. `types` are pairs of an operand's
/// name and dtype. `constants` are in the order of Kernels.def.
KernelRequest microRequest(
    const char *op,
    std::initializer_list<std::pair<std::string_view, qlora_dtype>> types,
    std::vector<int64_t> constants);

/// Returns the operands of a generated kernel.
std::vector<MicroOperand> microOperands(std::span<const qlora_operand> given);
/// Returns the operands of a library kernel, with valid ids and labels.
std::vector<MicroOperand> microOperands(const KernelRow &row,
                                        const KernelRequest &request,
                                        int64_t segments = 1);

} // namespace qlora

#endif // QLORA_BENCH_MICROLAUNCHES_H
