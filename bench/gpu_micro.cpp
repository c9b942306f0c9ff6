// SPDX-License-Identifier: MIT

// gpu-micro: measures a GPU's rates, and the time of each launch of a module.
//
//   gpu-micro [train.so ...] [--size 8192] [--copy-bytes 4GiB]
//             [--lengths 512,1024,...] [--pool-bytes 16GiB] [--nodes 200]
//
// Prints one JSON object per line as results arrive. `kind` is one of:
//
//   "card"  the GPU: name, versions, and the rates of a bf16 GEMM of cuBLASLt
//           and of a copy. The first line, and without a module the only line
//   launch  one of MicroLaunches.h. A library op has a line for each row of
//           Kernels.def; `refused` says why a row does not accept the launch
//   gemm    a GEMM of a module: the times of the algorithm that a run uses, of
//           cuBLASLt's first algorithm, and of the best of many candidates
//   graph   a kernel that does almost nothing, in a graph
//
// For one launch, `microseconds` is the measured time, `flops` the FLOP of its
// GEMMs, `bytes` the bytes that it reads and writes, and
// `predicted_microseconds` the cost model's time, for this GPU or, if this GPU
// has no profile, for an H200.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "bench/MicroLaunches.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Device/Cuda/CudaImages.h"
#include "runtime/Device/Cuda/NcclApi.h"
#include "runtime/Options/CommandLine.h"

using namespace qlora;
using json = nlohmann::ordered_json;

static constexpr const char *kGroup = "gpu-micro";
static constexpr OptionScope kRun = OptionScope::kRun;

static const OptionRow kOptions[] = {
    {"size", OptionType::kInt, "8192", kRun, kGroup,
     "rows and columns of the GPU's GEMM", "", "", 16, 65536},
    {"copy_bytes", OptionType::kSize, "4GiB", kRun, kGroup,
     "bytes of the GPU's copy", "", "", 4096},
    {"lengths", OptionType::kLengths, "[512, 1024, 2048, 4096, 8192]", kRun,
     kGroup, "attention lengths, in addition to the modules'", ""},
    {"pool_bytes", OptionType::kSize, "16GiB", kRun, kGroup,
     "memory for operands; at most half of what is free", "", "", 4096},
    {"nodes", OptionType::kInt, "200", kRun, kGroup,
     "launches in one graph, at most", "", "", 1, 10000},
};

/// Candidate algorithms of a training run (GemmTuner.cpp) and of a `gemm` line.
static constexpr size_t kCandidates = 8, kManyCandidates = 32;

namespace {

class Micro {
public:
  explicit Micro(const Options &options) : options(options) {}

  Status open();
  Status timeModule(const std::string &path);
  Status timeProducts();
  Status timeGraphNodes();

private:
  StatusOr<double> productSeconds(int64_t size);
  StatusOr<double> copySeconds(int64_t bytes);
  /// Returns the duration in seconds of a launch of the kernel row. If `at` is
  /// not null, `*at` gets the operand addresses of the first launch.
  StatusOr<double> timeRow(const KernelRow &row, const KernelRequest &request,
                           int64_t segments = 1,
                           std::vector<void *> *at = nullptr);
  Status timeRows(const LoadedModule &module, const MicroLaunch &launch);

  const Options &options;
  MicroGpu gpu;
  DeviceProfile rates;
};

} // namespace

/// Prints the line with the time, or with the reason why the GPU or the kernel
/// refuses the launch. Returns all other errors.
static Status print(json line, const StatusOr<double> &seconds) {
  const StatusCode code = seconds.status().code();
  if (code != StatusCode::kOk && code != StatusCode::kUnavailable &&
      code != StatusCode::kResourceExhausted)
    return seconds.status().withContext(dumpJson(line));
  if (seconds.isOk())
    line["microseconds"] = seconds.value() * 1e6;
  else
    line["refused"] = seconds.status().message();
  fmt::print("{}\n", dumpJson(line));
  std::fflush(stdout);
  return Status::ok();
}

// The GPU
// ---------------------------------------------------------------------------

/// Returns the device profile of the GPU with this name, or "h200" if no
/// profile has the name.
static std::string profileOf(std::string name) {
  std::erase(name, ' ');
  std::ranges::transform(name, name.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  for (const std::string_view known : knownGpus())
    if (name.find(known) != std::string::npos)
      return std::string(known);
  return "h200";
}

/// Returns the library's version, or why the library cannot be opened.
template <typename Opened, typename Read>
static json versionOf(const Opened &opened, Read read) {
  return opened.isOk() ? json(read(opened.value()))
                       : json(opened.status().message());
}

Status Micro::open() {
  QLORA_RETURN_IF_ERROR(gpu.open(uint64_t(options.integer("pool_bytes")),
                                 options.integer("nodes")));
  const std::string profile = profileOf(gpu.gpu.name);
  QLORA_ASSIGN_OR_RETURN(rates, findDeviceProfile(profile));
  gpu.gemms.setCandidates(kCandidates);
  int driver = 0;
  QLORA_RETURN_IF_ERROR(gpu.driver().check(
      gpu.driver().driverGetVersion(&driver), "cuDriverGetVersion"));
  const int64_t size = options.integer("size");
  const int64_t copied = options.integer("copy_bytes");
  // Warm up: an idle GPU takes a third of a second of work to reach its rates.
  gpu.setWarmUp(std::chrono::seconds(1));
  QLORA_ASSIGN_OR_RETURN(const double product, productSeconds(size));
  gpu.setWarmUp({});
  auto copy = copySeconds(copied);
  QLORA_RETURN_IF_ERROR(copy.status());
  return print(
      {{"kind", "card"},
       {"name", gpu.gpu.name},
       {"arch", gpu.gpu.arch},
       {"multiprocessors", gpu.gpu.multiprocessors},
       {"memory_bytes", gpu.memoryBytes},
       {"driver", driver},
       {"cublaslt", gpu.blas().version},
       {"cudnn", versionOf(gpu.cudnn(),
                           [](const CudnnHandle *cudnn) {
                             return cudnn->library->getVersion();
                           })},
       {"nccl", versionOf(Nccl::open(),
                          [](const Nccl *nccl) { return nccl->version; })},
       {"profile", profile},
       {"size", size},
       {"gemm_flops", 2 * std::pow(double(size), 3) / product},
       {"copy_bytes", copied},
       {"copy_bytes_per_second", 2 * double(copied) / *copy}},
      copy);
}

/// Returns the duration in seconds of a bf16 GEMM of size x size matrices.
/// Compares one element of the result with a sum on the host.
StatusOr<double> Micro::productSeconds(int64_t size) {
  const KernelRow &row = *findKernelRow("matmul.cublaslt");
  const KernelRequest request =
      microRequest("matmul",
                   {{"a", QLORA_DTYPE_BF16},
                    {"b", QLORA_DTYPE_BF16},
                    {"c", QLORA_DTYPE_BF16},
                    {"workspace", QLORA_DTYPE_U8}},
                   {size, size, size, size, size, size, 0, 0,
                    std::bit_cast<int64_t>(1.0), 0});
  QLORA_RETURN_IF_ERROR(
      prepareCudaKernel(row, request, row.workspaceBytes(request), gpu)
          .status());
  QLORA_RETURN_IF_ERROR(gpu.measure(gpu.gemms));
  std::vector<void *> at;
  QLORA_ASSIGN_OR_RETURN(const double seconds, timeRow(row, request, 1, &at));
  const auto element = [&](size_t operand, int64_t i, int64_t j) {
    return static_cast<const uint16_t *>(at[operand]) + i * size + j;
  };
  const int64_t i = size / 2, j = size / 3;
  double exact = 0;
  for (int64_t k = 0; k < size; ++k)
    exact +=
        double(gpu.initial(element(0, i, k))) * gpu.initial(element(1, k, j));
  QLORA_ASSIGN_OR_RETURN(const double got, gpu.current(element(2, i, j)));
  // Tolerance: one rounding to bf16, and float32 sums of terms of at most 1.
  if (std::abs(got - exact) <=
      0x1p-7 * std::abs(exact) + 0x1p-22 * double(size))
    return seconds;
  return Status::error(StatusCode::kInternal,
                       "element ({}, {}) of the product of {} x {} matrices "
                       "is {}, expected {}",
                       i, j, size, size, got, exact);
}

StatusOr<double> Micro::copySeconds(int64_t bytes) {
  const auto count = static_cast<uint64_t>(bytes);
  const MicroOperand operands[] = {{count}, {count}};
  // Without a graph, because a graph might use a slower copy engine.
  return gpu.timeDirect(
      operands, [&](std::span<void *const> at, CUstream stream) {
        return gpu.driver().check(
            gpu.driver().memcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(at[1]),
                                         reinterpret_cast<CUdeviceptr>(at[0]),
                                         count, stream),
            "cuMemcpyDtoDAsync_v2");
      });
}

Status Micro::timeGraphNodes() {
  const KernelRequest request = microRequest(
      "accumulate", {{"x", QLORA_DTYPE_F32}, {"y", QLORA_DTYPE_F32}},
      {1, 8, 8, 8});
  const auto seconds = timeRow(*findKernelRow("accumulate.cuda"), request);
  return print({{"kind", "graph"},
                {"label", "kernel of a graph"},
                {"host_microseconds", gpu.hostSeconds() * 1e6},
                {"predicted_microseconds", rates.gpu->launchMicroseconds}},
               seconds);
}

// Launches
// -----------------------------------------------------------------------

StatusOr<double> Micro::timeRow(const KernelRow &row,
                                const KernelRequest &request, int64_t segments,
                                std::vector<void *> *at) {
  if (const auto reason = row.reject(request))
    return Status::error(StatusCode::kUnavailable, "{}", *reason);
  QLORA_ASSIGN_OR_RETURN(
      const std::unique_ptr<CudaKernel> kernel,
      prepareCudaKernel(row, request, row.workspaceBytes(request), gpu));
  const auto enqueue = [&](std::span<void *const> to, CUstream stream) {
    if (at && at->empty())
      at->assign(to.begin(), to.end());
    return kernel->enqueue(
        {to, gpu.step(), stream, nullptr, INT64_MAX, segments == 1});
  };
  return gpu.time(microOperands(row, request, segments), enqueue);
}

Status Micro::timeRows(const LoadedModule &module, const MicroLaunch &launch) {
  for (const KernelRow *row : candidateRows(*launch.planned)) {
    json line = describe(module, launch, rates, row);
    line["row"] = row->fullName();
    QLORA_RETURN_IF_ERROR(
        print(std::move(line), timeRow(*row, launch.request, launch.segments)));
  }
  return Status::ok();
}

Status Micro::timeModule(const std::string &path) {
  QLORA_ASSIGN_OR_RETURN(const LoadedModule module, LoadedModule::open(path));
  QLORA_RETURN_IF_ERROR(gpu.load(module));
  GeneratedKernels generated;
  QLORA_RETURN_IF_ERROR(generated.prepare(module, gpu.images));
  const auto launches = microLaunches(module, options.lengths("lengths"));
  // Select the GEMM algorithms that a run of the module would use.
  for (const MicroLaunch &launch : launches)
    if (launch.planned && !launch.planned->reject(launch.request))
      (void)prepareCudaKernel(*launch.planned, launch.request,
                              launch.planned->workspaceBytes(launch.request),
                              gpu);
  QLORA_RETURN_IF_ERROR(gpu.measure(gpu.gemms));
  for (const MicroLaunch &launch : launches) {
    if (launch.planned) {
      QLORA_RETURN_IF_ERROR(timeRows(module, launch));
      continue;
    }
    json line = describe(module, launch, rates);
    const qlora_launch &table = module.launches()[launch.command->target];
    line["row"] = module.kernels()[table.kernel].name;
    QLORA_RETURN_IF_ERROR(
        print(std::move(line),
              gpu.time(microOperands(module.operands(*launch.command)),
                       [&](std::span<void *const> at, CUstream stream) {
                         return generated.launch(gpu.driver(), *launch.command,
                                                 at, gpu.step(), stream);
                       })));
  }
  return Status::ok();
}

// GEMMs
// ------------------------------------------------------------------------

/// Prints a `gemm` line for each GEMM that was measured before the time limit.
Status Micro::timeProducts() {
  GemmSelection first, many;
  many.setCandidates(kManyCandidates);
  for (const auto &[signature, choice] : gpu.gemms.choices) {
    if (choice.microseconds == 0)
      continue;
    QLORA_RETURN_IF_ERROR(many.choose(signature, choice.description).status());
    GemmChoice alone;
    alone.description = choice.description;
    alone.candidates = {choice.candidates.front()};
    first.choices.emplace(signature, std::move(alone));
  }
  QLORA_RETURN_IF_ERROR(gpu.measure(many));
  QLORA_RETURN_IF_ERROR(gpu.measure(first));
  for (const auto &[signature, best] : many.choices)
    if (best.microseconds > 0)
      QLORA_RETURN_IF_ERROR(print(
          {{"kind", "gemm"},
           {"label", signature.text()},
           {"flops", 2.0 * double(signature.m) * double(signature.n) *
                         double(signature.k)},
           {"first_microseconds", first.choices.at(signature).microseconds},
           {"best_microseconds", best.microseconds},
           {"candidates", best.candidates.size()}},
          gpu.gemms.choices.at(signature).microseconds * 1e-6));
  return Status::ok();
}

static Status run(std::span<const std::string> words) {
  const Tool tool = {.version = "gpu-micro\n",
                     .usage = "usage: gpu-micro [TRAIN.so ...] [options]\n",
                     .sections = {{kOptions, {OptionScope::kRun}, "Options"}},
                     .tables = {kOptions}};
  QLORA_ASSIGN_OR_RETURN(const CommandLine line, parseCommandLine(words, tool));
  if (!line.answer.empty())
    return fmt::print("{}", line.answer), Status::ok();
  Options options{kOptions};
  QLORA_RETURN_IF_ERROR(options.applySettings(line.settings));
  Micro micro(options);
  QLORA_RETURN_IF_ERROR(micro.open());
  for (const std::string &path : line.rest)
    QLORA_RETURN_IF_ERROR(micro.timeModule(path));
  if (line.rest.empty())
    return Status::ok();
  QLORA_RETURN_IF_ERROR(micro.timeGraphNodes());
  return micro.timeProducts();
}

int main(int argc, char **argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const Status status = run(words);
  if (!status.isOk())
    fmt::print(stderr, "gpu-micro: error: {}\n", status.message());
  return status.isOk() ? 0 : 1;
}
