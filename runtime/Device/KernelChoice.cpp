// SPDX-License-Identifier: MIT

#include "runtime/Device/KernelChoice.h"

#include <set>

#include "runtime/Module/LaunchRequest.h"

namespace qlora {

static bool hasAlternatives(const KernelRow &row) {
  return std::any_of(kernelRows().begin(), kernelRows().end(),
                     [&](const KernelRow &other) {
                       return other.op == row.op && &other != &row &&
                              other.target == row.target && !other.isOracle;
                     });
}

std::string kernelsText(const LoadedModule &module, const Device &device) {
  std::set<std::pair<const KernelRow *, const KernelRow *>> choices;
  for (uint32_t i = 0; i < module.launches().size(); ++i)
    if (const KernelRow *planned = findLaunchRow(module, module.launches()[i])) {
      const KernelRow *runs = findKernelRow(device.kernelName(i));
      if (runs != planned || hasAlternatives(*planned))
        choices.emplace(runs, planned);
    }
  // Rows are in one array, so that pointers to them have its order.
  std::vector<std::string> names;
  for (const auto &[row, planned] : choices) {
    names.push_back(row->fullName());
    if (row != planned)
      names.back() += " (planned: ." + planned->implementation + ")";
  }
  return names.empty()
             ? ""
             : fmt::format("  kernels  {}\n", fmt::join(names, ", "));
}

} // namespace qlora
