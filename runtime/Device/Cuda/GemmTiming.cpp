// SPDX-License-Identifier: MIT

// Places operands, runs candidates and chooses the fastest.

#include "runtime/Device/Cuda/GemmTiming.h"

#include "runtime/Device/Cuda/CudaGraphs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

namespace qlora {

using Clock = std::chrono::steady_clock;

static constexpr int kRounds = 3;
static constexpr int kLaunches = 20; ///< per candidate and round
/// Candidates slower than this many times the best time are dropped.
static constexpr double kHopeless = 1.5;
/// A later candidate's time must be below this fraction of the earlier best.
static constexpr double kClearly = 0.99;
static constexpr double kNever = std::numeric_limits<double>::infinity();

/// Operands begin at multiples of this many bytes.
static constexpr uint64_t kOperandAlignment = 256;
/// Number of random bytes that the host generates and the GPU replicates.
static constexpr uint64_t kRandomBytes = uint64_t{1} << 20;

namespace {
/// Addresses, or sizes in bytes, of a, b, c and the workspace.
using Operands = std::array<uint64_t, 4>;

class GemmTimer {
public:
  GemmTimer(const CudaDriver &driver, CudaQueues &queues,
            std::span<const CudaSpan> memory)
      : driver(driver), queues(queues), memory(memory) {}

  Status fill(CudaTransfers &transfers);
  Status clear();
  /// Returns addresses for the operands; std::nullopt if they do not fit.
  std::optional<Operands> place(const GemmSignature &signature,
                                const GemmChoice &choice) const;
  /// Chooses the fastest candidate; kUnavailable if none runs.
  Status measure(const GemmSignature &signature, const Operands &operands,
                 GemmChoice &choice);

private:
  Status createEvents(size_t candidates);
  Status enqueue(const GemmSignature &signature, const Operands &operands,
                 const GemmChoice &choice, size_t candidate);
  /// Runs a candidate once and captures its graph.
  Status record(const GemmSignature &signature, const Operands &operands,
                const GemmChoice &choice, size_t candidate);
  /// Runs each of `candidates` once; lowers its `best` time if it was faster.
  Status runRound(std::span<const size_t> candidates,
                  std::vector<double> &best);

  const CudaDriver &driver;
  CudaQueues &queues;
  std::span<const CudaSpan> memory;
  CudaGraphs graphs; ///< per candidate of the current GEMM
  std::vector<CudaEvent> begin, end; ///< around each graph
};
} // namespace

Status GemmTimer::createEvents(size_t candidates) {
  for (std::vector<CudaEvent> *events : {&begin, &end})
    while (events->size() < candidates) {
      CUevent event = nullptr;
      QLORA_RETURN_IF_ERROR(
          driver.check(driver.eventCreate(&event, 0), "cuEventCreate"));
      events->emplace_back(driver, event);
    }
  return Status::ok();
}

/// Whether `status` means that a candidate does not support its operands,
/// cannot be captured, or has no memory for its code.
static bool isRefusal(const Status &status) {
  return status.code() == StatusCode::kUnavailable ||
         status.code() == StatusCode::kResourceExhausted;
}

/// Returns random bf16 values with magnitudes from 1/8 to 1. Read as f32,
/// values have the same range, because a bf16 is the upper half of an f32.
static std::vector<uint8_t> randomBytes() {
  std::vector<uint8_t> bytes;
  uint64_t state = 1;
  while (bytes.size() < kRandomBytes) {
    state = state * 6364136223846793005u + 1442695040888963407u; // Knuth
    const auto bits = static_cast<uint32_t>(state >> 33);
    const uint32_t exponent = 124 + (bits >> 16) % 3;
    const uint32_t word = (bits & 0x807f) | exponent << 7;
    bytes.push_back(static_cast<uint8_t>(word));
    bytes.push_back(static_cast<uint8_t>(word >> 8));
  }
  return bytes;
}

Status GemmTimer::fill(CudaTransfers &transfers) {
  const std::vector<uint8_t> random = randomBytes();
  for (const CudaSpan &span : memory) {
    uint64_t done = std::min<uint64_t>(random.size(), span.bytes);
    QLORA_RETURN_IF_ERROR(transfers.write(span.address, {random.data(), done}));
    while (done < span.bytes) {
      const uint64_t part = std::min(done, span.bytes - done);
      QLORA_RETURN_IF_ERROR(driver.check(
          driver.memcpyDtoDAsync(span.address + done, span.address, part,
                                 queues.compute()),
          "cuMemcpyDtoDAsync"));
      done += part;
    }
  }
  return Status::ok();
}

Status GemmTimer::clear() {
  for (const CudaSpan &span : memory)
    QLORA_RETURN_IF_ERROR(driver.check(
        driver.memsetD8Async(span.address, 0, span.bytes, queues.compute()),
        "cuMemsetD8Async"));
  return Status::ok();
}

static uint64_t operandBytes(qlora_dtype type, int64_t rows, int64_t columns,
                             int64_t ld) {
  return plans::matrixBytes(type, rows, columns, ld).bytes();
}

static Operands sizesOf(const GemmSignature &s, const GemmChoice &choice) {
  uint64_t scratch = 0;
  for (const GemmAlgorithm &candidate : choice.candidates)
    scratch = std::max(scratch, candidate.scratchBytes);
  return {operandBytes(s.type, s.transposeA ? s.k : s.m,
                       s.transposeA ? s.m : s.k, s.lda),
          operandBytes(s.type, s.transposeB ? s.n : s.k,
                       s.transposeB ? s.k : s.n, s.ldb),
          operandBytes(s.result, s.m, s.n, s.ldc), scratch};
}

/// Places the largest operand first, each in the span with most free bytes.
std::optional<Operands> GemmTimer::place(const GemmSignature &signature,
                                         const GemmChoice &choice) const {
  const Operands sizes = sizesOf(signature, choice);
  std::array<size_t, 4> order = {0, 1, 2, 3};
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t i, size_t j) { return sizes[i] > sizes[j]; });
  std::vector<CudaSpan> room(memory.begin(), memory.end());
  Operands addresses = {};
  for (const size_t operand : order) {
    if (sizes[operand] == 0)
      continue;
    const auto most = std::max_element(
        room.begin(), room.end(),
        [](const CudaSpan &a, const CudaSpan &b) { return a.bytes < b.bytes; });
    const uint64_t spare =
        most == room.end() ? 0 : -most->address % kOperandAlignment;
    if (most == room.end() || sizes[operand] + spare > most->bytes)
      return std::nullopt;
    addresses[operand] = most->address + spare;
    most->address += sizes[operand] + spare;
    most->bytes -= sizes[operand] + spare;
  }
  return addresses;
}

Status GemmTimer::enqueue(const GemmSignature &signature,
                          const Operands &operands, const GemmChoice &choice,
                          size_t candidate) {
  const auto pointer = [&](size_t operand) {
    return reinterpret_cast<void *>(operands[operand]);
  };
  plans::GemmProblem scalars = {};
  scalars.beta = signature.adds ? 1 : 0;
  return choice.description->enqueue(scalars, pointer(0), pointer(1),
                                     pointer(2), choice.candidates[candidate],
                                     pointer(3), queues.compute());
}

Status GemmTimer::record(const GemmSignature &signature,
                         const Operands &operands, const GemmChoice &choice,
                         size_t candidate) {
  QLORA_RETURN_IF_ERROR(enqueue(signature, operands, choice, candidate));
  QLORA_RETURN_IF_ERROR(graphs.beginCapture());
  Status enqueued;
  for (int launch = 0; launch < kLaunches && enqueued.isOk(); ++launch)
    enqueued = enqueue(signature, operands, choice, candidate);
  const Status ended = graphs.endCapture(candidate);
  // A library call that breaks the capture may return any error. The error of
  // endCapture() tells whether the candidate is refused.
  if (enqueued.isOk() || isRefusal(ended))
    return ended;
  return ended.isOk() ? enqueued : ended.withContext(enqueued.message());
}

Status GemmTimer::runRound(std::span<const size_t> candidates,
                           std::vector<double> &best) {
  // An extra launch keeps the GPU busy while the host enqueues the others.
  QLORA_RETURN_IF_ERROR(graphs.launch(candidates.front()));
  for (const size_t i : candidates) {
    QLORA_RETURN_IF_ERROR(queues.record(begin[i]));
    QLORA_RETURN_IF_ERROR(graphs.launch(i));
    QLORA_RETURN_IF_ERROR(queues.record(end[i]));
  }
  QLORA_RETURN_IF_ERROR(queues.waitOnHost(end[candidates.back()]));
  for (const size_t i : candidates) {
    float milliseconds = 0;
    QLORA_RETURN_IF_ERROR(driver.check(
        driver.eventElapsedTime(&milliseconds, begin[i].get(), end[i].get()),
        "cuEventElapsedTime"));
    best[i] = std::min(best[i], double(milliseconds) * 1e-3 / kLaunches);
  }
  return Status::ok();
}

Status GemmTimer::measure(const GemmSignature &signature,
                          const Operands &operands, GemmChoice &choice) {
  std::vector<double> best(choice.candidates.size(), kNever);
  QLORA_RETURN_IF_ERROR(createEvents(best.size()));
  graphs = {};
  graphs.create(driver, queues.compute(), best.size());
  std::vector<size_t> running;
  Status refused;
  for (size_t i = 0; i < best.size(); ++i) {
    Status recorded = record(signature, operands, choice, i);
    if (recorded.isOk())
      running.push_back(i);
    else if (isRefusal(recorded))
      refused = std::move(recorded);
    else
      return recorded;
  }
  if (running.empty())
    return Status::unavailable("no algorithm of cuBLASLt runs for GEMM {}; {}",
                               signature.text(), refused.message());
  for (int round = 0; round < kRounds; ++round) {
    QLORA_RETURN_IF_ERROR(runRound(running, best));
    const double first = *std::min_element(best.begin(), best.end());
    std::erase_if(running,
                  [&](size_t i) { return best[i] > kHopeless * first; });
  }
  size_t chosen = 0;
  for (size_t i = 1; i < best.size(); ++i)
    if (best[i] < kClearly * best[chosen])
      chosen = i;
  choice.algorithm = choice.candidates[chosen];
  // Round to nanoseconds, finer than events resolve; 0 means not measured.
  choice.microseconds = std::max(1.0, std::round(best[chosen] * 1e9)) / 1e3;
  return Status::ok();
}

static bool isWanted(const GemmSignature &signature, const GemmChoice &choice) {
  return signature.alignment >= GemmSelection::kAlignment &&
         choice.microseconds == 0 && !choice.candidates.empty();
}

StatusOr<GemmTimingResult>
measureGemms(GemmSelection &gemms, const CudaDriver &driver, CudaQueues &queues,
             CudaTransfers &transfers, std::span<const CudaSpan> memory,
             std::chrono::milliseconds bound) {
  const Clock::time_point start = Clock::now();
  GemmTimingResult result;
  GemmTimer timer(driver, queues, memory);
  bool isFilled = false;
  for (auto &[signature, choice] : gemms.choices) {
    if (!isWanted(signature, choice))
      continue;
    const auto operands = timer.place(signature, choice);
    const bool isLate = Clock::now() - start >= bound;
    result.outOfTime += isLate;
    result.outOfRoom += !isLate && !operands;
    if (isLate || !operands)
      continue;
    if (!isFilled)
      QLORA_RETURN_IF_ERROR(timer.fill(transfers));
    isFilled = true;
    QLORA_RETURN_IF_ERROR(timer.measure(signature, *operands, choice));
    ++result.measured;
  }
  if (isFilled)
    QLORA_RETURN_IF_ERROR(timer.clear());
  return result;
}

} // namespace qlora
