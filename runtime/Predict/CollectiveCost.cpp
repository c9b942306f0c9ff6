// SPDX-License-Identifier: MIT

// Rings of cards, windows of CPU ranks.

#include "runtime/Predict/CollectiveCost.h"

#include <algorithm>
#include <cmath>

#include "runtime/ABI/collective.h"

namespace qlora {

/// A message to a thread that sleeps, until it runs.
static constexpr double kMessageSeconds = 25e-6;
/// SharedWindow::kCapacity.
static constexpr double kRoundBytes = 1 << 20;

/// The share of its bytes that a ring of n ranks sends from each.
static double ringShare(unsigned kind, double ranks) {
  switch (kind) {
  case QLORA_COLLECTIVE_ALL_REDUCE:
    return 2 * (ranks - 1) / ranks;
  case QLORA_COLLECTIVE_ALL_GATHER:
  case QLORA_COLLECTIVE_REDUCE_SCATTER:
  case QLORA_COLLECTIVE_ALL_TO_ALL:
    return (ranks - 1) / ranks;
  default:
    return ranks > 1 ? 1 : 0;
  }
}

static double linkSeconds(unsigned kind, double bytes, int64_t ranks,
                          int64_t stride, const GpuRates &gpu) {
  const int64_t together = std::max<int64_t>(1, gpu.gpusPerNode / stride);
  const double local = double(std::min(ranks, together));
  const double nodes = std::ceil(double(ranks) / double(together));
  const bool isOfTwo =
      kind == QLORA_COLLECTIVE_SEND || kind == QLORA_COLLECTIVE_RECV;
  if (isOfTwo) // of which the slowest link is told
    return gpu.allReduceMicroseconds * 1e-6 +
           bytes / ((nodes > 1 ? gpu.networkGbps : gpu.nodeLinkGbps) * 1e9);
  const double inside = ringShare(kind, local) * bytes;
  const double between = ringShare(kind, nodes) * bytes / local;
  return gpu.allReduceMicroseconds * 1e-6 * (1 + std::log2(nodes)) +
         inside / (gpu.nodeLinkGbps * 1e9) + between / (gpu.networkGbps * 1e9);
}

namespace {
/// What a rank of a CPU does.
struct HostShare {
  double accesses = 0; ///< of its larger operand's bytes, read or written
  double meetings = 0; ///< in a round
  double roundShare = 1; ///< of these bytes, what goes into the window
};
} // namespace

static HostShare hostShare(unsigned kind, double ranks) {
  const HostShare sum = {4 + 3 * (ranks - 1) / ranks, 2};
  switch (kind) {
  case QLORA_COLLECTIVE_ALL_REDUCE:
    return sum;
  case QLORA_COLLECTIVE_ALL_GATHER:
    return {2 + 2 / ranks, 1, 1 / ranks};
  case QLORA_COLLECTIVE_REDUCE_SCATTER:
    return {sum.accesses + 2 + 2 / ranks, 2};
  default:
    return {2, 1};
  }
}

Demand collectiveDemand(unsigned kind, double bytes, int64_t ranks,
                        const DeviceProfile &device, int64_t stride) {
  Demand demand;
  if (ranks <= 1)
    return demand;
  if (device.gpu) {
    demand.serial = linkSeconds(kind, bytes, ranks, stride, *device.gpu);
    return demand;
  }
  const HostShare share = hostShare(kind, double(ranks));
  const double rounds = std::ceil(share.roundShare * bytes / kRoundBytes);
  demand.memory = share.accesses * bytes / (device.copyGbps * 1e9);
  demand.launch = rounds * share.meetings * double(ranks - 1) * kMessageSeconds;
  return demand;
}

} // namespace qlora
