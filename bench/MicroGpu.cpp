// SPDX-License-Identifier: MIT

// Prepares operands, and times launches with graphs and events.

#include "bench/MicroGpu.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "runtime/Device/Cuda/CudaGraphs.h"
#include "runtime/Device/Cuda/GemmTiming.h"
#include "runtime/Kernels/Rows.h"

namespace qlora {

using Clock = std::chrono::steady_clock;

static constexpr uint64_t kAlignment = 256;
/// Size of the random block whose copies fill the pool, in bf16 values.
static constexpr size_t kRandomNumbers = size_t{1} << 19;
/// Total bytes of a graph's operands: several times the cache of any GPU.
static constexpr uint64_t kSpread = uint64_t{512} << 20;
/// Target duration of a graph in seconds, far above its launch overhead.
static constexpr double kGraphSeconds = 3e-3;
static constexpr int kTimings = 5;
/// Time limit for one measure() call, over all GEMM candidates.
static constexpr auto kMeasureBound = std::chrono::seconds(12);

static uint64_t aligned(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Returns signed bf16 values of magnitude 1/8 to 1. Two adjacent values, read
/// as one f32, also have a magnitude of 1/8 to 1.
static std::vector<uint16_t> randomNumbers() {
  std::vector<uint16_t> numbers(kRandomNumbers);
  uint64_t state = 1;
  for (uint16_t &number : numbers) {
    state = state * 6364136223846793005u + 1442695040888963407u; // Knuth
    const auto bits = static_cast<uint32_t>(state >> 33);
    number =
        static_cast<uint16_t>((bits & 0x807f) | (124 + (bits >> 16) % 3) << 7);
  }
  return numbers;
}

StatusOr<CudaMemory> MicroGpu::allocate(uint64_t bytes) {
  CUdeviceptr address = 0;
  QLORA_RETURN_IF_ERROR(
      table->check(table->memAlloc(&address, bytes), "cuMemAlloc_v2")
          .withContext(fmt::format("{} bytes", bytes)));
  return CudaMemory(*table, address);
}

Status MicroGpu::open(uint64_t mostBytes, int64_t nodes) {
  mostNodes = nodes;
  random = randomNumbers();
  QLORA_ASSIGN_OR_RETURN(table, CudaDriver::open());
  QLORA_ASSIGN_OR_RETURN(gpu, CudaGpu::open(*table, 0));
  QLORA_RETURN_IF_ERROR(handle.create());
  QLORA_RETURN_IF_ERROR(queues.create(*table, 0));
  QLORA_RETURN_IF_ERROR(
      transfers.create(*table, queues, kRandomNumbers * sizeof(uint16_t)));
  for (CudaEvent *event : {&begin, &end}) {
    CUevent made = nullptr;
    QLORA_RETURN_IF_ERROR(
        table->check(table->eventCreate(&made, 0), "cuEventCreate"));
    *event = CudaEvent(*table, made);
  }
  QLORA_ASSIGN_OR_RETURN(const CudaMemoryInfo memory, gpu.memory());
  memoryBytes = memory.total;
  poolBytes = std::min(mostBytes, memory.free / 2) / kAlignment * kAlignment;
  QLORA_ASSIGN_OR_RETURN(pool, allocate(poolBytes));
  QLORA_ASSIGN_OR_RETURN(stepMemory, allocate(sizeof(qlora_step_block)));
  qlora_step_block values = {};
  values.learning_rate = 1e-6F;
  values.beta1 = values.beta2 = 0.9F;
  values.epsilon = 1e-8F;
  values.bias_correction1 = values.bias_correction2_sqrt = 0.5F;
  values.labelled_rows = ~uint32_t{0};
  return transfers.write(
      stepMemory.get(),
      {reinterpret_cast<const uint8_t *>(&values), sizeof values});
}

Status MicroGpu::load(const LoadedModule &module) {
  std::vector<std::string> remarks; // unused: they are only about PTX
  images = CudaImages();
  return images.load(*table, module, gpu, remarks);
}

Status MicroGpu::fill(uint64_t bytes) {
  uint64_t done = std::min<uint64_t>(bytes, random.size() * sizeof(uint16_t));
  QLORA_RETURN_IF_ERROR(transfers.write(
      pool.get(), {reinterpret_cast<const uint8_t *>(random.data()), done}));
  while (done < bytes) {
    const uint64_t part = std::min(done, bytes - done);
    QLORA_RETURN_IF_ERROR(
        table->check(table->memcpyDtoDAsync(pool.get() + done, pool.get(), part,
                                            queues.compute()),
                     "cuMemcpyDtoDAsync_v2"));
    done += part;
  }
  return Status::ok();
}

float MicroGpu::initial(const void *address) const {
  const uint64_t offset = reinterpret_cast<CUdeviceptr>(address) - pool.get();
  return qlora_load_bf16(random.data(),
                         int64_t(offset / sizeof(uint16_t) % random.size()));
}

StatusOr<float> MicroGpu::current(const void *address) {
  uint16_t number = 0;
  QLORA_RETURN_IF_ERROR(
      transfers.read(reinterpret_cast<CUdeviceptr>(address),
                     {reinterpret_cast<uint8_t *>(&number), sizeof number}));
  return qlora_load_bf16(&number, 0);
}

StatusOr<MicroGpu::Buffers>
MicroGpu::place(std::span<const MicroOperand> operands, uint64_t set,
                uint64_t stride) {
  Buffers buffers;
  CUdeviceptr next = pool.get() + set * stride;
  for (const MicroOperand &operand : operands) {
    buffers.push_back(operand.bytes ? reinterpret_cast<void *>(next) : nullptr);
    if (operand.bytes && operand.integer) {
      std::vector<int32_t> values(operand.bytes / sizeof(int32_t));
      for (uint64_t i = 0; i < values.size(); ++i)
        values[i] = operand.integer(i);
      QLORA_RETURN_IF_ERROR(transfers.write(
          next, {reinterpret_cast<const uint8_t *>(values.data()),
                 values.size() * sizeof(int32_t)}));
    }
    next += aligned(operand.bytes);
  }
  return buffers;
}

StatusOr<double> MicroGpu::timeOnce(const std::function<Status()> &work) {
  QLORA_RETURN_IF_ERROR(queues.record(begin));
  QLORA_RETURN_IF_ERROR(work());
  QLORA_RETURN_IF_ERROR(queues.record(end));
  QLORA_RETURN_IF_ERROR(queues.waitOnHost(end));
  float milliseconds = 0;
  QLORA_RETURN_IF_ERROR(table->check(
      table->eventElapsedTime(&milliseconds, begin.get(), end.get()),
      "cuEventElapsedTime"));
  return double(milliseconds) * 1e-3;
}

StatusOr<std::vector<MicroGpu::Buffers>>
MicroGpu::makeSets(std::span<const MicroOperand> operands) {
  uint64_t stride = 0;
  for (const MicroOperand &operand : operands)
    stride += aligned(operand.bytes);
  if (stride == 0 || stride > poolBytes)
    return Status::error(StatusCode::kResourceExhausted,
                         "its operands are {} bytes, the pool has {}", stride,
                         poolBytes);
  const uint64_t count = std::min({static_cast<uint64_t>(mostNodes),
                                   poolBytes / stride, kSpread / stride + 1});
  QLORA_RETURN_IF_ERROR(fill(count * stride));
  std::vector<Buffers> sets;
  for (uint64_t set = 0; set < count; ++set) {
    QLORA_ASSIGN_OR_RETURN(Buffers buffers, place(operands, set, stride));
    sets.push_back(std::move(buffers));
  }
  return sets;
}

StatusOr<double> MicroGpu::timeGraph(std::span<const Buffers> sets,
                                     int64_t nodes,
                                     const MicroEnqueue &enqueue) {
  CudaGraphs graphs;
  graphs.create(*table, queues.compute(), 1);
  QLORA_RETURN_IF_ERROR(graphs.beginCapture());
  for (int64_t node = 0; node < nodes; ++node) {
    Status status = enqueue(sets[size_t(node) % sets.size()], queues.compute());
    if (status.isOk())
      continue;
    graphs.abandon();
    return status;
  }
  QLORA_RETURN_IF_ERROR(graphs.endCapture(0));
  const auto launch = [&] {
    const Clock::time_point start = Clock::now();
    Status status = graphs.launch(0);
    const std::chrono::duration<double> seconds = Clock::now() - start;
    hostSecondsOfNode = seconds.count() / double(nodes);
    return status;
  };
  QLORA_ASSIGN_OR_RETURN(const double seconds, medianOf(launch));
  return seconds / double(nodes);
}

StatusOr<double> MicroGpu::medianOf(const std::function<Status()> &work) {
  const Clock::time_point begin = Clock::now();
  do
    QLORA_RETURN_IF_ERROR(timeOnce(work).status());
  while (Clock::now() - begin < warmUp);
  std::array<double, kTimings> timings;
  for (double &seconds : timings) {
    QLORA_ASSIGN_OR_RETURN(seconds, timeOnce(work));
  }
  std::ranges::sort(timings);
  return timings[kTimings / 2];
}

StatusOr<double> MicroGpu::timeDirect(std::span<const MicroOperand> operands,
                                      const MicroEnqueue &enqueue) {
  QLORA_ASSIGN_OR_RETURN(const std::vector<Buffers> sets, makeSets(operands));
  return medianOf([&] { return enqueue(sets[0], queues.compute()); });
}

StatusOr<double> MicroGpu::time(std::span<const MicroOperand> operands,
                                const MicroEnqueue &enqueue) {
  QLORA_ASSIGN_OR_RETURN(const std::vector<Buffers> sets, makeSets(operands));
  const auto direct = [&] { return enqueue(sets[0], queues.compute()); };
  // The first run is not timed: libraries load code in it.
  QLORA_RETURN_IF_ERROR(timeOnce(direct).status());
  QLORA_ASSIGN_OR_RETURN(const double once, timeOnce(direct));
  const double nodes =
      std::clamp(kGraphSeconds / std::max(once, 1e-7), 1.0, double(mostNodes));
  return timeGraph(sets, static_cast<int64_t>(nodes), enqueue);
}

Status MicroGpu::measure(GemmSelection &selection) {
  QLORA_RETURN_IF_ERROR(table->check(
      table->memsetD8Async(pool.get(), 0, poolBytes, queues.compute()),
      "cuMemsetD8Async"));
  const CudaSpan span = {pool.get(), poolBytes};
  return measureGemms(selection, *table, queues, transfers, {&span, 1},
                      kMeasureBound)
      .status();
}

} // namespace qlora
