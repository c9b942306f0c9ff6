// SPDX-License-Identifier: MIT

// The cost of a collective on a device and its links: one model for the
// compiler and the null device.
//
// GPUs use a ring inside each node. If there are several nodes, a ring between
// them follows, in which each GPU sends its own range. A send and its receive
// use one link. The GPUs' arithmetic and memory are assumed to stay free.
//
// CPU ranks of one machine copy through shared memory, the window
// (Ranks/SharedWindow.h), on the cores that would otherwise compute. For B
// bytes on N ranks, a rank accesses memory as follows:
//
//   all_gather       (2 + 2 / N) B: copies the own shard to its place and into
//                    the window, and the other shards out of the window
//   all_reduce       (4 + 3 (N - 1) / N) B: copies B into the window, adds up
//                    one range, copies B out
//   reduce_scatter   (2 + 2 / N) B more than all_reduce: first copies B, then
//                    does an all_reduce, then copies its shard
//
// The ranks meet for each MiB once, or twice for a sum. A meeting needs N - 1
// messages to sleeping threads.
//
// Other collectives, and all over a network, use a ring of sockets
// (Ranks/RingCollectives.h). A sum or broadcast sends C chunks of c bytes, with
// c <= 256 KiB. A rank waits for the messages one after another:
//
//                               messages       bytes on the busiest link
//   all_reduce,                 C + 2 N - 3    N = 2: B + c
//   reduce_scatter                             N > 2: 2 B + (2 N - 4) c
//   broadcast                   C + N - 2      B + (N - 2) c
//   all_gather                  N - 1          B (N - 1) / N
//   all_to_all                  N - 1          B (N - 1) / 2
//   send, recv                  1              B
//
// On one machine, an all_to_all also moves B / 2 for packing.
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
