// SPDX-License-Identifier: MIT

// The null device runs nothing. It checks commands for accesses outside arenas
// and for races between queues, counts commands, and allocates no arena.
// `qlora-run train.so --device null --gpus 8` needs no hardware.

#include "runtime/Device/Device.h"
#include "runtime/Module/AccessCheck.h"
#include "runtime/Module/LaunchRequest.h"
#include "runtime/Module/ModuleCheck.h"

#include <algorithm>

namespace qlora {

namespace {
class NullDevice final : public Device {
public:
  explicit NullDevice(const DeviceOptions &options)
      : Device(options, {.name = "null", .hasRanks = false}) {}

protected:
  Status allocate(FrozenArena *) override;
  Status writeArena(uint32_t, uint64_t, std::span<const uint8_t>) override {
    return Status::ok();
  }
  Status readArena(uint32_t, uint64_t, std::span<uint8_t> data) override {
    std::fill(data.begin(), data.end(), uint8_t{0});
    return Status::ok();
  }
  Status runRow(const KernelRow &, const KernelRequest &,
                std::span<const qlora_operand>) override {
    return Status::ok();
  }
  Status beginEntry(const qlora_entry &entry) override;
  Status execute(const qlora_command &command) override;
  Status finishEntry() override { return check.finish(results); }

private:
  std::vector<RangeUse> results; ///< results of the current entry
  AccessCheck check;
};
} // namespace

Status NullDevice::allocate(FrozenArena *) {
  QLORA_RETURN_IF_ERROR(checkTables(module->table()));
  for (const qlora_command &command : module->commands()) {
    if (command.kind != QLORA_COMMAND_LAUNCH)
      continue;
    const qlora_launch &launch = module->launches()[command.target];
    const KernelRow *row = findLaunchRow(*module, launch);
    if (!row)
      continue;
    Status status = checkLaunchRow(*module, command, *row,
                                   makeRequest(*module, command, *row->op));
    if (!status.isOk())
      return status.withContext(fmt::format("launch '{}'", launch.label));
  }
  return Status::ok();
}

Status NullDevice::beginEntry(const qlora_entry &entry) {
  std::vector<RangeUse> inputs;
  results.clear();
  const bool isLast = module->stage() + 1 == module->stages();
  for (const qlora_binding &binding : module->bindings(entry)) {
    const uint32_t kind = module->arenas()[binding.arena].kind;
    if (kind == QLORA_ARENA_GRADIENT && !isLast)
      continue; // only the last stage adds to the sums
    (kind == QLORA_ARENA_INPUT ? inputs : results)
        .push_back({kind, QLORA_READ, binding.offset, binding.bytes});
  }
  check.begin(entry.event_count, inputs);
  return Status::ok();
}

Status NullDevice::execute(const qlora_command &command) {
  if (command.kind == QLORA_COMMAND_RECORD)
    return check.record(command.queue, command.target);
  if (command.kind == QLORA_COMMAND_WAIT)
    return check.wait(command.queue, command.target);
  std::vector<RangeUse> uses;
  const auto operands = module->operands(command);
  for (size_t i = 0; i < operands.size(); ++i) {
    const qlora_operand &operand = operands[i];
    uses.push_back({module->arenas()[operand.arena].kind,
                    effectiveAccess(*module, command, i), operand.offset,
                    operand.bytes});
  }
  return check.access(command.queue, uses);
}

std::unique_ptr<Device> createNullDevice(const DeviceOptions &options) {
  return std::make_unique<NullDevice>(options);
}

} // namespace qlora
