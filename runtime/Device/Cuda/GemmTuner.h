// SPDX-License-Identifier: MIT

// Chooses the GEMM algorithms of a device, before and after its kernels are
// prepared:
//
//   begin()    reads the pinned table, or requests several candidates each
//   (kernels are prepared: GemmSelection has a choice for every GEMM)
//   finish()   takes algorithms from the cache, measures the rest
//              (GemmTiming.h), and makes all ranks agree
//
// Ranks. The first rank of each GPU model decides for that model; the others
// use its algorithms, so that results do not depend on the rank. They wait
// while it measures, at most for the group's timeout.
//
// The cache is one table of all GPU models that this user has run on. A damaged
// cache gives a remark and is replaced. If two jobs write at once, entries of
// one are lost and measured again.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_GEMMTUNER_H
#define QLORA_RUNTIME_DEVICE_CUDA_GEMMTUNER_H

#include "runtime/Device/Collectives.h"
#include "runtime/Device/Cuda/GemmTiming.h"
#include "runtime/Device/Device.h"
#include "runtime/Kernels/Cuda/CudaGpu.h"

namespace qlora {

class GemmTuner {
public:
  /// Bound on all measuring of a run, in host time.
  static constexpr std::chrono::milliseconds kBound = std::chrono::seconds(30);

  /// The arguments are DeviceOptions::gemmTable and gemmCache.
  GemmTuner(std::string request, std::string cacheFile);

  /// Errors name the table's file if it cannot be read, is damaged, or is not
  /// for this GPU and these libraries.
  Status begin(const CudaGpu &gpu, const CudaDriver &driver,
               const CublasLt &blas, GemmSelection &gemms);

  /// `memory` holds zeros, before and afterwards. If `ranks` is null, this rank
  /// is alone. Adds a line to `notes` for whatever a user should know.
  Status finish(GemmSelection &gemms, const CudaDriver &driver,
                CudaQueues &queues, CudaTransfers &transfers,
                std::span<const CudaSpan> memory, Collectives *ranks,
                std::vector<std::string> &notes);

  /// Returns the algorithms in use, for all GPU models in the group. Empty
  /// without GEMMs.
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
