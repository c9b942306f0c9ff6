// SPDX-License-Identifier: MIT

// Computes keys of launches, and the rows that may run a launch.

#include "runtime/Device/PreparedLaunches.h"

#include <algorithm>

namespace qlora {

LaunchKey launchKey(const LoadedModule &module, const qlora_command &command,
                    const KernelRequest &request) {
  LaunchKey key = {
      module.launches()[command.target].kernel,
      static_cast<int64_t>(givenWorkspace(module, command, *request.op))};
  for (const auto &dtype : request.dtypes)
    key.push_back(dtype ? *dtype : -1);
  key.insert(key.end(), request.constants.begin(), request.constants.end());
  return key;
}

std::vector<void *> operandAddresses(std::span<const qlora_operand> operands,
                                     std::span<uint8_t *const> arenaBases) {
  std::vector<void *> addresses;
  for (const qlora_operand &operand : operands)
    addresses.push_back(operand.bytes == 0
                            ? nullptr
                            : arenaBases[operand.arena] + operand.offset);
  return addresses;
}

std::vector<const KernelRow *>
candidateRows(const KernelRow &planned,
              std::span<const std::string> references) {
  const bool wantsOracle =
      std::ranges::find(references, planned.op->name) != references.end();
  std::vector<const KernelRow *> rows;
  bool found = false;
  for (const KernelRow &row : kernelRows()) {
    found |= &row == &planned;
    if (row.op != planned.op || row.target != planned.target)
      continue;
    if (wantsOracle ? row.isOracle
                    : found && (!row.isOracle || &row == &planned))
      rows.push_back(&row);
  }
  return rows;
}

Status noRowLeft(const KernelRow &planned, const Status &refusal) {
  if (refusal.isOk())
    return Status::unavailable(
        "--reference-kernels: {} has no reference kernel for "
        "target {}; remove it",
        planned.op->name, planned.target);
  const KernelRow *oracle = findKernelRow(planned.op->name + ".reference");
  if (refusal.code() != StatusCode::kUnavailable || !oracle ||
      oracle->target != planned.target || &planned == oracle)
    return refusal;
  return Status::unavailable(
      "{}; use --reference-kernels {} to run the slow reference kernel",
      refusal.message(), planned.op->name);
}

} // namespace qlora
