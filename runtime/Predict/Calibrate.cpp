// SPDX-License-Identifier: MIT

// Timing of kernels on this machine.

#include "runtime/Predict/Calibrate.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "runtime/Base/CpuCount.h"
#include "runtime/Base/HostMemory.h"
#include "runtime/Kernels/CostModel.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/LibraryKernel.h"

namespace qlora {

namespace {

using Clock = std::chrono::steady_clock;
constexpr double kSecondsPerMeasure = 0.7;
constexpr int64_t kRows = 512, kColumns = 2048, kDepth = 8192;

/// Constants of a request, by name; missing ones are 0.
using Constants = std::vector<std::pair<std::string_view, int64_t>>;
using Dtypes = std::vector<std::optional<qlora_dtype>>;

/// A kernel to be timed, with memory for its operands.
class Measured {
public:
  static StatusOr<Measured> prepare(const char *row, Dtypes dtypes,
                                    const Constants &constants);
  const KernelRequest &request() const { return asked; }
  /// Returns the median time of the runs that fit into the time limit. As in a
  /// step, a run reads weights that are in no cache, because each run has other
  /// weights. Its activations were just written by the same threads.
  StatusOr<double> coldSeconds() { return seconds(kColdBytes); }
  /// Returns the median time of runs that all use the same operands.
  StatusOr<double> hotSeconds() { return seconds(0); }

private:
  static constexpr uint64_t kColdBytes = 96 << 20;

  StatusOr<double> seconds(uint64_t bytes);
  void writeActivations(const std::vector<void *> &operands) const;

  KernelRequest asked;
  std::vector<uint64_t> sizes; ///< bytes of the operands, the workspace last
  std::unique_ptr<LibraryKernel> kernel;
};

int64_t bitsOf(double value) { return std::bit_cast<int64_t>(value); }

} // namespace

StatusOr<Measured> Measured::prepare(const char *name, Dtypes dtypes,
                                     const Constants &constants) {
  const KernelRow *row = findKernelRow(name);
  assert(row && "a row of Kernels.def");
  Measured measured;
  KernelRequest &request = measured.asked;
  request.op = row->op;
  request.dtypes = std::move(dtypes);
  request.constants.resize(row->op->constants.size());
  for (const auto &[constant, value] : constants)
    request.constants[row->op->constantIndex(constant)] = value;
  if (auto reason = row->reject(request))
    return Status::unavailable("{}: {}", name, *reason);
  const uint64_t workspace = row->workspaceBytes(request);
  measured.sizes = row->op->operandBytes(request);
  if (row->op->operands.back().name == "workspace")
    measured.sizes.back() = workspace;
  QLORA_ASSIGN_OR_RETURN(measured.kernel,
                         prepareCpuKernel(*row, request, workspace));
  return measured;
}

/// Returns the median time of run(0), run(1), ..., with prepare(i) before each.
static StatusOr<double>
medianSeconds(const std::function<void(size_t)> &prepare,
              const std::function<Status(size_t)> &run) {
  std::vector<double> seconds;
  const Clock::time_point start = Clock::now();
  do {
    prepare(seconds.size());
    const Clock::time_point before = Clock::now();
    QLORA_RETURN_IF_ERROR(run(seconds.size()));
    seconds.push_back(
        std::chrono::duration<double>(Clock::now() - before).count());
  } while (seconds.size() < 3 ||
           std::chrono::duration<double>(Clock::now() - start).count() <
               kSecondsPerMeasure);
  const auto middle = seconds.begin() + seconds.size() / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

static void clearInParallel(void *memory, uint64_t bytes) {
  constexpr int64_t kPart = 4096;
  parallelRanges(static_cast<int64_t>(bytes), kPart,
                 [&](int64_t begin, int64_t end) {
                   std::memset(static_cast<uint8_t *>(memory) + begin, 0,
                               static_cast<size_t>(end - begin));
                 });
}

/// Writes all operands except weights and the workspace.
void Measured::writeActivations(const std::vector<void *> &operands) const {
  for (size_t i = 0; i + 1 < operands.size(); ++i) {
    const std::string_view name = asked.op->operands[i].name;
    if (operands[i] && name != "w" && name != "b")
      clearInParallel(operands[i], sizes[i]);
  }
}

/// Returns `seconds` - `rest`, but at least a tenth of `seconds`: an error in
/// the modelled `rest` must not make a rate infinite.
static double beyond(double seconds, double rest) {
  return std::max(seconds - rest, 0.1 * seconds);
}

StatusOr<double> Measured::seconds(uint64_t bytes) {
  const auto aligned = [](uint64_t size) { return (size + 64) / 64 * 64; };
  const uint64_t each = std::accumulate(
      sizes.begin(), sizes.end() - 1, uint64_t{0},
      [&](uint64_t sum, uint64_t size) { return sum + aligned(size); });
  std::vector<std::vector<void *>> sets(1 +
                                        bytes / std::max<uint64_t>(each, 1));
  QLORA_ASSIGN_OR_RETURN(
      HostMemory memory,
      HostMemory::anonymous(aligned(sizes.back()) + each * sets.size()));
  // Write zeros to allocate the pages and to avoid slow denormals.
  std::ranges::fill(memory.bytes(), uint8_t{0});
  uint8_t *next = memory.bytes().data() + aligned(sizes.back());
  for (std::vector<void *> &pointers : sets) {
    for (size_t i = 0; i + 1 < sizes.size(); ++i) {
      pointers.push_back(asked.dtypes[i] ? next : nullptr);
      next += aligned(sizes[i]);
    }
    pointers.push_back(memory.bytes().data());
  }
  LibraryKernelArgs args;
  return medianSeconds(
      [&](size_t run) { writeActivations(sets[run % sets.size()]); },
      [&](size_t run) {
        args.buffers = sets[run % sets.size()];
        return kernel->run(args);
      });
}

/// Times a GEMM of `rows` rows with a weight [kColumns, kDepth].
static StatusOr<double> gemmSeconds(qlora_dtype dtype, int64_t rows) {
  QLORA_ASSIGN_OR_RETURN(
      Measured gemm,
      Measured::prepare("matmul.onednn", {dtype, dtype, dtype, QLORA_DTYPE_U8},
                        {{"m", rows},
                         {"n", kColumns},
                         {"k", kDepth},
                         {"lda", kDepth},
                         {"ldb", kDepth},
                         {"ldc", kColumns},
                         {"transpose_b", 1},
                         {"alpha", bitsOf(1)}}));
  return gemm.coldSeconds();
}

/// Rates of a GEMM's multiplication, and of packing its weight.
struct GemmRates {
  double gflops, packGbps;
};

/// Derives both rates from two GEMMs with one weight, of many and of few rows.
static StatusOr<GemmRates> measureGemm(qlora_dtype dtype) {
  constexpr int64_t kFewRows = 32;
  constexpr double kFlopsOfRow = 2.0 * kColumns * kDepth;
  QLORA_ASSIGN_OR_RETURN(double many, gemmSeconds(dtype, kRows));
  QLORA_ASSIGN_OR_RETURN(double few, gemmSeconds(dtype, kFewRows));
  const double flops = kFlopsOfRow * (kRows - kFewRows) / beyond(many, few);
  const double packing = beyond(few, kFlopsOfRow * kFewRows / flops);
  const double bytes = 2.0 * kColumns * kDepth * (dtypeBits(dtype) / 8);
  return GemmRates{1e-9 * flops, 1e-9 * bytes / packing};
}

/// Times decoding into a panel that is in cache, as after a GEMM has read it.
static StatusOr<double> measureDecode() {
  constexpr int64_t kPanelRows = 128, kPanelDepth = 2048;
  QLORA_ASSIGN_OR_RETURN(Measured decode,
                         Measured::prepare("decode.vector",
                                           {QLORA_DTYPE_NF4, QLORA_DTYPE_F32},
                                           {{"rows", kPanelRows},
                                            {"columns", kPanelDepth},
                                            {"block", 64},
                                            {"double_quant", 1}}));
  QLORA_ASSIGN_OR_RETURN(double seconds, decode.hotSeconds());
  return 4e-9 * kPanelRows * kPanelDepth / seconds;
}

/// Times a GEMM with an NF4 weight: the forward, or the backward, which adds to
/// a gradient. Subtracts the modelled time of all work except the FLOPs.
static StatusOr<double> panelSeconds(qlora_dtype dtype, bool isForward,
                                     const DeviceProfile &device) {
  QLORA_ASSIGN_OR_RETURN(
      Measured panel,
      Measured::prepare("panel_matmul.onednn",
                        {dtype, QLORA_DTYPE_NF4, dtype, QLORA_DTYPE_U8},
                        {{"m", kRows},
                         {"rows", kColumns},
                         {"columns", kDepth},
                         {"lda", isForward ? kDepth : kColumns},
                         {"ldc", isForward ? kColumns : kDepth},
                         {"transpose_w", isForward},
                         {"block", 64},
                         {"double_quant", 1},
                         {"panel_columns", 128},
                         {"alpha", bitsOf(1)},
                         {"beta", bitsOf(isForward ? 0 : 1)}}));
  QLORA_ASSIGN_OR_RETURN(double seconds, panel.coldSeconds());
  Work work = kernelWork(panel.request());
  work.panelF32Flops = work.panelBf16Flops = 0;
  return beyond(seconds, secondsOf(work, device));
}

static StatusOr<double> measurePanel(qlora_dtype dtype,
                                     const DeviceProfile &device) {
  QLORA_ASSIGN_OR_RETURN(double forward, panelSeconds(dtype, true, device));
  QLORA_ASSIGN_OR_RETURN(double backward, panelSeconds(dtype, false, device));
  return 4e-9 * kRows * kColumns * kDepth / (forward + backward);
}

/// Times attention, forward and backward together: causal, 512 tokens.
static StatusOr<double> measureAttention(qlora_dtype dtype) {
  constexpr int64_t kHeads = 8, kDim = 64, kWidth = kHeads * kDim;
  Constants constants = {{"batch", 1},       {"length", kRows},
                         {"heads", kHeads},  {"kv_heads", kHeads},
                         {"dim", kDim},      {"slots", 16},
                         {"scale", bitsOf(0.125)}, {"cap", bitsOf(0)}};
  for (const char *stride : {"ldq", "ldk", "ldv", "ldo"})
    constants.push_back({stride, kWidth});
  QLORA_ASSIGN_OR_RETURN(
      Measured forward,
      Measured::prepare("attention.blocked",
                        {dtype, dtype, dtype, std::nullopt, dtype,
                         QLORA_DTYPE_F32, std::nullopt, QLORA_DTYPE_U8},
                        constants));
  for (const char *stride : {"lddo", "lddq", "lddk", "lddv"})
    constants.push_back({stride, kWidth});
  QLORA_ASSIGN_OR_RETURN(
      Measured backward,
      Measured::prepare("attention_grad.blocked",
                        {dtype, dtype, dtype, std::nullopt, dtype,
                         QLORA_DTYPE_F32, dtype, dtype, dtype, dtype,
                         QLORA_DTYPE_U8},
                        constants));
  QLORA_ASSIGN_OR_RETURN(double forwardSeconds, forward.coldSeconds());
  QLORA_ASSIGN_OR_RETURN(double backwardSeconds, backward.coldSeconds());
  return 1e-9 *
         (neededFlops(forward.request()) + neededFlops(backward.request())) /
         (forwardSeconds + backwardSeconds);
}

static void copyInParallel(uint8_t *to, const uint8_t *from, int64_t bytes) {
  constexpr int64_t kPart = 1 << 20;
  parallelFor(bytes / kPart, threadCount(), [&](int64_t part, int64_t) {
    std::memcpy(to + part * kPart, from + part * kPart, kPart);
  });
}

static StatusOr<double> measureCopy() {
  constexpr int64_t kBytes = 256 << 20;
  std::vector<uint8_t> from(kBytes, 1), to(kBytes);
  const auto run = [&](size_t) {
    copyInParallel(to.data(), from.data(), kBytes);
    return Status::ok();
  };
  QLORA_ASSIGN_OR_RETURN(double seconds, medianSeconds([](size_t) {}, run));
  return 2e-9 * kBytes / seconds;
}

DeviceProfile profileOfThisMachine() {
  DeviceProfile device;
  device.cpu = processorName();
  device.cores = static_cast<int>(threadCount());
  return device;
}

StatusOr<DeviceProfile> measureProfile(int threads) {
  const ScopedThreads measured(threads);
  DeviceProfile device = profileOfThisMachine();
  QLORA_ASSIGN_OR_RETURN(const GemmRates f32, measureGemm(QLORA_DTYPE_F32));
  QLORA_ASSIGN_OR_RETURN(const GemmRates bf16, measureGemm(QLORA_DTYPE_BF16));
  device.gemmF32Gflops = f32.gflops;
  device.gemmBf16Gflops = bf16.gflops;
  QLORA_ASSIGN_OR_RETURN(device.copyGbps, measureCopy());
  QLORA_ASSIGN_OR_RETURN(device.decodeGbps, measureDecode());
  CpuKernelRates rates = device.cpuKernels();
  rates.packGbps = (bf16.gflops > f32.gflops ? bf16 : f32).packGbps;
  device.kernels = rates;
  QLORA_ASSIGN_OR_RETURN(rates.panelF32Gflops,
                         measurePanel(QLORA_DTYPE_F32, device));
  QLORA_ASSIGN_OR_RETURN(rates.panelBf16Gflops,
                         measurePanel(QLORA_DTYPE_BF16, device));
  QLORA_ASSIGN_OR_RETURN(rates.attentionF32Gflops,
                         measureAttention(QLORA_DTYPE_F32));
  QLORA_ASSIGN_OR_RETURN(rates.attentionBf16Gflops,
                         measureAttention(QLORA_DTYPE_BF16));
  device.kernels = rates;
  return device;
}

} // namespace qlora
