// SPDX-License-Identifier: MIT

// Timing of kernels on this machine.

#include "runtime/Session/Calibrate.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "runtime/Kernels/LibraryKernel.h"
#include "runtime/Kernels/Math/NF4.h"

namespace qlora {

namespace {

using Clock = std::chrono::steady_clock;
constexpr double kSecondsPerMeasure = 0.7;
constexpr int64_t kRows = 512, kColumns = 2048, kDepth = 2048;

/// A kernel with memory for its operands.
class Measured {
public:
  static StatusOr<Measured> prepare(const char *row,
                                    std::vector<qlora_dtype> dtypes,
                                    std::vector<int64_t> constants,
                                    std::vector<uint64_t> bytes);
  Status run() {
    LibraryKernelArgs args;
    args.buffers = pointers;
    return kernel->run(args);
  }

private:
  std::vector<std::vector<uint8_t>> memory;
  std::vector<void *> pointers;
  std::unique_ptr<LibraryKernel> kernel;
};

} // namespace

StatusOr<Measured> Measured::prepare(const char *name,
                                     std::vector<qlora_dtype> dtypes,
                                     std::vector<int64_t> constants,
                                     std::vector<uint64_t> bytes) {
  const KernelRow *row = findKernelRow(name);
  assert(row && "a row of Kernels.def");
  KernelRequest request{row->op, {dtypes.begin(), dtypes.end()}, constants};
  if (auto reason = row->reject(request))
    return Status::error(StatusCode::kUnavailable, "{}: {}", name, *reason);
  Measured measured;
  uint64_t workspace = row->workspaceBytes(request);
  if (row->op->operands.back().name == "workspace")
    bytes.back() = workspace;
  for (uint64_t size : bytes) {
    // Zeros: no denormal slows a measurement down.
    measured.memory.emplace_back(std::max<uint64_t>(size, 64), 0);
    measured.pointers.push_back(measured.memory.back().data());
  }
  QLORA_ASSIGN_OR_RETURN(measured.kernel,
                         prepareCpuKernel(*row, request, workspace));
  return measured;
}

/// Best of the runs that fit into the time: noise only ever adds.
static StatusOr<double> bestSeconds(const std::function<Status()> &run) {
  QLORA_RETURN_IF_ERROR(run());
  double best = 1e30;
  Clock::time_point start = Clock::now();
  do {
    Clock::time_point before = Clock::now();
    QLORA_RETURN_IF_ERROR(run());
    best = std::min(
        best, std::chrono::duration<double>(Clock::now() - before).count());
  } while (std::chrono::duration<double>(Clock::now() - start).count() <
           kSecondsPerMeasure);
  return best;
}

static int64_t bitsOf(double value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

static StatusOr<double> measureGemm(qlora_dtype dtype) {
  uint64_t element = dtypeBits(dtype) / 8;
  QLORA_ASSIGN_OR_RETURN(
      Measured gemm,
      Measured::prepare("matmul.onednn", {dtype, dtype, dtype, QLORA_DTYPE_U8},
                        {kRows, kColumns, kDepth, kDepth, kDepth, kColumns, 0,
                         1, bitsOf(1), bitsOf(0)},
                        {kRows * kDepth * element, kColumns * kDepth * element,
                         kRows * kColumns * element, 0}));
  QLORA_ASSIGN_OR_RETURN(double seconds,
                         bestSeconds([&] { return gemm.run(); }));
  return 2e-9 * kRows * kColumns * kDepth / seconds;
}

/// A panel, as a GEMM decodes it: what was decoded is still in the cache.
static StatusOr<double> measureDecode() {
  constexpr int64_t kPanelRows = 128;
  NF4Layout layout = NF4Layout::of(kPanelRows * kDepth, 64, true);
  QLORA_ASSIGN_OR_RETURN(Measured decode,
                         Measured::prepare("decode.vector",
                                           {QLORA_DTYPE_NF4, QLORA_DTYPE_F32},
                                           {kPanelRows, kDepth, 64, 1},
                                           {static_cast<uint64_t>(layout.bytes),
                                            4 * kPanelRows * kDepth}));
  QLORA_ASSIGN_OR_RETURN(double seconds,
                         bestSeconds([&] { return decode.run(); }));
  return 4e-9 * kPanelRows * kDepth / seconds;
}

static void copyInParallel(uint8_t *to, const uint8_t *from, int64_t bytes) {
  constexpr int64_t kPart = 1 << 20;
#pragma omp parallel for schedule(static)
  for (int64_t part = 0; part < bytes / kPart; ++part)
    std::memcpy(to + part * kPart, from + part * kPart, kPart);
}

static StatusOr<double> measureCopy() {
  constexpr int64_t kBytes = 256 << 20;
  std::vector<uint8_t> from(kBytes, 1), to(kBytes);
  auto run = [&] {
    copyInParallel(to.data(), from.data(), kBytes);
    return Status::ok();
  };
  QLORA_ASSIGN_OR_RETURN(double seconds, bestSeconds(run));
  return 2e-9 * kBytes / seconds;
}

static std::string cpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      return line.substr(std::min(line.size(), line.find(':') + 2));
  return "unknown";
}

static int coreCount() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

StatusOr<std::string> calibrate(const std::string &path) {
  nlohmann::ordered_json profile = {{"cpu", cpuName()}, {"cores", coreCount()}};
  QLORA_ASSIGN_OR_RETURN(profile["gemm_f32_gflops"],
                         measureGemm(QLORA_DTYPE_F32));
  QLORA_ASSIGN_OR_RETURN(profile["gemm_bf16_gflops"],
                         measureGemm(QLORA_DTYPE_BF16));
  QLORA_ASSIGN_OR_RETURN(profile["copy_gbps"], measureCopy());
  QLORA_ASSIGN_OR_RETURN(profile["decode_gbps"], measureDecode());
  std::string text = profile.dump(2) + "\n";
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file)
    return Status::error(StatusCode::kUnavailable, "cannot write '{}'", path);
  return text;
}

} // namespace qlora
