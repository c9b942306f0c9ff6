// SPDX-License-Identifier: MIT

// The command loop.

#include "runtime/Device/Executor.h"

namespace qlora {

/// "accumulate, command 17 (launch 'layers.0.mlp/swiglu')".
static std::string describe(const LoadedModule &module,
                            const qlora_entry &entry, size_t number,
                            const qlora_command &command) {
  std::string kind(commandName(command));
  if (command.kind == QLORA_COMMAND_LAUNCH)
    kind += fmt::format(" '{}'", module.launches()[command.target].label);
  return fmt::format("{}, command {} ({})", entryKindName(entry.kind), number,
                     kind);
}

Status runEntry(Device &device, const LoadedModule &module,
                const qlora_entry &entry, const qlora_step_block &step,
                bool onAllRanks) {
  QLORA_RETURN_IF_ERROR(device.begin(entry, step, onAllRanks));
  const auto commands = module.commands(entry);
  for (size_t i = 0; i < commands.size(); ++i) {
    Status status = device.enqueue(commands[i]);
    if (status.isOk())
      continue;
    // Its error is the one just seen: queues must end before we leave.
    (void)device.synchronize();
    return status.withContext(describe(module, entry, i, commands[i]));
  }
  return device.synchronize().withContext(entryKindName(entry.kind));
}

} // namespace qlora
