// SPDX-License-Identifier: MIT

// The cost of a collective on a device and its links: one model for the
// compiler and the null device.
//
// GPUs: a ring inside each node, then, if there are several, a ring between the
// nodes in which each GPU sends its own range. A send and its receive use one
// link. Only links are used, neither arithmetic nor memory of the GPUs.
//
// CPU ranks of one machine copy through shared memory, the window
// (Ranks/SharedWindow.h), on the cores that would otherwise compute. For B
// bytes on N ranks:
//
//   all_gather       copies the own shard to its place and into the window, and
//                    the other shards out of the window: (1 + 1/N) copies of B
//   all_reduce       copies B into the window, adds up one range, copies B out:
//                    2 copies of B, and 3 (N - 1) / N accesses of each byte
//   reduce_scatter   copies B, does an all_reduce, copies its shard
//
// For each MiB, the ranks meet once (twice for a sum), with N - 1 messages to
// sleeping threads. All other collectives use a ring of sockets
// (Ranks/RingCollectives.h), in slots of at most 256 KiB. Each slot is a
// message that a thread waits for. The busiest link's load is after the `;`:
//
//   all_reduce,      2 N - 3 slots and one for each 256 KiB; B and a chunk, or
//   reduce_scatter   2 B and 2 N - 4 chunks if N > 2
//   broadcast        N - 2 slots and one for each 256 KiB; B, and one chunk
//                    N - 2 times
//   all_gather       N - 1 slots; (N - 1) / N of B
//   all_to_all       N - 1 slots, ever smaller; (N - 1) / 2 of B, and on one
//                    machine half of B for packing
//   send, recv       one slot; B
//
// A measured profile has the times per message and per byte (RankLinks).
// Without one, a message takes 25 us, memory accesses have the rate of a copy,
// and a byte through a socket of a machine counts as two accesses. Copies on a
// machine take turns with kernels; transfers over a network do not.

#ifndef QLORA_RUNTIME_PREDICT_COLLECTIVECOST_H
#define QLORA_RUNTIME_PREDICT_COLLECTIVECOST_H

#include <cstdint>

#include "runtime/Kernels/CostModel.h"

namespace qlora {

/// How much a collective of CPU ranks uses a link.
struct LinkUse {
  double messages = 0; ///< number of messages, one after another
  double bytes = 0;    ///< read or written in memory, or sent by a socket
};
/// Whether ranks of one machine run a collective `kind` in shared memory.
bool isInWindow(unsigned kind);
/// Return the use of the shared window, of a ring of machines, and of a ring
/// inside one machine. The last includes packing for an all_to_all. `bytes` is
/// the size of the collective's larger operand.
LinkUse windowUse(unsigned kind, double bytes, int64_t ranks);
LinkUse ringUse(unsigned kind, double bytes, int64_t ranks);
LinkUse socketUse(unsigned kind, double bytes, int64_t ranks);

/// Returns the demand of a collective (enum qlora_collective) whose larger
/// operand has `bytes`. Its group has `ranks`, each `stride` ranks after the
/// one before; a group of one needs nothing. GPUs have only the demand
/// `serial`; `memory`, for CPU ranks of one machine, takes turns with kernels
/// (Timeline.h).
Demand collectiveDemand(unsigned kind, double bytes, int64_t ranks,
                        int64_t stride, const DeviceProfile &device);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_COLLECTIVECOST_H
