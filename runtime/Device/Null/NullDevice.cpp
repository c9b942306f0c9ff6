// SPDX-License-Identifier: MIT

// Checks instead of running.

#include "runtime/Device/Null/NullDevice.h"

#include "runtime/Device/Null/AccessCheck.h"
#include "runtime/Module/LaunchRequest.h"

#include <algorithm>

namespace qlora {

namespace {
class NullDevice final : public Device {
public:
  explicit NullDevice(int ranks) { groupSize = ranks; }
  std::string_view name() const override { return "null"; }
  std::span<uint8_t> hostArena(uint32_t) override { return {}; }
  bool hasHostArenas() const override { return false; }

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
  uint64_t allocatedBytes(uint32_t) const override { return 0; }
  Status beginEntry(const qlora_entry &entry) override;
  Status launch(const qlora_command &command) override {
    return access(command);
  }
  Status fill(const qlora_command &command) override { return access(command); }
  Status copy(const qlora_command &command) override { return access(command); }
  Status collective(const qlora_command &command) override {
    return access(command);
  }
  Status record(const qlora_command &command) override {
    check.record(command.queue, command.target);
    return Status::ok();
  }
  Status wait(const qlora_command &command) override {
    check.wait(command.queue, command.target);
    return Status::ok();
  }
  Status finishEntry() override { return Status::ok(); }

private:
  Status access(const qlora_command &command);
  Status accessOperands(const qlora_command &command, qlora_access kind);

  AccessCheck check;
};
} // namespace

Status NullDevice::allocate(FrozenArena *) {
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
  // The other arenas hold what an earlier entry or the runtime wrote.
  std::vector<bool> mustBeWritten;
  for (const qlora_arena &arena : module->arenas())
    mustBeWritten.push_back(arena.kind == QLORA_ARENA_ACTIVATION);
  check.begin(std::move(mustBeWritten), entry.event_count);
  return Status::ok();
}

Status NullDevice::accessOperands(const qlora_command &command,
                                  qlora_access kind) {
  const auto operands = module->operands(command);
  for (size_t i = 0; i < operands.size(); ++i) {
    const qlora_operand &operand = operands[i];
    if (!(effectiveAccess(*module, command, i) & kind))
      continue;
    Status status = kind == QLORA_READ
                        ? check.read(command.queue, operand.arena,
                                     operand.offset, operand.bytes)
                        : check.write(command.queue, operand.arena,
                                      operand.offset, operand.bytes);
    if (!status.isOk())
      return status.withContext(
          fmt::format("operand {} in the {} arena", i,
                      arenaKindName(module->arenas()[operand.arena].kind)));
  }
  return Status::ok();
}

Status NullDevice::access(const qlora_command &command) {
  QLORA_RETURN_IF_ERROR(accessOperands(command, QLORA_READ));
  return accessOperands(command, QLORA_WRITE);
}

std::unique_ptr<Device> createNullDevice(const DeviceOptions &options) {
  return std::make_unique<NullDevice>(options.ranks);
}

} // namespace qlora
