// SPDX-License-Identifier: MIT

// What the commands of a module ask of a device: the kernels of each, with
// their work (CostModel.h) and the part of a step that they count under. For
// predictions (Predict/StepPrediction.h) and profiles (Watch/Profiler.h).
//
// A library launch does what its row's host code would launch; a generated
// kernel reads or writes each operand once. What it touches in host memory comes
// over the bus, in seconds that nothing hides.

#ifndef QLORA_RUNTIME_MODULE_COMMANDWORK_H
#define QLORA_RUNTIME_MODULE_COMMANDWORK_H

#include <string_view>
#include <vector>

#include "runtime/Kernels/CostModel.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// What a kernel of a step is counted under. A GEMM that its bytes bound, with
/// the conversions of its operands, is thin: LoRA's are. All of UPDATE is the
/// optimizer. Zeroing and copies are rows.
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

/// One of the kernels that do a command, one after another.
struct CommandKernel {
  StepPart part;
  Work work;
  Demand demand; ///< of `work` on the device asked about
};

/// Of a LAUNCH, FILL or COPY; empty for the others. `isUpdate`: the command is
/// one of UPDATE. `row` is who runs a library launch, where that is another
/// than the module names.
std::vector<CommandKernel> kernelsOf(const LoadedModule &module,
                                     const qlora_command &command,
                                     bool isUpdate,
                                     const DeviceProfile &device,
                                     const KernelRow *row = nullptr);

/// Bytes of a command's operands that are on the host of a card, read or written;
/// not of tables of which a kernel reads rows.
double bytesOverBus(const LoadedModule &module, const qlora_command &command);

/// neededFlops of a command's launch; 0 for every other command.
double flopsOf(const LoadedModule &module, const qlora_command &command);

/// The same of all commands of an entry; attention's grow with the pairs of
/// tokens, all others with tokens.
struct EntryFlops {
  double attention = 0;
  double others = 0;
};
EntryFlops flopsOf(const LoadedModule &module, const qlora_entry &entry);

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_COMMANDWORK_H
