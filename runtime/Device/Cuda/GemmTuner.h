// SPDX-License-Identifier: MIT

// Chooses a device's GEMM algorithms, before and after kernels are prepared:
//
//   begin()    reads the pinned table, or requests several candidates per GEMM
//   (kernels are prepared: GemmSelection has a choice for every GEMM)
//   finish()   takes algorithms from the cache, measures the rest
//              (GemmTiming.h), and makes all ranks agree
//
// Ranks. The first rank of each GPU model decides for that model. Other ranks
// wait for its measurement (at most for the group's timeout) and use its
// algorithms, so that results do not depend on the rank.
//
// The cache is one table of all GPU models that this user has run on. A damaged
// cache is replaced, with a remark. If two jobs write at once, the entries of
// one job are lost and measured again.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_GEMMTUNER_H
#define QLORA_RUNTIME_DEVICE_CUDA_GEMMTUNER_H

#include "runtime/Device/Collectives.h"
#include "runtime/Device/Cuda/GemmTiming.h"
#include "runtime/Device/Device.h"
#include "runtime/Kernels/Cuda/CudaGpu.h"

namespace qlora {

class GemmTuner {
public:
  /// Time limit for all GEMM measurements of a run, on the host's clock.
  static constexpr std::chrono::milliseconds kBound = std::chrono::seconds(30);

  /// The arguments are DeviceOptions::gemmTable and gemmCache.
  GemmTuner(std::string request, std::string cacheFile);

  /// Reads the pinned table or requests candidates. An error names the table's
  /// file if the file is unreadable, damaged, or for another GPU or library.
  Status begin(const CudaGpu &gpu, const CudaDriver &driver,
               const CublasLt &blas, GemmSelection &gemms);

  /// Takes algorithms from the cache and measures the others. `memory` holds
  /// zeros, before and afterwards. `ranks` is null if there are no other ranks.
  /// Adds lines to `notes` about problems with the cache and the measurement.
  Status finish(GemmSelection &gemms, const CudaDriver &driver,
                CudaQueues &queues, CudaTransfers &transfers,
                std::span<const CudaSpan> memory, Collectives *ranks,
                std::vector<std::string> &notes);

  /// Returns the algorithms that each GPU model uses; empty without GEMMs.
  const GemmTable &table() const { return used; }

private:
  bool measures() const { return request == DeviceOptions::kMeasureGemms; }
  Status adoptCached(GemmSelection &gemms, std::vector<std::string> &notes);
  void storeMeasured(const GemmSelection &gemms,
                     std::vector<std::string> &notes) const;
  Status share(GemmSelection &gemms, Collectives &ranks, bool isFirst);

  std::string request;
  std::string cacheFile;
  GpuKind kind;
  GemmTable used;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_GEMMTUNER_H
