// SPDX-License-Identifier: MIT

// Chooses and prepares kernels, once, at load.

#include "runtime/Device/Cpu/PreparedLaunches.h"

#include "runtime/Device/LaunchRequest.h"

namespace qlora {

/// What makes two launches the same kernel.
static std::vector<int64_t>
makeKey(uint32_t kernel, const KernelRequest &request, uint64_t workspace) {
  std::vector<int64_t> key = {kernel, static_cast<int64_t>(workspace)};
  for (const auto &dtype : request.dtypes)
    key.push_back(dtype ? *dtype : -1);
  key.insert(key.end(), request.constants.begin(), request.constants.end());
  return key;
}

/// The planned row, then those after it of the same op and target.
static std::vector<const KernelRow *> candidates(const KernelRow &planned) {
  std::vector<const KernelRow *> rows;
  bool found = false;
  for (const KernelRow &row : kernelRows()) {
    found |= &row == &planned;
    if (found && row.op == planned.op && row.target == planned.target)
      rows.push_back(&row);
  }
  return rows;
}

StatusOr<ChosenKernel>
PreparedLaunches::choose(const LoadedModule &module,
                         const qlora_command &command, const KernelRow &planned,
                         const KernelRequest &request,
                         std::vector<std::string> &remarks) {
  const std::string label = module.launches()[command.target].label;
  const uint64_t workspace = givenWorkspace(module, command, *planned.op);
  Status last;
  for (const KernelRow *row : candidates(planned)) {
    last = checkLaunchRow(module, command, *row, request);
    if (last.isOk()) {
      auto kernel = prepareCpuKernel(*row, request, workspace);
      if (kernel.isOk())
        return ChosenKernel{std::move(kernel).value(), row};
      last = kernel.status().withContext(row->fullName());
    }
    if (last.code() != StatusCode::kUnavailable)
      break;
    remarks.push_back(fmt::format("launch '{}': {}", label, last.message()));
  }
  return last.withContext(fmt::format("launch '{}'", label));
}

Status PreparedLaunches::prepare(const LoadedModule &module,
                                 std::span<uint8_t *const> arenaBases,
                                 std::vector<std::string> &remarks) {
  for (const qlora_operand &operand : module.operands())
    addresses.push_back(operand.bytes == 0
                            ? nullptr
                            : arenaBases[operand.arena] + operand.offset);
  byCommand.assign(module.commands().size(), nullptr);
  rowOfLaunch.assign(module.launches().size(), nullptr);
  for (size_t i = 0; i < module.commands().size(); ++i) {
    const qlora_command &command = module.commands()[i];
    if (command.kind != QLORA_COMMAND_LAUNCH)
      continue;
    const qlora_launch &launch = module.launches()[command.target];
    const KernelRow *planned = findLaunchRow(module, launch);
    if (!planned)
      continue;
    const KernelRequest request = makeRequest(module, command, *planned->op);
    Key key = makeKey(launch.kernel, request,
                      givenWorkspace(module, command, *planned->op));
    auto found = kernels.find(key);
    if (found == kernels.end()) {
      QLORA_ASSIGN_OR_RETURN(
          ChosenKernel kernel,
          choose(module, command, *planned, request, remarks));
      found = kernels.emplace(std::move(key), std::move(kernel)).first;
    } else {
      // The kernel is shared, the operands' sizes are this command's own.
      QLORA_RETURN_IF_ERROR(
          checkLaunchRow(module, command, *found->second.row, request)
              .withContext(fmt::format("launch '{}'", launch.label)));
    }
    byCommand[i] = &found->second;
    rowOfLaunch[command.target] = found->second.row;
  }
  return Status::ok();
}

} // namespace qlora
