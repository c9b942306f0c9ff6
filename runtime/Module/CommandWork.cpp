// SPDX-License-Identifier: MIT

// Maps commands to kernels of the cost model.

#include "runtime/Module/CommandWork.h"

#include "runtime/Module/LaunchRequest.h"

#include <algorithm>

namespace qlora {

std::string_view stepPartName(StepPart part) {
  static constexpr std::string_view kNames[] = {
      "GEMM",         "thin GEMM",     "attention", "decode",
      "element-wise", "head and loss", "optimizer"};
  return kNames[size_t(part)];
}

static StepPart partOf(WorkCategory category) {
  switch (category) {
  case WorkCategory::kGemm:
    return StepPart::kGemm;
  case WorkCategory::kAttention:
    return StepPart::kAttention;
  case WorkCategory::kDecode:
    return StepPart::kDecode;
  case WorkCategory::kRows:
    return StepPart::kRows;
  case WorkCategory::kHead:
    return StepPart::kHead;
  }
  return StepPart::kRows;
}

static StepPart refinedPart(StepPart part, const Work &work,
                            const Demand &demand) {
  if (part != StepPart::kGemm)
    return part;
  // The decoding of a weight before its matmul is a kernel without GEMM FLOPs.
  if (work.gemmFlops() == 0 && work.decodedNumbers > 0)
    return StepPart::kDecode;
  return demand.isMemoryBound() ? StepPart::kThinGemm : part;
}

/// Returns the bytes that a command reads and writes of operand `i`: its size,
/// or twice its size if the command updates the operand.
static double operandBytes(const LoadedModule &module,
                           const qlora_command &command, size_t i) {
  const qlora_operand &operand = module.operands(command)[i];
  return double(operand.bytes - operand.skipped) *
         (effectiveAccess(module, command, i) == QLORA_READ_WRITE ? 2 : 1);
}

static double operandBytes(const LoadedModule &module,
                           const qlora_command &command) {
  double bytes = 0;
  for (size_t i = 0; i < command.operand_count; ++i)
    bytes += operandBytes(module, command, i);
  return bytes;
}

/// Returns the Kernels.def row of a library launch, else nullptr.
static const KernelRow *rowOf(const LoadedModule &module,
                              const qlora_command &command) {
  return command.kind == QLORA_COMMAND_LAUNCH
             ? findLaunchRow(module, module.launches()[command.target])
             : nullptr;
}

double bytesOverBus(const LoadedModule &module, const qlora_command &command) {
  const KernelRow *row = rowOf(module, command);
  const auto operands = module.operands(command);
  double bytes = 0;
  for (size_t i = 0; i < operands.size(); ++i)
    if (isOnHost(module.arenas()[operands[i].arena]) &&
        !(row && row->op->operands[i].isReadByRows))
      bytes += operandBytes(module, command, i);
  return bytes;
}

uint64_t collectiveBytes(const LoadedModule &module,
                         const qlora_command &command) {
  const auto operands = module.operands(command);
  return std::max(operands.front().bytes, operands.back().bytes);
}

std::vector<CommandKernel> kernelsOf(const LoadedModule &module,
                                     const qlora_command &command,
                                     bool isUpdate, const DeviceProfile &device,
                                     const KernelRow *runs) {
  if (command.kind != QLORA_COMMAND_LAUNCH &&
      command.kind != QLORA_COMMAND_FILL && command.kind != QLORA_COMMAND_COPY)
    return {};
  StepPart part = StepPart::kRows;
  std::vector<Work> works;
  if (const KernelRow *row = rowOf(module, command)) {
    const KernelRequest request = makeRequest(module, command, *row->op);
    part = partOf(categoryOf(*row->op));
    works = device.gpu ? cudaKernelWork(request, runs ? runs : row)
                       : std::vector<Work>{kernelWork(request)};
  } else {
    works = {rowWork(operandBytes(module, command), 0)};
  }
  std::vector<CommandKernel> kernels;
  for (const Work &work : works) {
    const Demand demand = demandOf(work, device);
    kernels.push_back(
        {isUpdate ? StepPart::kOptimizer : refinedPart(part, work, demand),
         work, demand});
  }
  if (!kernels.empty())
    kernels.front().demand.serial +=
        busSeconds(bytesOverBus(module, command), device);
  return kernels;
}

double flopsOf(const LoadedModule &module, const qlora_command &command) {
  const KernelRow *row = rowOf(module, command);
  return row ? neededFlops(makeRequest(module, command, *row->op)) : 0;
}

EntryFlops flopsOf(const LoadedModule &module, const qlora_entry &entry) {
  EntryFlops flops;
  for (const qlora_command &command : module.commands(entry)) {
    const KernelRow *row = rowOf(module, command);
    const bool isAttention =
        row && categoryOf(*row->op) == WorkCategory::kAttention;
    (isAttention ? flops.attention : flops.others) += flopsOf(module, command);
  }
  return flops;
}

} // namespace qlora
