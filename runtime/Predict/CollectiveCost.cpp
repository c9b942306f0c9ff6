// SPDX-License-Identifier: MIT

// Costs of collectives: rings of GPUs, shared windows and rings of CPU ranks.

#include "runtime/Predict/CollectiveCost.h"

#include <algorithm>
#include <cmath>

#include "runtime/ABI/collective.h"

namespace qlora {

/// Time for a message to wake a sleeping thread.
static constexpr double kMessageSeconds = 25e-6;
/// Equals SharedWindow::kCapacity.
static constexpr double kRoundBytes = 1 << 20;
/// Maximum bytes per slot in a ring of CPU ranks.
static constexpr double kChunkBytes = 256 << 10;

/// Returns the bytes that each rank of a ring sends, per byte of the operand.
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
  if (isOfTwo) // with two ranks, the slower of the two links counts
    return gpu.allReduceMicroseconds * 1e-6 +
           bytes / ((nodes > 1 ? gpu.networkGbps : gpu.nodeLinkGbps) * 1e9);
  const double inside = ringShare(kind, local) * bytes;
  const double between = ringShare(kind, nodes) * bytes / local;
  return gpu.allReduceMicroseconds * 1e-6 * (1 + std::log2(nodes)) +
         inside / (gpu.nodeLinkGbps * 1e9) + between / (gpu.networkGbps * 1e9);
}

bool isInWindow(unsigned kind) {
  return kind == QLORA_COLLECTIVE_ALL_REDUCE ||
         kind == QLORA_COLLECTIVE_ALL_GATHER ||
         kind == QLORA_COLLECTIVE_REDUCE_SCATTER;
}

LinkUse windowUse(unsigned kind, double bytes, int64_t ranks) {
  const auto count = double(ranks);
  const bool isSum = kind != QLORA_COLLECTIVE_ALL_GATHER;
  // Memory accesses per byte.
  double accesses = isSum ? 4 + 3 * (count - 1) / count : 2 + 2 / count;
  if (kind == QLORA_COLLECTIVE_REDUCE_SCATTER)
    accesses += 2 + 2 / count;
  const double rounds =
      std::ceil((isSum ? bytes : bytes / count) / kRoundBytes);
  return {rounds * (isSum ? 2 : 1) * (count - 1), accesses * bytes};
}

LinkUse ringUse(unsigned kind, double bytes, int64_t ranks) {
  const auto count = double(ranks);
  const double chunks = std::ceil(bytes / kChunkBytes);
  const double chunk = std::min(bytes, kChunkBytes);
  // Number of times that the busiest link carries all bytes.
  const double times = std::min(2.0, count - 1);
  switch (kind) {
  case QLORA_COLLECTIVE_ALL_REDUCE:
  case QLORA_COLLECTIVE_REDUCE_SCATTER:
    return {2 * count - 3 + chunks,
            times * bytes + (2 * count - 2 - times) * chunk};
  case QLORA_COLLECTIVE_BROADCAST:
    return {count - 2 + chunks, bytes + (count - 2) * chunk};
  case QLORA_COLLECTIVE_ALL_GATHER:
    return {count - 1, (count - 1) / count * bytes};
  case QLORA_COLLECTIVE_ALL_TO_ALL:
    return {count - 1, (count - 1) / 2 * bytes};
  default:
    return {1, bytes};
  }
}

LinkUse socketUse(unsigned kind, double bytes, int64_t ranks) {
  LinkUse use = ringUse(kind, bytes, ranks);
  if (kind == QLORA_COLLECTIVE_ALL_TO_ALL)
    use.bytes += bytes / 2;
  return use;
}

/// Returns the demand if CPU ranks are on several machines.
static Demand networkDemand(const LinkUse &use, const LinkRate &link) {
  Demand demand;
  demand.launch = use.messages * link.messageMicroseconds * 1e-6;
  demand.serial = use.bytes / (link.gbps * 1e9);
  return demand;
}

static Demand machineDemand(const LinkUse &use,
                            const std::optional<LinkRate> &measured,
                            double accessesOfByte, double copyGbps) {
  const LinkRate link = measured.value_or(
      LinkRate{kMessageSeconds * 1e6, copyGbps / accessesOfByte});
  Demand demand;
  demand.launch = use.messages * link.messageMicroseconds * 1e-6;
  demand.memory = use.bytes / (link.gbps * 1e9);
  return demand;
}

Demand collectiveDemand(unsigned kind, double bytes, int64_t ranks,
                        int64_t stride, const DeviceProfile &device) {
  Demand demand;
  if (ranks <= 1)
    return demand;
  if (device.gpu) {
    demand.serial = linkSeconds(kind, bytes, ranks, stride, *device.gpu);
    return demand;
  }
  const RankLinks &links = device.links;
  if (links.network &&
      ranks > std::max<int64_t>(1, links.ranksPerNode / stride))
    return networkDemand(ringUse(kind, bytes, ranks), *links.network);
  if (isInWindow(kind))
    return machineDemand(windowUse(kind, bytes, ranks), links.window, 1,
                         device.copyGbps);
  return machineDemand(socketUse(kind, bytes, ranks), links.sockets, 2,
                       device.copyGbps);
}

} // namespace qlora
