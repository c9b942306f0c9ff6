// SPDX-License-Identifier: MIT

// Runs the commands of a module on one GPU.

#include "runtime/Device/Cuda/CudaDevice.h"

#include "runtime/Device/Cuda/CudaArenas.h"
#include "runtime/Device/Cuda/CudaGraphs.h"
#include "runtime/Device/Cuda/CudaImages.h"
#include "runtime/Device/Cuda/CudaTimer.h"
#include "runtime/Device/Cuda/CudaTransfers.h"
#include "runtime/Device/Cuda/GemmTuner.h"
#include "runtime/Device/Cuda/NcclCollectives.h"
#include "runtime/Device/Cuda/NvmlApi.h"
#include "runtime/Device/PreparedLaunches.h"
#include "runtime/Kernels/Cuda/CudaKernel.h"

#include <algorithm>

namespace qlora {

/// Bytes of the pinned transfer buffer. It is large, so that waits for events
/// take little time compared with the copies.
static constexpr uint64_t kTransferBytes = uint64_t{32} << 20;

/// Maximum wait for work to end: once before an abort, once after it.
static constexpr auto kEndBound = std::chrono::seconds(1);

namespace {
class CudaDevice final : public Device,
                         public DeviceGauges,
                         public AsyncDevice,
                         public CudaContext {
public:
  CudaDevice(const DeviceOptions &options, const CudaDriver &driver,
             const Nccl *nccl, CudaGpu gpu)
      : Device(options, {.name = "cuda", .hardware = gpu.name, .lead = 1}),
        api(driver), nccl(nccl), gpu(std::move(gpu)),
        tuner(options.gemmTable, options.gemmCache) {}
  ~CudaDevice() override;

  const DeviceGauges &gauges() const override { return *this; }
  std::vector<ReserveUse> reserve() const override;
  GpuReadings readings() const override;

  AsyncDevice *async() override { return this; }
  bool endWork() override;
  Status startReadArena(uint32_t arena, uint64_t offset,
                        uint64_t bytes) override {
    return reads.start(arenas.address(arena) + offset, bytes);
  }
  Status finishReadArena(std::span<uint8_t> data) override {
    return reads.finish(data);
  }

  // Overrides of CudaContext, which library kernels use.
  const CudaDriver &driver() const override { return api; }
  const CublasLt &blas() const override { return *blasHandleOwner.library; }
  cublasLtHandle_t blasHandle() const override {
    return blasHandleOwner.handle;
  }
  StatusOr<const CudnnHandle *> cudnn() override { return cudnnHandle.get(); }
  int multiprocessors() const override { return gpu.multiprocessors; }
  uint32_t arch() const override { return gpu.arch; }
  StatusOr<CUfunction> function(std::string_view symbol) override {
    return images.function(symbol);
  }

protected:
  Status allocate(FrozenArena *frozen) override;
  Status writeArena(uint32_t arena, uint64_t offset,
                    std::span<const uint8_t> data) override {
    return transfers.write(arenas.address(arena) + offset, data);
  }
  Status readArena(uint32_t arena, uint64_t offset,
                   std::span<uint8_t> data) override {
    return transfers.read(arenas.address(arena) + offset, data);
  }
  Status runRow(const KernelRow &row, const KernelRequest &request,
                std::span<const qlora_operand> operands) override;
  const KernelRow *rowOf(uint32_t launch) const override {
    return launches.row(launch);
  }
  Status beginEntry(const qlora_entry &entry) override;
  Status execute(const qlora_command &command) override;
  Status finishEntry() override;
  void cancel() override { isCancelled = true; }
  StatusOr<std::unique_ptr<CommandTimer>> makeTimer() override {
    return CudaTimer::create(api, queues);
  }

private:
  Status launch(const qlora_command &command);
  Status fill(const qlora_command &command);
  Status copy(const qlora_command &command);
  Status collective(const qlora_command &command);
  Status prepareQueues();
  Status prepareKernels();
  Status prepareLaunches();
  GroupCollectives usedGroups() const;
  Status connectRanks();
  bool isForSeveral(const qlora_command &command) const {
    const Collectives *group = options.collectives[command.group];
    return group && group->size() > 1;
  }
  size_t graphIndex() const {
    return (entryIndex * kLabelShares + share.index) * kSegmentKinds +
           (hasOneSegment ? 1 : 0);
  }
  const qlora_step_block *deviceStep() const {
    return reinterpret_cast<const qlora_step_block *>(arenas.step());
  }
  bool isObserved() const {
    return options.observer && options.observer->onLogits;
  }
  /// NCCL needs the same graphs on all ranks, so an entry with collectives has
  /// a graph only if all ranks run it.
  bool mayHaveGraph() const { return onAllRanks || !isShared[entryIndex]; }
  CUdeviceptr address(const qlora_operand &operand) const {
    return arenas.address(operand.arena) + operand.offset;
  }

  const CudaDriver &api;
  const Nccl *nccl; ///< null: opened when it is needed

  // The order matters: members are destroyed from the last to the first.
  CudaGpu gpu;
  CudaMemoryInfo before; ///< GPU memory just after the context was created
  mutable CudaMemoryInfo measured; ///< GPU memory at the latest measurement
  CudaImages images;
  GeneratedKernels generated;
  CudaArenas arenas;
  CudaQueues queues;
  std::unique_ptr<NcclCollectives> ranks; ///< null: no collectives to run
  CudaTransfers transfers;
  CudaReads reads;
  CublasHandle blasHandleOwner;
  CudnnHandle cudnnHandle;
  GemmTuner tuner;
  PreparedLaunches<CudaKernel> launches;
  CudaGraphs graphs;

  std::vector<QueueUse> queuesOfEntry;
  std::vector<bool> isShared; ///< per entry: whether it has collectives
  size_t entryIndex = 0;
  LabelShare share; ///< selects the graph of the current entry
  bool isCancelled = false;
};
} // namespace

CudaDevice::~CudaDevice() {
  // Memory must not be freed while work uses it.
  if (ranks)
    (void)endWork();
  else if (queues.compute())
    (void)queues.synchronize();
  dropTimer();
}

/// Waits briefly for the end of all work; aborts collectives that do not end.
bool CudaDevice::endWork() {
  if (!ranks || queues.endWithin(kEndBound))
    return true;
  ranks->abort();
  return queues.endWithin(kEndBound);
}

Status CudaDevice::prepareQueues() {
  size_t mostEvents = 0;
  for (const qlora_entry &entry : module->entries()) {
    mostEvents = std::max<size_t>(mostEvents, entry.event_count);
    const auto commands = module->commands(entry);
    queuesOfEntry.push_back(queuesOf(commands));
    isShared.push_back(
        std::ranges::any_of(commands, [](const qlora_command &command) {
          return command.kind == QLORA_COMMAND_COLLECTIVE;
        }));
  }
  QLORA_RETURN_IF_ERROR(queues.create(api, mostEvents));
  graphs.create(api, queues.compute(),
                module->entries().size() * kLabelShares * kSegmentKinds);
  QLORA_RETURN_IF_ERROR(reads.create(api, queues));
  return transfers.create(api, queues, kTransferBytes);
}

Status CudaDevice::prepareKernels() {
  QLORA_RETURN_IF_ERROR(generated.prepare(*module, images));
  if (generated.count() == module->kernels().size())
    return prepareLaunches();
  QLORA_RETURN_IF_ERROR(blasHandleOwner.create());
  QLORA_RETURN_IF_ERROR(tuner.begin(gpu, api, blas(), gemms));
  QLORA_RETURN_IF_ERROR(prepareLaunches());
  QLORA_RETURN_IF_ERROR(
      tuner.finish(gemms, api, queues, transfers, arenas.spans(),
                   options.collectives[QLORA_GROUP_DP], notes));
  if (!tuner.table().gpus.empty())
    gemmText = tuner.table().text();
  return Status::ok();
}

Status CudaDevice::prepareLaunches() {
  const auto prepare = [this](const KernelRow &row,
                              const KernelRequest &request,
                              uint64_t workspace) {
    return prepareCudaKernel(row, request, workspace, *this);
  };
  return launches.prepare(*module, arenas.bases(), options, prepare, notes);
}

/// Returns the groups with collectives in any pipeline stage: all ranks must
/// create the same communicators. Each communicator takes device memory.
GroupCollectives CudaDevice::usedGroups() const {
  GroupCollectives used = {};
  for (unsigned group = 0; group < QLORA_GROUP_COUNT; ++group)
    if (const auto ranks = options.collectives[group];
        ranks && ranks->size() > 1 && module->uses(group))
      used[group] = ranks;
  return used;
}

/// Runs each collective once, on zeros. At the first collective of a size, NCCL
/// creates connections and buffers, which a capture does not allow.
Status CudaDevice::connectRanks() {
  const auto commands = module->commands();
  const auto isCollective = [this](const qlora_command &command) {
    return command.kind == QLORA_COMMAND_COLLECTIVE && isForSeveral(command);
  };
  GroupCollectives used = usedGroups();
  if (used == GroupCollectives())
    return Status::ok();
  Collectives &all = *options.collectives[QLORA_GROUP_DP];
  used[QLORA_GROUP_DP] = &all;
  if (!nccl) {
    QLORA_ASSIGN_OR_RETURN(nccl, Nccl::open());
  }
  QLORA_RETURN_IF_ERROR(queues.synchronize());
  QLORA_ASSIGN_OR_RETURN(
      ranks,
      NcclCollectives::connect(*nccl, used, module->groups().on(all.size())));
  queues.setWatch(ranks.get());
  for (const qlora_command &command : commands)
    if (isCollective(command))
      QLORA_RETURN_IF_ERROR(collective(command));
  QLORA_RETURN_IF_ERROR(queues.join(queuesOf(commands)));
  return queues.synchronize();
}

Status CudaDevice::allocate(FrozenArena *) {
  if (module->table().target != QLORA_TARGET_CUDA)
    return Status::invalid("'{}' was compiled for the cpu, not for cuda; "
                           "compile it with --target cuda",
                           module->path());
  QLORA_ASSIGN_OR_RETURN(before, gpu.memory());
  measured = before;
  QLORA_RETURN_IF_ERROR(images.load(api, *module, gpu, notes)
                            .withContext(fmt::format("'{}'", module->path())));
  QLORA_RETURN_IF_ERROR(prepareQueues());
  QLORA_RETURN_IF_ERROR(
      arenas.allocate(api, module->arenas(), gpu, queues.compute()));
  allocated = arenas.bytes();
  QLORA_RETURN_IF_ERROR(prepareKernels());
  return connectRanks();
}

/// Enqueues a kernel that uses no vendor library. The kernel object may be
/// destroyed on return, because cuLaunchKernel copies the arguments.
Status CudaDevice::runRow(const KernelRow &row, const KernelRequest &request,
                          std::span<const qlora_operand> operands) {
  QLORA_ASSIGN_OR_RETURN(std::unique_ptr<CudaKernel> kernel,
                         prepareCudaKernel(row, request, 0, *this));
  return kernel->enqueue({operandAddresses(operands, arenas.bases()),
                          deviceStep(), queues.compute()});
}

Status CudaDevice::beginEntry(const qlora_entry &entry) {
  entryIndex = static_cast<size_t>(&entry - module->entries().data());
  share = LabelShare::of(*module, entry, step);
  QLORA_RETURN_IF_ERROR(transfers.write(
      arenas.step(), {reinterpret_cast<const uint8_t *>(&step), sizeof step}));
  QLORA_RETURN_IF_ERROR(graphs.begin(
      graphIndex(),
      !options.graphs || isObserved() || isTimed() || !mayHaveGraph()));
  isReplaying = graphs.isReplaying();
  if (isReplaying)
    return Status::ok();
  return graphs.orAbandon(queues.fork(queuesOfEntry[entryIndex]));
}

Status CudaDevice::finishEntry() {
  if (isCancelled)
    graphs.abandon();
  if (isCancelled || isReplaying)
    return Status::ok();
  QLORA_RETURN_IF_ERROR(
      graphs.orAbandon(queues.join(queuesOfEntry[entryIndex])));
  return graphs.end(mayHaveGraph());
}

Status CudaDevice::execute(const qlora_command &command) {
  switch (command.kind) {
  case QLORA_COMMAND_LAUNCH:
    return launch(command);
  case QLORA_COMMAND_FILL:
    return fill(command);
  case QLORA_COMMAND_COPY:
    return copy(command);
  case QLORA_COMMAND_COLLECTIVE:
    return collective(command);
  case QLORA_COMMAND_RECORD:
    return queues.record(command.target, command.queue);
  default: // QLORA_COMMAND_WAIT
    return queues.wait(command.target, command.queue);
  }
}

Status CudaDevice::launch(const qlora_command &command) {
  const auto index = static_cast<size_t>(&command - module->commands().data());
  CudaKernel *kernel = launches.kernel(index);
  if (!kernel)
    return generated.launch(api, command, launches.buffers(command),
                            deviceStep(), queues.stream(command.queue));
  return kernel->enqueue({launches.buffers(command), deviceStep(),
                          queues.stream(command.queue),
                          isObserved() ? options.observer : nullptr,
                          share.labelledRows, hasOneSegment});
}

Status CudaDevice::fill(const qlora_command &command) {
  const qlora_operand &to = module->operands(command)[0];
  if (to.bytes == 0)
    return Status::ok();
  return api.check(
      api.memsetD8Async(address(to), 0, to.bytes, queues.stream(command.queue)),
      "cuMemsetD8Async");
}

Status CudaDevice::copy(const qlora_command &command) {
  const auto operands = module->operands(command);
  if (operands[0].bytes == 0)
    return Status::ok();
  const qlora_operand &to = operands[0], &from = operands[1];
  const CUstream stream = queues.stream(command.queue);
  if (const uint8_t *host = arenas.hostAddress(from.arena))
    return api.check(api.memcpyHtoDAsync(address(to), host + from.offset,
                                         to.bytes, stream),
                     "cuMemcpyHtoDAsync");
  if (uint8_t *host = arenas.hostAddress(to.arena))
    return api.check(api.memcpyDtoHAsync(host + to.offset, address(from),
                                         to.bytes, stream),
                     "cuMemcpyDtoHAsync");
  return api.check(
      api.memcpyDtoDAsync(address(to), address(from), to.bytes, stream),
      "cuMemcpyDtoDAsync");
}

Status CudaDevice::collective(const qlora_command &command) {
  if (module->operands(command)[0].bytes == 0)
    return Status::ok();
  const auto call =
      CollectiveCall::of(*module, command, launches.buffers(command));
  if (isForSeveral(command))
    return ranks->run(call, static_cast<qlora_group>(command.group),
                      queues.stream(command.queue));
  // In a group of one rank, a collective with two operands is a copy.
  if (call.to.empty() || call.from.empty())
    return Status::ok();
  return api.check(
      api.memcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(call.to.data()),
                          reinterpret_cast<CUdeviceptr>(call.from.data()),
                          call.from.size(), queues.stream(command.queue)),
      "cuMemcpyDtoDAsync");
}

std::vector<ReserveUse> CudaDevice::reserve() const {
  if (!module)
    return {};
  // If the measurement fails, use the latest one; the next entry reports why
  // the GPU fails.
  if (auto now = gpu.memory(); now.isOk())
    measured = *now;
  const uint64_t taken = before.free - std::min(before.free, measured.free);
  return {{"CUDA context and others", before.total - before.free},
          {"code, graphs, libraries",
           taken - std::min(taken, arenas.totalBytes())}};
}

GpuReadings CudaDevice::readings() const {
  const auto nvml = Nvml::open();
  return nvml.isOk() ? gpuReadings(*nvml.value(), gpu.pciBusId())
                     : GpuReadings();
}

StatusOr<std::unique_ptr<Device>> createCudaDevice(const DeviceOptions &options,
                                                   const CudaDriver &driver,
                                                   const Nccl *nccl) {
  QLORA_ASSIGN_OR_RETURN(CudaGpu gpu, CudaGpu::open(driver, options.ordinal));
  return std::unique_ptr<Device>(
      std::make_unique<CudaDevice>(options, driver, nccl, std::move(gpu)));
}

StatusOr<std::unique_ptr<Device>>
createCudaDevice(const DeviceOptions &options) {
  QLORA_ASSIGN_OR_RETURN(const CudaDriver *driver, CudaDriver::open());
  return createCudaDevice(options, *driver, nullptr);
}

} // namespace qlora
