// SPDX-License-Identifier: MIT

// Which launches share a kernel, and which rows may run one.

#include "runtime/Device/PreparedLaunches.h"

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

std::vector<const KernelRow *> candidateRows(const KernelRow &planned) {
  std::vector<const KernelRow *> rows;
  bool found = false;
  for (const KernelRow &row : kernelRows()) {
    found |= &row == &planned;
    if (found && row.op == planned.op && row.target == planned.target)
      rows.push_back(&row);
  }
  return rows;
}

} // namespace qlora
