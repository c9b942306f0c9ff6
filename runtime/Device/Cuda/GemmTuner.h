// SPDX-License-Identifier: MIT

// Where the algorithms of a device's matrix products come from, around the
// preparation of its kernels:
//
//   begin()    reads the pinned table, or asks for several candidates each
//   (kernels are prepared: GemmSelection has a choice for every product)
//   finish()   takes what the cache knows, measures the rest (GemmTiming.h),
//              and makes all ranks agree
//
// Ranks. The first rank of each kind of card decides for that kind; the others
// take its algorithms, so that the same numbers come out whichever rank has
// them. They wait while it measures, at most for the group's timeout.
//
// The cache is one table of all kinds that this user has run on. A damaged one
// is a remark, and is replaced; two jobs that write at once lose entries of
// one, which are measured again.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_GEMMTUNER_H
#define QLORA_RUNTIME_DEVICE_CUDA_GEMMTUNER_H

#include "runtime/Device/Collectives.h"
#include "runtime/Device/Cuda/GemmTiming.h"
#include "runtime/Device/Device.h"
#include "runtime/Kernels/Cuda/CudaCard.h"

namespace qlora {

class GemmTuner {
public:
  /// Of all measuring of a run, in time of the host.
  static constexpr std::chrono::milliseconds kBound = std::chrono::seconds(30);

  /// `request`: as DeviceOptions.gemmTable, and its cache.
  GemmTuner(std::string request, std::string cacheFile);

  /// Errors name the file of a table that cannot be read, is damaged, or is
  /// not for this card and these libraries.
  Status begin(const CudaCard &card, const CudaDriver &driver,
               const CublasLt &blas, GemmSelection &gemms);

  /// `memory` holds zeros, now and afterwards. Without `ranks` this one is
  /// alone. `notes` get a line for whatever a user should know.
  Status finish(GemmSelection &gemms, const CudaDriver &driver,
                CudaQueues &queues, CudaTransfers &transfers,
                std::span<const CudaSpan> memory, Collectives *ranks,
                std::vector<std::string> &notes);

  /// The algorithms in use, of all kinds of cards in the group. Empty without
  /// products.
  const GemmTable &table() const { return used; }

private:
  bool measures() const { return request == DeviceOptions::kMeasureGemms; }
  Status adoptCached(GemmSelection &gemms, std::vector<std::string> &notes);
  void storeMeasured(const GemmSelection &gemms,
                     std::vector<std::string> &notes) const;
  Status share(GemmSelection &gemms, Collectives &ranks, bool isFirst);

  std::string request;
  std::string cacheFile;
  CardKind kind;
  GemmTable used;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_GEMMTUNER_H
