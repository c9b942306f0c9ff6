// SPDX-License-Identifier: MIT

// What a collective asks of a device and of its links: one model for the
// compiler and the null device.
//
// GPUs: a ring inside each node, then, where there are several, a ring between
// the nodes in which each GPU sends its share. Two that send and receive have
// one link. Links only: neither arithmetic nor memory of the cards.
//
// CPU ranks of one machine copy through memory that they share
// (Ranks/SharedWindow.h), on the cores that would compute meanwhile: of B bytes
// on N ranks
//
//   all_gather       own piece to its place, own piece into the window, the
//                    others' out of it: (1 + 1/N) copies of B
//   all_reduce       all into the window, a part of it added up, all out of it:
//                    2 copies, and (N - 1) / N of three accesses
//   reduce_scatter   a copy of all, an all_reduce, a copy of a piece
//
// and for each MiB they meet, once or twice, by N - 1 messages to threads that
// sleep. Others go round a ring of sockets: N - 1 messages of all.

#ifndef QLORA_RUNTIME_PREDICT_COLLECTIVECOST_H
#define QLORA_RUNTIME_PREDICT_COLLECTIVECOST_H

#include <cstdint>

#include "runtime/Kernels/CostModel.h"

namespace qlora {

/// Of a collective (enum qlora_collective) whose larger operand has so many
/// bytes, over a group of `ranks`, each `stride` ranks from the one before;
/// nothing of a group of one. On a GPU all of it is `serial`; on a CPU there is
/// `memory`, which takes turns with kernels (Timeline.h).
Demand collectiveDemand(unsigned kind, double bytes, int64_t ranks,
                        const DeviceProfile &device, int64_t stride = 1);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_COLLECTIVECOST_H
