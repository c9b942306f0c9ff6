// SPDX-License-Identifier: MIT

// The cache, the measurement, and the exchange between ranks.

#include "runtime/Device/Cuda/GemmTuner.h"

#include <algorithm>

#include "runtime/Base/UserFiles.h"

namespace qlora {

/// Number of candidates per GEMM. Later choices of cuBLASLt are rarely faster.
static constexpr size_t kCandidates = 8;

GemmTuner::GemmTuner(std::string request, std::string cacheFile)
    : request(std::move(request)), cacheFile(std::move(cacheFile)) {}

Status GemmTuner::begin(const CudaGpu &gpu, const CudaDriver &driver,
                        const CublasLt &blas, GemmSelection &gemms) {
  kind = {gpu.name, gpu.arch, gpu.multiprocessors, blas.version, 0};
  QLORA_RETURN_IF_ERROR(driver.check(driver.driverGetVersion(&kind.driver),
                                     "cuDriverGetVersion"));
  if (measures())
    gemms.setCandidates(kCandidates);
  if (measures() || request == DeviceOptions::kFirstGemms)
    return Status::ok();
  auto table = GemmTable::read(request);
  if (!table.isOk())
    return Status::error(table.status().code(), "--gemm-table: {}",
                         table.status().message());
  return gemms.pin(std::move(*table), request, kind);
}

// The cache ------------------------------------------------------------------

Status GemmTuner::adoptCached(GemmSelection &gemms,
                              std::vector<std::string> &notes) {
  if (cacheFile.empty())
    return Status::ok();
  auto table = GemmTable::read(cacheFile);
  if (table.status().code() == StatusCode::kDataLoss)
    notes.push_back(table.status().message() + "; GEMMs are measured again");
  const GemmTable::Products *known = table.isOk() ? table->find(kind) : nullptr;
  if (!known)
    return Status::ok();
  for (auto &[signature, choice] : gemms.choices)
    if (const auto entry = known->find(signature); entry != known->end())
      QLORA_RETURN_IF_ERROR(
          GemmSelection::adopt(signature, entry->second, choice).status());
  return Status::ok();
}

/// Stores measured entries only; a later run may measure the rest.
void GemmTuner::storeMeasured(const GemmSelection &gemms,
                              std::vector<std::string> &notes) const {
  if (cacheFile.empty())
    return;
  GemmTable mine;
  mine.gpus[kind] = gemms.entries();
  std::erase_if(mine.gpus[kind], [](const auto &entry) {
    return entry.second.microseconds == 0;
  });
  GemmTable all;
  if (auto table = GemmTable::read(cacheFile); table.isOk())
    all = std::move(*table);
  all.merge(mine);
  // If the cache cannot be written, the next run measures again.
  if (Status status = replaceWholeFile(cacheFile, all.text()); !status.isOk())
    notes.push_back(status.message());
}

// Ranks ----------------------------------------------------------------------

Status GemmTuner::share(GemmSelection &gemms, Collectives &ranks,
                        bool isFirst) {
  QLORA_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      ranks.allGather(isFirst ? used.text() : std::string()));
  used = {};
  for (const std::string &text : texts) {
    if (text.empty())
      continue;
    QLORA_ASSIGN_OR_RETURN(const GemmTable table, GemmTable::parse(text));
    used.merge(table);
  }
  const GemmTable::Products *decided = used.find(kind);
  for (auto &[signature, choice] : gemms.choices) {
    if (isFirst || !decided)
      break;
    const auto entry = decided->find(signature);
    // The deciding rank may run other kernels, and lack this GEMM.
    if (entry == decided->end())
      continue;
    QLORA_ASSIGN_OR_RETURN(
        const bool isTaken,
        GemmSelection::adopt(signature, entry->second, choice));
    if (!isTaken)
      return Status::unavailable(
          "cuBLASLt rejects another rank's algorithm for GEMM {}, although GPU "
          "and libraries are the same; use --gemm-table heuristic",
          signature.text());
  }
  return Status::ok();
}

static StatusOr<bool> isFirstOfKind(Collectives &ranks, const GpuKind &kind) {
  const std::string mine = kind.text();
  QLORA_ASSIGN_OR_RETURN(const std::vector<std::string> kinds,
                         ranks.allGather(mine));
  const auto first = std::find(kinds.begin(), kinds.end(), mine);
  return first - kinds.begin() == ranks.rank();
}

static void noteUnmeasured(const GemmTimingResult &result,
                           std::vector<std::string> &notes) {
  if (result.outOfTime > 0)
    notes.push_back(fmt::format(
        "{} GEMMs use cuBLASLt's first choice: measuring {} others took {} s; "
        "the next run continues",
        result.outOfTime, result.measured,
        std::chrono::duration_cast<std::chrono::seconds>(GemmTuner::kBound)
            .count()));
  if (result.outOfRoom > 0)
    notes.push_back(
        fmt::format("{} GEMMs use cuBLASLt's first choice: they cannot be "
                    "measured, as their operands do not fit into the arenas",
                    result.outOfRoom));
}

Status GemmTuner::finish(GemmSelection &gemms, const CudaDriver &driver,
                         CudaQueues &queues, CudaTransfers &transfers,
                         std::span<const CudaSpan> memory, Collectives *ranks,
                         std::vector<std::string> &notes) {
  const bool isAlone = !ranks || ranks->size() == 1;
  bool isFirst = true;
  if (!isAlone) {
    QLORA_ASSIGN_OR_RETURN(isFirst, isFirstOfKind(*ranks, kind));
  }
  if (isFirst && measures()) {
    QLORA_RETURN_IF_ERROR(adoptCached(gemms, notes));
    QLORA_ASSIGN_OR_RETURN(
        const GemmTimingResult result,
        measureGemms(gemms, driver, queues, transfers, memory, kBound));
    noteUnmeasured(result, notes);
    if (result.measured > 0)
      storeMeasured(gemms, notes);
  }
  if (!gemms.choices.empty())
    used.gpus[kind] = gemms.entries();
  return isAlone ? Status::ok() : share(gemms, *ranks, isFirst);
}

} // namespace qlora
