// SPDX-License-Identifier: MIT

// The CPU as a device, and the reference for other devices. Commands of the
// compute and copy queues run in order on the caller's thread, with one OpenMP
// pool. The communication queue has a separate thread (CommunicationQueue.h).

#include "runtime/Base/HostMemory.h"
#include "runtime/Device/Cpu/CommunicationQueue.h"
#include "runtime/Device/Cpu/CpuTimer.h"
#include "runtime/Device/Cpu/SweepTurns.h"
#include "runtime/Device/Device.h"
#include "runtime/Device/PreparedLaunches.h"
#include "runtime/Kernels/LibraryKernel.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace qlora {

namespace {
/// Adds the time from its construction to its destruction to `seconds`.
class Exposed {
public:
  explicit Exposed(double &seconds) : seconds(seconds) {}
  ~Exposed() {
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                             start)
                   .count();
  }

private:
  double &seconds;
  const std::chrono::steady_clock::time_point start =
      std::chrono::steady_clock::now();
};

class CpuDevice final : public Device,
                        private DeviceGauges,
                        private SweepEntry {
public:
  explicit CpuDevice(const DeviceOptions &options);

  std::span<uint8_t> hostArena(uint32_t arena) override {
    return {bases[arena], module->arenas()[arena].bytes};
  }
  const DeviceGauges &gauges() const override { return *this; }
  std::optional<double> exposedCommunication() const override {
    const Collectives *all = options.collectives[QLORA_GROUP_DP];
    return all && all->size() > 1 ? std::optional(exposed) : std::nullopt;
  }

protected:
  Status allocate(FrozenArena *frozen) override;
  Status writeArena(uint32_t arena, uint64_t offset,
                    std::span<const uint8_t> data) override;
  Status readArena(uint32_t arena, uint64_t offset,
                   std::span<uint8_t> data) override;
  Status runRow(const KernelRow &row, const KernelRequest &request,
                std::span<const qlora_operand> operands) override;
  const KernelRow *rowOf(uint32_t launch) const override {
    return launches.row(launch);
  }
  Status beginEntry(const qlora_entry &entry) override;
  Status execute(const qlora_command &command) override;
  Status finishEntry() override;
  void cancel() override;
  StatusOr<std::unique_ptr<CommandTimer>> makeTimer() override {
    return std::unique_ptr<CommandTimer>(new CpuTimer(*communication));
  }

private:
  const std::string &order() const override { return *aheadOrder; }
  int64_t loopThreads() const override { return threads; }
  StatusOr<LaunchTogether> advance() override;
  size_t indexOf(const qlora_command &command) const {
    return static_cast<size_t>(&command - module->commands().data());
  }
  Status launch(const qlora_command &command);
  Status allocateArena(uint32_t index, FrozenArena *frozen);
  Status prepareQueue();
  void findShared();
  void runGenerated(const qlora_command &command);
  Status runNow(const qlora_command &command);

  SingleRank alone;
  int threads = 1;
  std::vector<HostMemory> memory; ///< per arena; empty for a shared arena
  std::vector<uint8_t *> bases;
  PreparedLaunches<LibraryKernel> launches;
  // For a run of a sweep:
  std::vector<bool> isShared; ///< per command: whether other runs may share it
  std::vector<std::string> sharedOrders; ///< per entry: SweepEntry::order()
  std::span<const qlora_command> ahead; ///< the entry's remaining commands
  const std::string *aheadOrder = nullptr;
  LibraryKernelArgs sharedArgs;
  std::unique_ptr<CommunicationQueue> communication;
  double exposed = 0; ///< seconds the compute thread waited for other ranks
};
} // namespace

CpuDevice::CpuDevice(const DeviceOptions &options)
    : Device(options, {.name = "cpu", .hasHostArenas = true}) {
  // In a sweep, finishEntry() runs the entry's commands, because other runs may
  // share them.
  isReplaying = options.turns != nullptr;
#ifdef _OPENMP
  threads = omp_get_max_threads();
#endif
}

Status CpuDevice::allocateArena(uint32_t index, FrozenArena *frozen) {
  const qlora_arena &arena = module->arenas()[index];
  std::span<uint8_t> shared;
  if (frozen && arena.kind == QLORA_ARENA_FROZEN)
    shared = frozen->bytes();
  else if (options.turns && arena.kind == QLORA_ARENA_WORKSPACE)
    shared = options.turns->workspace().first(arena.bytes);
  if (!shared.empty()) {
    bases.push_back(shared.data());
    allocated.push_back(shared.size());
    memory.emplace_back();
    return Status::ok();
  }
  auto mapped = HostMemory::anonymous(arena.bytes);
  if (!mapped.isOk())
    return mapped.status().withContext(
        fmt::format("{} arena", arenaKindName(arena.kind)));
  memory.push_back(std::move(mapped).value());
  bases.push_back(memory.back().bytes().data());
  allocated.push_back(memory.back().bytes().size());
  return Status::ok();
}

Status CpuDevice::allocate(FrozenArena *frozen) {
  if (module->table().target != QLORA_TARGET_CPU)
    return Status::invalid(
        "'{}' was not compiled for the CPU; compile it with --target cpu",
        module->path());
  for (uint32_t i = 0; i < module->arenas().size(); ++i)
    QLORA_RETURN_IF_ERROR(allocateArena(i, frozen));
  QLORA_RETURN_IF_ERROR(
      launches.prepare(*module, bases, options, prepareCpuKernel, notes));
  if (options.turns)
    findShared();
  return prepareQueue();
}

/// Finds the launches that several runs can share. Appends each, with the range
/// of frozen weights that it reads, to sharedOrders.
void CpuDevice::findShared() {
  isShared.assign(module->commands().size(), false);
  sharedOrders.assign(module->entries().size(), {});
  for (size_t i = 0; i < sharedOrders.size(); ++i)
    for (const qlora_command &command :
         module->commands(module->entries()[i])) {
      const size_t index = indexOf(command);
      LibraryKernel *kernel = command.kind == QLORA_COMMAND_LAUNCH
                                  ? launches.kernel(index)
                                  : nullptr;
      const std::string form = kernel ? kernel->sharedForm() : "";
      if (form.empty())
        continue;
      isShared[index] = true;
      sharedOrders[i] += form;
      for (const qlora_operand &operand : module->operands(command))
        if (module->arenas()[operand.arena].kind == QLORA_ARENA_FROZEN)
          sharedOrders[i] += fmt::format(
              " {}+{}", fmt::ptr(bases[operand.arena] + operand.offset),
              operand.bytes);
      sharedOrders[i] += '\n';
    }
}

Status CpuDevice::prepareQueue() {
  size_t mostCommands = 0;
  size_t mostEvents = 0;
  for (const qlora_entry &entry : module->entries()) {
    mostCommands = std::max<size_t>(mostCommands, entry.command_count);
    mostEvents = std::max<size_t>(mostEvents, entry.event_count);
  }
  communication = std::make_unique<CommunicationQueue>(
      [this](const qlora_command &command) { return runNow(command); },
      mostCommands, mostEvents);
  return Status::ok();
}

Status CpuDevice::writeArena(uint32_t arena, uint64_t offset,
                             std::span<const uint8_t> data) {
  std::copy(data.begin(), data.end(), bases[arena] + offset);
  return Status::ok();
}

Status CpuDevice::readArena(uint32_t arena, uint64_t offset,
                            std::span<uint8_t> data) {
  std::copy_n(bases[arena] + offset, data.size(), data.begin());
  return Status::ok();
}

Status CpuDevice::runRow(const KernelRow &row, const KernelRequest &request,
                         std::span<const qlora_operand> operands) {
  QLORA_ASSIGN_OR_RETURN(std::unique_ptr<LibraryKernel> kernel,
                         prepareCpuKernel(row, request, 0));
  return kernel->run({operandAddresses(operands, bases), &step, nullptr});
}

Status CpuDevice::beginEntry(const qlora_entry &entry) {
  if (options.turns) {
    aheadOrder =
        &sharedOrders[static_cast<size_t>(&entry - module->entries().data())];
    ahead = module->commands(entry);
  }
  communication->begin();
  return Status::ok();
}

StatusOr<LaunchTogether> CpuDevice::advance() {
  while (!ahead.empty()) {
    const qlora_command &command = ahead.front();
    ahead = ahead.subspan(1);
    const size_t index = indexOf(command);
    if (isShared[index]) {
      sharedArgs = {launches.buffers(command), &step, options.observer};
      return LaunchTogether{launches.kernel(index), &sharedArgs};
    }
    QLORA_RETURN_IF_ERROR(execute(command).withContext(commandName(command)));
  }
  return LaunchTogether();
}

Status CpuDevice::finishEntry() {
  if (!ahead.empty()) {
    const Status status = options.turns->run(options.run, *this);
    ahead = {};
    if (!status.isOk())
      cancel();
    QLORA_RETURN_IF_ERROR(status);
  }
  const Exposed timed(exposed);
  return communication->finish();
}

/// Splits the rows evenly over threads. Results do not depend on the split.
void CpuDevice::runGenerated(const qlora_command &command) {
  const qlora_launch &launch = module->launches()[command.target];
  const qlora_kernel_function function =
      module->kernels()[launch.kernel].function;
  const qlora_kernel_args args{launches.buffers(command).data(),
                               module->constants(launch).data(), &step};
  const int64_t parts = std::min<int64_t>(threads, launch.rows);
  if (parts <= 1) {
    function(&args, 0, launch.rows);
    return;
  }
#pragma omp parallel for schedule(static, 1) num_threads(threads)
  for (int64_t part = 0; part < parts; ++part)
    function(&args, launch.rows * part / parts,
             launch.rows * (part + 1) / parts);
}

Status CpuDevice::execute(const qlora_command &command) {
  if (command.kind == QLORA_COMMAND_LAUNCH)
    return launch(command);
  if (command.queue == QLORA_QUEUE_COMMUNICATION) {
    communication->push(command);
    return Status::ok();
  }
  if (command.kind == QLORA_COMMAND_RECORD) {
    communication->record(command.target);
    return Status::ok();
  }
  if (command.kind != QLORA_COMMAND_WAIT)
    return runNow(command);
  const Exposed timed(exposed);
  return communication->wait(command.target);
}

Status CpuDevice::launch(const qlora_command &command) {
  LibraryKernel *kernel = launches.kernel(indexOf(command));
  if (!kernel) {
    runGenerated(command);
    return Status::ok();
  }
  return kernel->run({launches.buffers(command), &step, options.observer});
}

/// Runs a fill, a copy or a collective on the calling thread.
Status CpuDevice::runNow(const qlora_command &command) {
  const auto buffers = launches.buffers(command);
  const uint64_t bytes = module->operands(command)[0].bytes;
  if (bytes == 0)
    return Status::ok();
  switch (command.kind) {
  case QLORA_COMMAND_FILL:
    std::memset(buffers[0], 0, bytes);
    return Status::ok();
  case QLORA_COMMAND_COPY:
    std::memcpy(buffers[0], buffers[1], bytes);
    return Status::ok();
  default:
    Collectives *group = options.collectives[command.group];
    return (group ? *group : alone)
        .run(CollectiveCall::of(*module, command, buffers));
  }
}

void CpuDevice::cancel() {
  communication->cancel();
  for (Collectives *group : options.collectives)
    if (group)
      group->abort();
}

std::unique_ptr<Device> createCpuDevice(const DeviceOptions &options) {
  return std::make_unique<CpuDevice>(options);
}

} // namespace qlora
