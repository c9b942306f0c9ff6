// SPDX-License-Identifier: MIT

// Converts command tables to kernel requests.

#include "runtime/Module/LaunchRequest.h"

#include <algorithm>
#include <bit>

namespace qlora {

static constexpr std::string_view kWorkspace = "workspace";

const KernelRow *findLaunchRow(const LoadedModule &module,
                               const qlora_launch &launch) {
  const qlora_kernel &kernel = module.kernels()[launch.kernel];
  return isGenerated(kernel) ? nullptr : findKernelRow(kernel.name);
}

std::vector<std::optional<qlora_dtype>>
dtypesOf(std::span<const qlora_operand> operands) {
  std::vector<std::optional<qlora_dtype>> dtypes;
  for (const qlora_operand &operand : operands)
    dtypes.push_back(
        operand.bytes == 0
            ? std::nullopt
            : std::optional(static_cast<qlora_dtype>(operand.dtype)));
  return dtypes;
}

KernelRequest makeRequest(const LoadedModule &module,
                          const qlora_command &command, const KernelOp &op) {
  KernelRequest request{&op, dtypesOf(module.operands(command)), {}};
  const auto constants = module.constants(module.launches()[command.target]);
  request.constants.assign(constants.begin(), constants.end());
  return request;
}

uint64_t givenWorkspace(const LoadedModule &module,
                        const qlora_command &command, const KernelOp &op) {
  for (size_t i = 0; i < op.operands.size(); ++i)
    if (op.operands[i].name == kWorkspace)
      return module.operands(command)[i].bytes;
  return 0;
}

Status checkLaunchRow(const LoadedModule &module, const qlora_command &command,
                      const KernelRow &row, const KernelRequest &request) {
  if (const auto reason = row.reject(request))
    return Status::unavailable("{}: {}", row.fullName(), *reason);
  const uint64_t given = givenWorkspace(module, command, *row.op);
  const uint64_t needed = row.workspaceBytes(request);
  if (needed > given)
    return Status::unavailable(
        "{}: needs {} bytes of workspace, but the plan has {}", row.fullName(),
        needed, given);
  return checkOperands(row, request, module.operands(command));
}

Status checkOperands(const KernelRow &row, const KernelRequest &request,
                     std::span<const qlora_operand> operands) {
  const std::vector<uint64_t> bytes = row.op->operandBytes(request);
  for (size_t i = 0; i < operands.size(); ++i)
    if (operands[i].bytes < bytes[i])
      return Status::dataLoss(
          "{}: operand '{}' has {} bytes, but the kernel accesses {}",
          row.fullName(), row.op->operands[i].name, operands[i].bytes,
          bytes[i]);
  return Status::ok();
}

Status checkEnabled(const KernelRow &row,
                    std::span<const std::string> disabled) {
  if (std::find(disabled.begin(), disabled.end(), row.fullName()) ==
      disabled.end())
    return Status::ok();
  return Status::unavailable("disabled by --disable-kernels");
}

Status checkKernelNames(std::span<const std::string> names) {
  for (const std::string &name : names) {
    if (findKernelRow(name))
      continue;
    std::string rows;
    for (const KernelRow &row : kernelRows())
      rows += (rows.empty() ? "" : ", ") + row.fullName();
    return Status::invalid(
        "--disable-kernels: '{}' is not a kernel; choose from: {}", name, rows);
  }
  return Status::ok();
}

Status checkReferenceNames(std::span<const std::string> ops) {
  for (const std::string &op : ops) {
    if (findKernelRow(op + ".reference"))
      continue;
    std::string known;
    for (const KernelRow &row : kernelRows())
      if (row.isOracle)
        known += (known.empty() ? "" : ", ") + row.op->name;
    return Status::invalid(
        "--reference-kernels: '{}' has no reference kernel; choose from: {}",
        op, known);
  }
  return Status::ok();
}

qlora_access effectiveAccess(const LoadedModule &module,
                             const qlora_command &command, size_t operand) {
  const auto access =
      static_cast<qlora_access>(module.operands(command)[operand].access);
  if (command.kind != QLORA_COMMAND_LAUNCH || access != QLORA_READ_WRITE)
    return access;
  const qlora_launch &launch = module.launches()[command.target];
  const KernelRow *row = findLaunchRow(module, launch);
  if (!row || !row->op->operands[operand].isRead)
    return row ? QLORA_WRITE : access;
  const auto &names = row->op->constants;
  const auto beta = std::find(names.begin(), names.end(), "beta");
  if (beta == names.end())
    return access;
  const auto index = static_cast<size_t>(beta - names.begin());
  const double value = std::bit_cast<double>(module.constants(launch)[index]);
  return value == 0 ? QLORA_WRITE : access;
}

} // namespace qlora
