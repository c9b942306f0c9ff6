// SPDX-License-Identifier: MIT

// Commands of a module on one GPU.

#include "runtime/Device/Cuda/CudaDevice.h"

#include "runtime/Device/Cuda/CublasHandle.h"
#include "runtime/Device/Cuda/CudaArenas.h"
#include "runtime/Device/Cuda/CudaGraphs.h"
#include "runtime/Device/Cuda/CudaImages.h"
#include "runtime/Device/Cuda/CudaReads.h"
#include "runtime/Device/Cuda/CudaTransfers.h"
#include "runtime/Device/Cuda/LabelShare.h"
#include "runtime/Device/PreparedLaunches.h"
#include "runtime/Kernels/Cuda/CudaKernel.h"

#include <algorithm>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace qlora {

/// Enough that a copy of it takes far longer than the wait for it.
static constexpr uint64_t kTransferBytes = uint64_t{32} << 20;

namespace {
class CudaDevice final : public Device, public CudaContext {
public:
  CudaDevice(const DeviceOptions &options, const CudaDriver &driver,
             CudaCard card);
  ~CudaDevice() override;

  std::string_view name() const override { return "cuda"; }
  std::span<uint8_t> hostArena(uint32_t) override { return {}; }
  bool hasHostArenas() const override { return false; }
  int64_t lead() const override { return 1; }
  std::vector<ReserveUse> reserve() const override;

  // What library kernels ask for.
  const CudaDriver &driver() const override { return api; }
  const CublasLt &blas() const override { return *blasHandleOwner.library; }
  cublasLtHandle_t blasHandle() const override {
    return blasHandleOwner.handle;
  }
  int multiprocessors() const override { return card.multiprocessors; }
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
  Status startReadArena(uint32_t arena, uint64_t offset,
                        uint64_t bytes) override {
    return reads.start(arenas.address(arena) + offset, bytes);
  }
  Status finishReadArena(std::span<uint8_t> data) override {
    return reads.finish(data);
  }
  uint64_t allocatedBytes(uint32_t arena) const override {
    return arenas.bytes(arena);
  }
  Status beginEntry(const qlora_entry &entry) override;
  Status launch(const qlora_command &command) override;
  Status fill(const qlora_command &command) override;
  Status copy(const qlora_command &command) override;
  Status allReduce(const qlora_command &) override { return Status::ok(); }
  Status record(const qlora_command &command) override;
  Status wait(const qlora_command &command) override;
  Status finishEntry() override;
  void cancel() override { isCancelled = true; }
  std::string kernelName(uint32_t launch) const override;
  bool timesLaunches() const override { return false; }

private:
  /// How the commands of the current entry reach the card.
  enum class Mode { kDirect, kCapture, kReplay };

  Status checkModule() const;
  Status prepareQueues();
  Status prepareKernels();
  Status startEntry();
  Status launchGenerated(const qlora_command &command);
  size_t graphIndex() const { return entryIndex * kLabelShares + share.index; }
  const qlora_step_block *deviceStep() const {
    return reinterpret_cast<const qlora_step_block *>(arenas.step());
  }
  bool isObserved() const { return observer && observer->onLogits; }
  CUdeviceptr address(const qlora_operand &operand) const {
    return arenas.address(operand.arena) + operand.offset;
  }

  const CudaDriver &api;
  const int ranks;
  KernelObserver *observer;
  const bool usesGraphs;

  // Destroyed from the last to the first.
  CudaCard card;
  CudaMemoryInfo before; ///< once the context exists
  mutable CudaMemoryInfo measured; ///< last
  CudaImages images;
  CudaArenas arenas;
  CudaQueues queues;
  CudaTransfers transfers;
  CudaReads reads;
  CublasHandle blasHandleOwner;
  PreparedLaunches<CudaKernel> launches;
  CudaGraphs graphs;

  std::vector<CUfunction> generated; ///< per kernel; null for library ones
  std::vector<QueueUse> queuesOfEntry;
  std::vector<bool> hasRun; ///< per entry
  size_t entryIndex = 0;
  LabelShare share; ///< of the current entry
  Mode mode = Mode::kDirect;
  bool isCancelled = false;
};
} // namespace

CudaDevice::CudaDevice(const DeviceOptions &options, const CudaDriver &driver,
                       CudaCard card)
    : api(driver), ranks(options.collectives ? options.collectives->size() : 1),
      observer(options.observer), usesGraphs(options.graphs),
      card(std::move(card)) {
#ifdef _OPENMP
  // Weights are converted and quantised on the CPU.
  if (options.threads > 0)
    omp_set_num_threads(options.threads);
#endif
}

CudaDevice::~CudaDevice() {
  // Nothing may be freed under work that still runs.
  if (queues.compute())
    (void)queues.synchronize();
}

Status CudaDevice::checkModule() const {
  if (module->table().target != QLORA_TARGET_CUDA)
    return Status::invalid("'{}' was compiled for the cpu, not for cuda; "
                           "compile it with --target cuda",
                           module->path());
  const auto commands = module->commands();
  const bool hasCollectives = std::any_of(
      commands.begin(), commands.end(), [](const qlora_command &command) {
        return command.kind == QLORA_COMMAND_ALL_REDUCE;
      });
  if (ranks > 1 && hasCollectives)
    return Status::error(StatusCode::kUnavailable,
                         "all_reduce over {} GPUs needs NCCL, which this "
                         "qlora-run does not use yet; run it with --gpus 1",
                         ranks);
  return Status::ok();
}

Status CudaDevice::prepareQueues() {
  size_t mostEvents = 0;
  for (const qlora_entry &entry : module->entries()) {
    mostEvents = std::max<size_t>(mostEvents, entry.event_count);
    queuesOfEntry.push_back(queuesOf(module->commands(entry)));
  }
  QLORA_RETURN_IF_ERROR(queues.create(api, mostEvents));
  graphs.create(api, queues.compute(),
                module->entries().size() * kLabelShares);
  hasRun.assign(module->entries().size(), false);
  QLORA_RETURN_IF_ERROR(reads.create(api, queues));
  return transfers.create(api, queues, kTransferBytes);
}

Status CudaDevice::prepareKernels() {
  bool hasLibraryKernels = false;
  for (const qlora_kernel &kernel : module->kernels()) {
    hasLibraryKernels |= !isGenerated(kernel);
    generated.push_back(nullptr);
    if (!isGenerated(kernel))
      continue;
    auto found = images.function(kernel.symbol);
    if (!found.isOk())
      return found.status().withContext(
          fmt::format("kernel '{}'", kernel.name));
    generated.back() = *found;
  }
  if (hasLibraryKernels)
    QLORA_RETURN_IF_ERROR(blasHandleOwner.create());
  return launches.prepare(
      *module, arenas.bases(),
      [this](const KernelRow &row, const KernelRequest &request,
             uint64_t workspace) {
        return prepareCudaKernel(row, request, workspace, *this);
      },
      notes);
}

Status CudaDevice::allocate(FrozenArena *) {
  QLORA_RETURN_IF_ERROR(checkModule());
  QLORA_ASSIGN_OR_RETURN(before, card.memory());
  measured = before;
  QLORA_RETURN_IF_ERROR(images.load(api, module->images(), card, notes)
                            .withContext(fmt::format("'{}'", module->path())));
  QLORA_RETURN_IF_ERROR(prepareQueues());
  QLORA_RETURN_IF_ERROR(
      arenas.allocate(api, module->arenas(), card, queues.compute()));
  return prepareKernels();
}

Status CudaDevice::beginEntry(const qlora_entry &entry) {
  entryIndex = static_cast<size_t>(&entry - module->entries().data());
  share = LabelShare::of(entry, step);
  QLORA_RETURN_IF_ERROR(transfers.write(
      arenas.step(), {reinterpret_cast<const uint8_t *>(&step), sizeof step}));
  mode = Mode::kDirect;
  if (usesGraphs && !isObserved() && hasRun[entryIndex])
    mode = graphs.has(graphIndex()) ? Mode::kReplay : Mode::kCapture;
  Status status = startEntry();
  if (!status.isOk() && mode == Mode::kCapture)
    graphs.abandonCapture();
  return status;
}

Status CudaDevice::startEntry() {
  if (mode == Mode::kReplay)
    return graphs.launch(graphIndex());
  if (mode == Mode::kCapture)
    QLORA_RETURN_IF_ERROR(graphs.beginCapture());
  return queues.fork(queuesOfEntry[entryIndex]);
}

Status CudaDevice::finishEntry() {
  if (mode == Mode::kReplay)
    return Status::ok();
  Status status;
  if (!isCancelled)
    status = queues.join(queuesOfEntry[entryIndex]);
  hasRun[entryIndex] = true;
  if (mode == Mode::kDirect)
    return status;
  if (isCancelled || !status.isOk()) {
    graphs.abandonCapture();
    return status;
  }
  QLORA_RETURN_IF_ERROR(graphs.endCapture(graphIndex()));
  return graphs.launch(graphIndex());
}

Status CudaDevice::launchGenerated(const qlora_command &command) {
  const qlora_launch &launch = module->launches()[command.target];
  const qlora_kernel &kernel = module->kernels()[launch.kernel];
  if (launch.rows == 0)
    return Status::ok();
  qlora_cuda_args args{};
  const auto buffers = launches.buffers(command);
  std::copy(buffers.begin(), buffers.end(), args.buffers);
  const auto constants = module->constants(launch);
  std::copy(constants.begin(), constants.end(), args.constants);
  args.step = deviceStep();
  args.rows = launch.rows;
  void *parameters[] = {&args};
  return api.check(
      api.launchKernel(generated[launch.kernel],
                       static_cast<unsigned>(blocksOf(kernel, launch)), 1, 1,
                       kernel.threads, 1, 1, 0, queues.stream(command.queue),
                       parameters, nullptr),
      "cuLaunchKernel");
}

Status CudaDevice::launch(const qlora_command &command) {
  if (mode == Mode::kReplay)
    return Status::ok();
  const auto index = static_cast<size_t>(&command - module->commands().data());
  CudaKernel *kernel = launches.kernel(index);
  if (!kernel)
    return launchGenerated(command);
  return kernel->enqueue({launches.buffers(command), deviceStep(),
                          queues.stream(command.queue),
                          isObserved() ? observer : nullptr,
                          share.labelledRows});
}

Status CudaDevice::fill(const qlora_command &command) {
  const qlora_operand &to = module->operands(command)[0];
  if (mode == Mode::kReplay || to.bytes == 0)
    return Status::ok();
  return api.check(
      api.memsetD8Async(address(to), 0, to.bytes, queues.stream(command.queue)),
      "cuMemsetD8Async");
}

Status CudaDevice::copy(const qlora_command &command) {
  const auto operands = module->operands(command);
  if (mode == Mode::kReplay || operands[0].bytes == 0)
    return Status::ok();
  return api.check(api.memcpyDtoDAsync(address(operands[0]),
                                       address(operands[1]), operands[0].bytes,
                                       queues.stream(command.queue)),
                   "cuMemcpyDtoDAsync");
}

Status CudaDevice::record(const qlora_command &command) {
  if (mode == Mode::kReplay)
    return Status::ok();
  return queues.record(command.target, command.queue);
}

Status CudaDevice::wait(const qlora_command &command) {
  if (mode == Mode::kReplay)
    return Status::ok();
  return queues.wait(command.target, command.queue);
}

std::string CudaDevice::kernelName(uint32_t launch) const {
  const KernelRow *row = launches.row(launch);
  return row ? row->fullName() : Device::kernelName(launch);
}

std::vector<ReserveUse> CudaDevice::reserve() const {
  if (!module)
    return {};
  // A card that no longer answers says why at the next entry; until then what
  // was measured last holds.
  if (auto now = card.memory(); now.isOk())
    measured = *now;
  const uint64_t taken = before.free - std::min(before.free, measured.free);
  return {{"CUDA context and others", before.total - before.free},
          {"code, graphs, libraries",
           taken - std::min(taken, arenas.totalBytes())}};
}

StatusOr<std::unique_ptr<Device>> createCudaDevice(const DeviceOptions &options,
                                                   const CudaDriver &driver) {
  QLORA_ASSIGN_OR_RETURN(CudaCard card,
                         CudaCard::open(driver, options.ordinal));
  return std::unique_ptr<Device>(
      std::make_unique<CudaDevice>(options, driver, std::move(card)));
}

StatusOr<std::unique_ptr<Device>>
createCudaDevice(const DeviceOptions &options) {
  QLORA_ASSIGN_OR_RETURN(const CudaDriver *driver, CudaDriver::open());
  return createCudaDevice(options, *driver);
}

} // namespace qlora
