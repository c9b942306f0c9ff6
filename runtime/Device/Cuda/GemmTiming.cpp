// SPDX-License-Identifier: MIT

// Where operands lie, how often a candidate runs, and which one wins.

#include "runtime/Device/Cuda/GemmTiming.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

namespace qlora {

using Clock = std::chrono::steady_clock;

static constexpr int kRounds = 3;
static constexpr int kRuns = 3; ///< of a candidate in a round
/// Times the best: not worth another round.
static constexpr double kHopeless = 1.5;
/// Of the time of an earlier candidate: clearly faster.
static constexpr double kClearly = 0.99;
static constexpr double kNever = std::numeric_limits<double>::infinity();

/// Operands begin at multiples of this.
static constexpr uint64_t kOperandAlignment = 256;
/// Bytes that the host makes; the card copies them on.
static constexpr uint64_t kRandomBytes = uint64_t{1} << 20;

namespace {
/// a, b, c and the workspace; addresses or bytes.
using Operands = std::array<uint64_t, 4>;

class GemmTimer {
public:
  GemmTimer(const CudaDriver &driver, CudaQueues &queues,
            std::span<const CudaSpan> memory)
      : driver(driver), queues(queues), memory(memory) {}

  Status create();
  Status fill(CudaTransfers &transfers);
  Status clear();
  /// Nothing where the operands do not fit.
  std::optional<Operands> place(const GemmSignature &signature,
                                const GemmChoice &choice) const;
  /// Chooses the fastest candidate, if any runs.
  Status measure(const GemmSignature &signature, const Operands &operands,
                 GemmChoice &choice);

private:
  StatusOr<CudaEvent> newTimedEvent() const;
  /// Seconds of one of `runs`; never, where the algorithm cannot run.
  StatusOr<double> time(const GemmSignature &signature,
                        const Operands &operands, const GemmChoice &choice,
                        const GemmAlgorithm &algorithm, int runs);

  const CudaDriver &driver;
  CudaQueues &queues;
  std::span<const CudaSpan> memory;
  CudaEvent begin, end;
};
} // namespace

StatusOr<CudaEvent> GemmTimer::newTimedEvent() const {
  CUevent event = nullptr;
  QLORA_RETURN_IF_ERROR(
      driver.check(driver.eventCreate(&event, 0), "cuEventCreate"));
  return CudaEvent(driver, event);
}

Status GemmTimer::create() {
  QLORA_ASSIGN_OR_RETURN(begin, newTimedEvent());
  QLORA_ASSIGN_OR_RETURN(end, newTimedEvent());
  return Status::ok();
}

/// Numbers from 1/8 to 1 with a sign, read as bf16; read as f32, their first
/// half is such a number.
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
    QLORA_RETURN_IF_ERROR(
        driver.check(driver.memsetD8Async(span.address, 0, span.bytes,
                                          queues.compute()),
                     "cuMemsetD8Async"));
  return Status::ok();
}

static uint64_t operandBytes(qlora_dtype type, int64_t rows, int64_t columns,
                             int64_t ld) {
  return requests::matrixBytes(type, rows, columns, ld).bytes();
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

/// The largest first, each where most room is left.
std::optional<Operands> GemmTimer::place(const GemmSignature &signature,
                                         const GemmChoice &choice) const {
  const Operands sizes = sizesOf(signature, choice);
  std::array<size_t, 4> order = {0, 1, 2, 3};
  std::stable_sort(order.begin(), order.end(), [&](size_t i, size_t j) {
    return sizes[i] > sizes[j];
  });
  std::vector<CudaSpan> room(memory.begin(), memory.end());
  Operands addresses = {};
  for (const size_t operand : order) {
    if (sizes[operand] == 0)
      continue;
    const auto most = std::max_element(
        room.begin(), room.end(), [](const CudaSpan &a, const CudaSpan &b) {
          return a.bytes < b.bytes;
        });
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

StatusOr<double> GemmTimer::time(const GemmSignature &signature,
                                 const Operands &operands,
                                 const GemmChoice &choice,
                                 const GemmAlgorithm &algorithm, int runs) {
  const auto pointer = [&](size_t operand) {
    return reinterpret_cast<void *>(operands[operand]);
  };
  requests::GemmProblem scalars = {};
  scalars.beta = signature.adds ? 1 : 0;
  QLORA_RETURN_IF_ERROR(queues.record(begin));
  for (int run = 0; run < runs; ++run) {
    const Status status = choice.description->enqueue(
        scalars, pointer(0), pointer(1), pointer(2), algorithm, pointer(3),
        queues.compute());
    // Not for these operands after all, or its code finds no memory.
    if (status.code() == StatusCode::kUnavailable ||
        status.code() == StatusCode::kResourceExhausted)
      return kNever;
    QLORA_RETURN_IF_ERROR(status);
  }
  QLORA_RETURN_IF_ERROR(queues.record(end));
  QLORA_RETURN_IF_ERROR(queues.waitOnHost(end));
  float milliseconds = 0;
  QLORA_RETURN_IF_ERROR(driver.check(
      driver.eventElapsedTime(&milliseconds, begin.get(), end.get()),
      "cuEventElapsedTime"));
  return double(milliseconds) * 1e-3 / runs;
}

Status GemmTimer::measure(const GemmSignature &signature,
                          const Operands &operands, GemmChoice &choice) {
  std::vector<double> best(choice.candidates.size(), kNever);
  std::vector<bool> runs(best.size(), true);
  for (int round = -1; round < kRounds; ++round) {
    const bool isWarmUp = round < 0;
    for (size_t i = 0; i < best.size(); ++i) {
      if (!runs[i])
        continue;
      QLORA_ASSIGN_OR_RETURN(const double seconds,
                             time(signature, operands, choice,
                                  choice.candidates[i], isWarmUp ? 1 : kRuns));
      runs[i] = seconds != kNever;
      if (!isWarmUp)
        best[i] = std::min(best[i], seconds);
    }
    const double first = *std::min_element(best.begin(), best.end());
    for (size_t i = 0; i < best.size() && !isWarmUp; ++i)
      runs[i] = runs[i] && best[i] <= kHopeless * first;
  }
  size_t chosen = 0;
  for (size_t i = 1; i < best.size(); ++i)
    if (best[i] < kClearly * best[chosen])
      chosen = i;
  if (best[chosen] == kNever)
    return Status::error(StatusCode::kUnavailable,
                         "no algorithm of cuBLASLt runs for the product {}",
                         signature.text());
  choice.algorithm = choice.candidates[chosen];
  // Nanoseconds, which events do not resolve anyway; never 0.
  choice.microseconds = std::max(1.0, std::round(best[chosen] * 1e9)) / 1e3;
  return Status::ok();
}

static bool isWanted(const GemmSignature &signature, const GemmChoice &choice) {
  return signature.alignment >= GemmSelection::kAlignment &&
         choice.microseconds == 0 && !choice.candidates.empty();
}

StatusOr<GemmTimingResult>
measureGemms(GemmSelection &gemms, const CudaDriver &driver,
             CudaQueues &queues, CudaTransfers &transfers,
             std::span<const CudaSpan> memory,
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
    if (!isFilled) {
      QLORA_RETURN_IF_ERROR(timer.create());
      QLORA_RETURN_IF_ERROR(timer.fill(transfers));
    }
    isFilled = true;
    QLORA_RETURN_IF_ERROR(timer.measure(signature, *operands, choice));
    ++result.measured;
  }
  if (isFilled)
    QLORA_RETURN_IF_ERROR(timer.clear());
  return result;
}

} // namespace qlora
