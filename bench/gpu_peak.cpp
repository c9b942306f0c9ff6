// SPDX-License-Identifier: MIT

// gpu-peak: what this card itself reaches, beside which our figures stand:
// a square bf16 matrix product by cuBLASLt as the runtime calls it, and a copy
// from the card's memory to the card's memory. Both results are checked.
//
//   gpu-peak [--size 8192] [--copy-bytes 4GiB] [--repeats 20]
//
// Prints one JSON object: the card, `gemm_flops` per second, and
// `copy_bytes_per_second`, read and written counted. Each rate is the median
// of five timings of `repeats` calls, after one that is not timed.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "runtime/Core/CommandLine.h"
#include "runtime/Device/Cuda/CublasHandle.h"
#include "runtime/Device/Cuda/CudaCard.h"
#include "runtime/Device/Cuda/CudaHandle.h"
#include "runtime/Kernels/Cuda/Gemm.h"
#include "runtime/Kernels/Rows.h"

using namespace qlora;

static constexpr const char *kGroup = "gpu-peak";
static constexpr OptionScope kRun = OptionScope::kRun;
static constexpr int kTimings = 5;

static const OptionRow kOptions[] = {
    {"size", OptionType::kInt, "8192", kRun, kGroup,
     "rows and columns of the matrices", "", "", 16, 65536},
    {"copy_bytes", OptionType::kSize, "4GiB", kRun, kGroup,
     "bytes of a copy; twice as many are allocated", "", "", 4096},
    {"repeats", OptionType::kInt, "20", kRun, kGroup, "calls in one timing", "",
     "", 1, 10000},
};

namespace {

/// One card and a stream of it, with what a product asks for.
class Peak final : public CudaContext {
public:
  Status open();
  /// Seconds of one call of `enqueue`.
  StatusOr<double> time(int64_t repeats,
                        const std::function<Status()> &enqueue);
  StatusOr<double> productRate(int64_t size, int64_t repeats);
  StatusOr<double> copyRate(int64_t bytes, int64_t repeats);

  const CudaDriver &driver() const override { return *table; }
  const CublasLt &blas() const override { return *handle.library; }
  cublasLtHandle_t blasHandle() const override { return handle.handle; }
  StatusOr<const CudnnHandle *> cudnn() override {
    return Status::error(StatusCode::kUnavailable, "no cuDNN here");
  }
  int multiprocessors() const override { return card.multiprocessors; }
  uint32_t arch() const override { return card.arch; }
  StatusOr<CUfunction> function(std::string_view symbol) override {
    return Status::error(StatusCode::kInternal, "no image has '{}'", symbol);
  }

  CudaCard card;
  int driverVersion = 0;

private:
  StatusOr<CudaMemory> allocate(uint64_t bytes);
  StatusOr<CudaMemory> upload(const std::vector<uint16_t> &values);
  Status download(CUdeviceptr from, void *to, uint64_t bytes);
  Status checkProduct(const std::vector<uint16_t> &a,
                      const std::vector<uint16_t> &b, CUdeviceptr c,
                      int64_t size);

  const CudaDriver *table = nullptr;
  CublasHandle handle;
  CudaStream stream;
};

} // namespace

Status Peak::open() {
  QLORA_ASSIGN_OR_RETURN(table, CudaDriver::open());
  QLORA_ASSIGN_OR_RETURN(card, CudaCard::open(*table, 0));
  QLORA_RETURN_IF_ERROR(table->check(table->driverGetVersion(&driverVersion),
                                     "cuDriverGetVersion"));
  QLORA_RETURN_IF_ERROR(handle.create());
  CUstream made = nullptr;
  QLORA_RETURN_IF_ERROR(table->check(
      table->streamCreate(&made, kCudaStreamNonBlocking), "cuStreamCreate"));
  stream = CudaStream(*table, made);
  return Status::ok();
}

StatusOr<CudaMemory> Peak::allocate(uint64_t bytes) {
  CUdeviceptr address = 0;
  QLORA_RETURN_IF_ERROR(
      table->check(table->memAlloc(&address, bytes), "cuMemAlloc_v2")
          .withContext(fmt::format("{} bytes", bytes)));
  return CudaMemory(*table, address);
}

StatusOr<CudaMemory> Peak::upload(const std::vector<uint16_t> &values) {
  const uint64_t bytes = values.size() * sizeof(uint16_t);
  QLORA_ASSIGN_OR_RETURN(CudaMemory memory, allocate(bytes));
  QLORA_RETURN_IF_ERROR(table->check(
      table->memcpyHtoDAsync(memory.get(), values.data(), bytes, stream.get()),
      "cuMemcpyHtoDAsync_v2"));
  return memory;
}

Status Peak::download(CUdeviceptr from, void *to, uint64_t bytes) {
  QLORA_RETURN_IF_ERROR(
      table->check(table->memcpyDtoHAsync(to, from, bytes, stream.get()),
                   "cuMemcpyDtoHAsync_v2"));
  return table->check(table->streamSynchronize(stream.get()),
                      "cuStreamSynchronize");
}

StatusOr<double> Peak::time(int64_t repeats,
                            const std::function<Status()> &enqueue) {
  CUevent ends[2] = {};
  for (CUevent &event : ends)
    QLORA_RETURN_IF_ERROR(
        table->check(table->eventCreate(&event, 0), "cuEventCreate"));
  const CudaEvent begin(*table, ends[0]), end(*table, ends[1]);
  std::vector<double> timings;
  for (int timing = 0; timing <= kTimings; ++timing) {
    QLORA_RETURN_IF_ERROR(table->check(
        table->eventRecord(begin.get(), stream.get()), "cuEventRecord"));
    for (int64_t i = 0; i < repeats; ++i)
      QLORA_RETURN_IF_ERROR(enqueue());
    QLORA_RETURN_IF_ERROR(table->check(
        table->eventRecord(end.get(), stream.get()), "cuEventRecord"));
    QLORA_RETURN_IF_ERROR(
        table->check(table->eventSynchronize(end.get()), "cuEventSynchronize"));
    float milliseconds = 0;
    QLORA_RETURN_IF_ERROR(table->check(
        table->eventElapsedTime(&milliseconds, begin.get(), end.get()),
        "cuEventElapsedTime"));
    if (timing > 0) // the first is the warm-up
      timings.push_back(milliseconds * 1e-3 / static_cast<double>(repeats));
  }
  std::sort(timings.begin(), timings.end());
  return timings[kTimings / 2];
}

/// bf16 numbers in [-1, 1) that look random: equal numbers would draw less
/// power, and a card's clock follows its power.
static std::vector<uint16_t> randomNumbers(int64_t count, uint64_t state) {
  std::vector<uint16_t> values(static_cast<size_t>(count));
  for (uint16_t &value : values) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    value = qlora_f32_to_bf16(float(int32_t(state >> 32)) * 0x1p-31f);
  }
  return values;
}

/// The middle element, beside a sum on the host.
Status Peak::checkProduct(const std::vector<uint16_t> &a,
                          const std::vector<uint16_t> &b, CUdeviceptr c,
                          int64_t size) {
  const int64_t row = size / 2, column = size / 3;
  double exact = 0;
  for (int64_t k = 0; k < size; ++k)
    exact += double(qlora_load_bf16(a.data(), row * size + k)) *
             qlora_load_bf16(b.data(), k * size + column);
  uint16_t got = 0;
  QLORA_RETURN_IF_ERROR(
      download(c + uint64_t(row * size + column) * 2, &got, sizeof got));
  const double value = qlora_load_bf16(&got, 0);
  // One rounding to bf16, and float32 sums of products of at most 1.
  if (std::abs(value - exact) <=
      0x1p-7 * std::abs(exact) + 0x1p-22 * double(size))
    return Status::ok();
  return Status::error(StatusCode::kInternal,
                       "element ({}, {}) of the product of {} x {} matrices "
                       "is {}, expected {}",
                       row, column, size, size, value, exact);
}

StatusOr<double> Peak::productRate(int64_t size, int64_t repeats) {
  const requests::GemmProblem problem = {size,
                                         size,
                                         size,
                                         size,
                                         size,
                                         size,
                                         false,
                                         false,
                                         QLORA_DTYPE_BF16,
                                         QLORA_DTYPE_BF16,
                                         QLORA_DTYPE_BF16};
  const auto a = randomNumbers(size * size, 1);
  const auto b = randomNumbers(size * size, 2);
  QLORA_ASSIGN_OR_RETURN(CudaMemory left, upload(a));
  QLORA_ASSIGN_OR_RETURN(CudaMemory right, upload(b));
  QLORA_ASSIGN_OR_RETURN(CudaMemory result,
                         allocate(uint64_t(size) * uint64_t(size) * 2));
  QLORA_ASSIGN_OR_RETURN(CudaMemory scratch,
                         allocate(requests::kCublasScratch));
  QLORA_ASSIGN_OR_RETURN(
      auto gemm, CudaGemm::create(*this, problem, requests::kCublasScratch));
  const auto pointer = [](const CudaMemory &memory) {
    return reinterpret_cast<void *>(memory.get());
  };
  QLORA_ASSIGN_OR_RETURN(const double seconds, time(repeats, [&] {
                           return gemm->enqueue(pointer(left), pointer(right),
                                                pointer(result),
                                                pointer(scratch), stream.get());
                         }));
  QLORA_RETURN_IF_ERROR(checkProduct(a, b, result.get(), size));
  return 2.0 * std::pow(double(size), 3) / seconds;
}

StatusOr<double> Peak::copyRate(int64_t bytes, int64_t repeats) {
  const uint64_t count = uint64_t(bytes);
  QLORA_ASSIGN_OR_RETURN(CudaMemory from, allocate(count));
  QLORA_ASSIGN_OR_RETURN(CudaMemory to, allocate(count));
  for (const auto &[memory, value] : {std::pair{&from, 0x5a}, {&to, 0}})
    QLORA_RETURN_IF_ERROR(table->check(
        table->memsetD8Async(memory->get(), static_cast<unsigned char>(value),
                             count, stream.get()),
        "cuMemsetD8Async"));
  QLORA_ASSIGN_OR_RETURN(
      const double seconds, time(repeats, [&] {
        return table->check(
            table->memcpyDtoDAsync(to.get(), from.get(), count, stream.get()),
            "cuMemcpyDtoDAsync_v2");
      }));
  uint8_t last = 0;
  QLORA_RETURN_IF_ERROR(download(to.get() + count - 1, &last, 1));
  if (last != 0x5a)
    return Status::error(StatusCode::kInternal,
                         "the last of {} copied bytes did not arrive", count);
  return 2.0 * double(bytes) / seconds;
}

static StatusOr<std::string> measure(const Options &options) {
  Peak peak;
  QLORA_RETURN_IF_ERROR(peak.open());
  QLORA_ASSIGN_OR_RETURN(const CudaMemoryInfo memory, peak.card.memory());
  QLORA_ASSIGN_OR_RETURN(
      const double product,
      peak.productRate(options.integer("size"), options.integer("repeats")));
  QLORA_ASSIGN_OR_RETURN(
      const double copy,
      peak.copyRate(options.integer("copy_bytes"), options.integer("repeats")));
  const nlohmann::ordered_json values = {
      {"name", peak.card.name},
      {"arch", peak.card.arch},
      {"multiprocessors", peak.card.multiprocessors},
      {"memory_bytes", memory.total},
      {"driver", peak.driverVersion},
      {"size", options.integer("size")},
      {"gemm_flops", product},
      {"copy_bytes", options.integer("copy_bytes")},
      {"copy_bytes_per_second", copy}};
  return values.dump() + "\n";
}

static StatusOr<std::string> run(std::span<const std::string> words) {
  const std::span<const OptionRow> tables[] = {kOptions};
  QLORA_ASSIGN_OR_RETURN(
      const CommandLine line,
      parseCommandLine(words, tables, UnknownFlags::kReject));
  if (!line.rest.empty())
    return Status::invalid("takes no file, but got '{}'", line.rest.front());
  Options options{kOptions};
  QLORA_RETURN_IF_ERROR(options.applySettings(line.settings));
  return measure(options);
}

int main(int argc, char **argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto text = run(words);
  if (text.isOk())
    fmt::print("{}", text.value());
  else
    fmt::print(stderr, "gpu-peak: error: {}\n", text.status().message());
  return text.isOk() ? 0 : 1;
}
