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
// sleep. Everything else, and all between machines, goes round a ring of
// sockets (Ranks/RingCollectives.h), in slots of at most 256 KiB, for each of
// which somebody waits for a message:
//
//   all_reduce,      2 N - 3 slots and one for each 256 KiB; a link has all of
//   reduce_scatter   B, and where N > 2 some have it twice, and the first chunk
//                    passes the others before it
//   broadcast        N - 2 slots and one for each 256 KiB; B, and that of one
//                    chunk N - 2 times
//   all_gather       N - 1 slots; (N - 1) / N of B
//   all_to_all       N - 1 slots, of ever less; (N - 1) / 2 of B, and on a
//                    machine a half of B for packing
//   send, recv       one; B
//
// A profile says what messages and bytes take where it was measured
// (RankLinks). Elsewhere a message takes 25 us, memory is read and written at
// the rate of a copy, and so is, twice, what a socket of a machine carries.
// What is copied on a machine takes turns with kernels, what a network carries
// does not.

#ifndef QLORA_RUNTIME_PREDICT_COLLECTIVECOST_H
#define QLORA_RUNTIME_PREDICT_COLLECTIVECOST_H

#include <cstdint>

#include "runtime/Kernels/CostModel.h"

namespace qlora {

/// What a collective of CPU ranks asks of what is between them.
struct LinkUse {
  double messages = 0; ///< one after the other
  double bytes = 0;    ///< read or written in memory, or sent by a socket
};
/// Whether ranks of one machine do it in memory that they share.
bool isInWindow(unsigned kind);
/// There, round a ring of machines, and round one of a machine, where packing
/// what an all_to_all sends counts too: of a collective whose larger operand
/// has `bytes`.
LinkUse windowUse(unsigned kind, double bytes, int64_t ranks);
LinkUse ringUse(unsigned kind, double bytes, int64_t ranks);
LinkUse socketUse(unsigned kind, double bytes, int64_t ranks);

/// Of a collective (enum qlora_collective) whose larger operand has so many
/// bytes, over a group of `ranks`, each `stride` ranks from the one before;
/// nothing of a group of one. On a GPU all of it is `serial`; on CPUs of one
/// machine there is `memory`, which takes turns with kernels (Timeline.h).
Demand collectiveDemand(unsigned kind, double bytes, int64_t ranks,
                        int64_t stride, const DeviceProfile &device);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_COLLECTIVECOST_H
