// SPDX-License-Identifier: MIT

// The kernels of a module's commands, with their work (CostModel.h) and their
// StepPart. Used by predictions (Predict/StepPrediction.h) and profiles
// (Watch/Profiler.h).
//
// A library launch counts the kernels that its row's host code would launch. A
// generated kernel reads or writes each operand once. Accesses to host memory
// take time on the bus, which overlaps with nothing.

#ifndef QLORA_RUNTIME_MODULE_COMMANDWORK_H
#define QLORA_RUNTIME_MODULE_COMMANDWORK_H

#include <string_view>
#include <vector>

#include "runtime/Kernels/CostModel.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Category of a kernel in a step. A memory-bound GEMM, such as LoRA's, is
/// kThinGemm, as are the conversions of its operands. Every kernel of UPDATE is
/// kOptimizer. Zeroing and copies are kRows.
enum class StepPart {
  kGemm,
  kThinGemm,
  kAttention,
  kDecode,
  kRows,
  kHead,
  kOptimizer,
  kCount
};
std::string_view stepPartName(StepPart part);

/// One of the kernels that execute a command, one after another.
struct CommandKernel {
  StepPart part;
  Work work;
  Demand demand; ///< demand of `work` on the given device
};

/// Returns the kernels of a LAUNCH, FILL or COPY; none for other commands.
/// `isUpdate`: the command is in UPDATE. `row`: the row of Kernels.def that
/// executes a library launch; null: the row that the module names.
std::vector<CommandKernel> kernelsOf(const LoadedModule &module,
                                     const qlora_command &command,
                                     bool isUpdate, const DeviceProfile &device,
                                     const KernelRow *row = nullptr);

/// Bytes that a command of a GPU reads or writes in host memory, except in
/// tables from which a kernel reads single rows.
double bytesOverBus(const LoadedModule &module, const qlora_command &command);

/// Returns the bytes of a collective's larger operand. For an all-gather or a
/// reduce-scatter this operand has the shards of all ranks.
uint64_t collectiveBytes(const LoadedModule &module,
                         const qlora_command &command);

/// Returns the FLOPs (neededFlops) of a launch; 0 for other commands.
double flopsOf(const LoadedModule &module, const qlora_command &command);

/// FLOPs of an entry's commands. Attention FLOPs grow with the pairs of tokens,
/// other FLOPs with the number of tokens.
struct EntryFlops {
  double attention = 0;
  double others = 0;
};
EntryFlops flopsOf(const LoadedModule &module, const qlora_entry &entry);

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_COMMANDWORK_H
