// SPDX-License-Identifier: MIT

// Formats commands as text.

#include "runtime/Module/ProgramText.h"

#include <fmt/format.h>

#include "runtime/Kernels/KernelTable.h"

namespace qlora {

static std::string operandText(const LoadedModule &module,
                               const qlora_operand &operand) {
  if (operand.bytes == 0)
    return "absent";
  const char *access = operand.access == QLORA_READ    ? "read"
                       : operand.access == QLORA_WRITE ? "write"
                                                       : "update";
  return fmt::format("{} {}+{:#x} [{} {}]", access,
                     arenaKindName(module.arenas()[operand.arena].kind),
                     operand.offset, operand.bytes,
                     dtypeName(static_cast<qlora_dtype>(operand.dtype)));
}

static std::string targetText(const LoadedModule &module,
                              const qlora_command &command) {
  switch (command.kind) {
  case QLORA_COMMAND_LAUNCH: {
    const qlora_launch &launch = module.launches()[command.target];
    std::string text = fmt::format("{}  {}", launch.label,
                                   module.kernels()[launch.kernel].name);
    if (launch.rows > 0)
      text += fmt::format(" rows {}", launch.rows);
    return text;
  }
  case QLORA_COMMAND_COLLECTIVE: {
    std::string text =
        fmt::format("{} {} over {}",
                    command.collective == QLORA_COLLECTIVE_ALL_REDUCE &&
                            command.group == QLORA_GROUP_DP
                        ? "bucket"
                        : "number",
                    command.target, groupName(command.group));
    if (command.peer != 0 || command.collective == QLORA_COLLECTIVE_BROADCAST)
      text += fmt::format(" peer {}", command.peer);
    return text;
  }
  case QLORA_COMMAND_RECORD:
  case QLORA_COMMAND_WAIT:
    return fmt::format("event {}", command.target);
  default:
    return "";
  }
}

std::string commandText(const LoadedModule &module,
                        const qlora_command &command) {
  std::string text =
      fmt::format("{:<13} {:<10} {}", queueName(command.queue),
                  commandName(command), targetText(module, command));
  for (const qlora_operand &operand : module.operands(command))
    text += "  " + operandText(module, operand);
  return text;
}

static std::string entriesText(const LoadedModule &module) {
  std::string text;
  for (const qlora_entry &entry : module.entries()) {
    text += fmt::format("entry {}", entryKindName(entry.kind));
    if (entry.batch > 0)
      text += fmt::format(" {} x {}", entry.batch, entry.length);
    text += fmt::format(": {} commands\n", entry.command_count);
    size_t number = 0;
    for (const qlora_command &command : module.commands(entry))
      text += fmt::format("{:>5} {}\n", number++, commandText(module, command));
  }
  return text;
}

std::string programText(const LoadedModule &module) {
  std::string text = fmt::format("program by {}", module.table().producer);
  if (const uint32_t version = module.table().cuda_version)
    text += ", device code by nvcc " + cudaVersionText(version);
  text += '\n';
  for (int stage = 0; stage < module.stages(); ++stage) {
    if (module.stages() > 1)
      text += fmt::format("stage {} of {}\n", stage, module.stages());
    text += entriesText(module.ofStage(stage));
  }
  return text;
}

} // namespace qlora
