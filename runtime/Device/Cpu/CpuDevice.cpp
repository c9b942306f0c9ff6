// SPDX-License-Identifier: MIT

// Arenas, kernels and queues of the CPU device.

#include "runtime/Device/Cpu/CpuDevice.h"

#include "runtime/Base/HostMemory.h"
#include "runtime/Device/Cpu/CommunicationQueue.h"
#include "runtime/Device/Cpu/CpuTimer.h"
#include "runtime/Device/PreparedLaunches.h"
#include "runtime/Kernels/LibraryKernel.h"

#include <algorithm>
#include <cstring>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace qlora {

namespace {
class CpuDevice final : public Device {
public:
  explicit CpuDevice(const DeviceOptions &options);

  std::string_view name() const override { return "cpu"; }
  std::span<uint8_t> hostArena(uint32_t arena) override {
    return {bases[arena], module->arenas()[arena].bytes};
  }
  bool hasHostArenas() const override { return true; }
  std::string kernelName(uint32_t launch) const override;

protected:
  Status allocate(FrozenArena *frozen) override;
  Status writeArena(uint32_t arena, uint64_t offset,
                    std::span<const uint8_t> data) override;
  Status readArena(uint32_t arena, uint64_t offset,
                   std::span<uint8_t> data) override;
  Status runRow(const KernelRow &row, const KernelRequest &request,
                std::span<const qlora_operand> operands) override;
  uint64_t allocatedBytes(uint32_t arena) const override {
    return sizes[arena];
  }
  Status beginEntry(const qlora_entry &entry) override;
  Status launch(const qlora_command &command) override;
  Status fill(const qlora_command &command) override {
    return runOrPush(command);
  }
  Status copy(const qlora_command &command) override {
    return runOrPush(command);
  }
  Status collective(const qlora_command &command) override {
    return runOrPush(command);
  }
  Status record(const qlora_command &command) override;
  Status wait(const qlora_command &command) override;
  Status finishEntry() override { return communication->finish(); }
  void cancel() override;
  StatusOr<std::unique_ptr<CommandTimer>> makeTimer() override {
    return std::unique_ptr<CommandTimer>(new CpuTimer(*communication));
  }

private:
  Status allocateArena(uint32_t index, FrozenArena *frozen);
  Status prepareQueue();
  void runGenerated(const qlora_command &command);
  Status runNow(const qlora_command &command);
  Status runOrPush(const qlora_command &command);

  SingleRank alone;
  Collectives *collectives;
  KernelObserver *observer;
  std::vector<std::string> disabledKernels, referenceKernels;
  int threads;
  std::vector<HostMemory> memory; ///< per arena; empty where shared
  std::vector<uint8_t *> bases;
  std::vector<uint64_t> sizes;
  PreparedLaunches<LibraryKernel> launches;
  std::unique_ptr<CommunicationQueue> communication;
};
} // namespace

CpuDevice::CpuDevice(const DeviceOptions &options)
    : collectives(options.collectives ? options.collectives : &alone),
      observer(options.observer), disabledKernels(options.disabledKernels),
      referenceKernels(options.referenceKernels), threads(1) {
  groupSize = collectives->size();
#ifdef _OPENMP
  // Generated and library kernels share the pool of this thread.
  if (options.threads > 0)
    omp_set_num_threads(options.threads);
  threads = omp_get_max_threads();
#endif
}

Status CpuDevice::allocateArena(uint32_t index, FrozenArena *frozen) {
  const qlora_arena &arena = module->arenas()[index];
  if (frozen && arena.kind == QLORA_ARENA_FROZEN) {
    bases.push_back(frozen->bytes().data());
    sizes.push_back(frozen->bytes().size());
    memory.emplace_back();
    return Status::ok();
  }
  auto mapped = HostMemory::anonymous(arena.bytes);
  if (!mapped.isOk())
    return mapped.status().withContext(
        fmt::format("{} arena", arenaKindName(arena.kind)));
  memory.push_back(std::move(mapped).value());
  bases.push_back(memory.back().bytes().data());
  sizes.push_back(memory.back().bytes().size());
  return Status::ok();
}

Status CpuDevice::allocate(FrozenArena *frozen) {
  if (module->table().target != QLORA_TARGET_CPU)
    return Status::invalid("'{}' was compiled for another target than the "
                           "cpu; compile it with --target cpu",
                           module->path());
  for (uint32_t i = 0; i < module->arenas().size(); ++i)
    QLORA_RETURN_IF_ERROR(allocateArena(i, frozen));
  QLORA_RETURN_IF_ERROR(launches.prepare(
      *module, bases,
      [this](const KernelRow &row, const KernelRequest &request,
             uint64_t workspace) -> StatusOr<std::unique_ptr<LibraryKernel>> {
        QLORA_RETURN_IF_ERROR(checkEnabled(row, disabledKernels));
        return prepareCpuKernel(row, request, workspace);
      },
      notes, referenceKernels));
  return prepareQueue();
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
  std::vector<void *> addresses;
  for (const qlora_operand &operand : operands)
    addresses.push_back(
        operand.bytes == 0 ? nullptr : bases[operand.arena] + operand.offset);
  return kernel->run({addresses, &step, nullptr});
}

Status CpuDevice::beginEntry(const qlora_entry &) {
  communication->begin();
  return Status::ok();
}

/// Splits the rows evenly; which thread takes which does not change a bit.
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

Status CpuDevice::launch(const qlora_command &command) {
  const auto index = static_cast<size_t>(&command - module->commands().data());
  LibraryKernel *kernel = launches.kernel(index);
  if (!kernel) {
    runGenerated(command);
    return Status::ok();
  }
  return kernel->run({launches.buffers(command), &step, observer});
}

/// Runs a command that is no launch on the thread it is called from.
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
    return collectives->run(CollectiveCall::of(*module, command, buffers));
  }
}

Status CpuDevice::runOrPush(const qlora_command &command) {
  if (command.queue != QLORA_QUEUE_COMMUNICATION)
    return runNow(command);
  communication->push(command);
  return Status::ok();
}

Status CpuDevice::record(const qlora_command &command) {
  if (command.queue == QLORA_QUEUE_COMMUNICATION)
    communication->push(command);
  else
    communication->record(command.target);
  return Status::ok();
}

Status CpuDevice::wait(const qlora_command &command) {
  if (command.queue == QLORA_QUEUE_COMMUNICATION)
    communication->push(command);
  else
    communication->wait(command.target);
  return Status::ok();
}

void CpuDevice::cancel() {
  communication->cancel();
  collectives->abort();
}

std::string CpuDevice::kernelName(uint32_t launch) const {
  const KernelRow *row = launches.row(launch);
  return row ? row->fullName() : Device::kernelName(launch);
}

std::unique_ptr<Device> createCpuDevice(const DeviceOptions &options) {
  return std::make_unique<CpuDevice>(options);
}

} // namespace qlora
