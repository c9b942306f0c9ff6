// SPDX-License-Identifier: MIT

// The algorithms of the collectives: what each rank sends in each slot.

#include "runtime/Ranks/RingCollectives.h"

#include <algorithm>

#include "runtime/Kernels/KernelTable.h"

namespace qlora {

/// Chunk size: small enough that a chunk stays in a core's cache while it is
/// summed, large enough that the waits of a slot do not dominate.
static constexpr size_t kChunkBytes = 256 * 1024;

Status RingCollectives::step(ConstBytes sent, Bytes received) {
  Message out(calls), in(calls);
  out.add(sent);
  in.add(received);
  return ring->exchange(Ring::kNext, &out, Ring::kPrevious, &in);
}

/// A barrier: after N - 1 steps, every rank's message has reached all others.
Status RingCollectives::meet() {
  for (int i = 1; i < size(); ++i)
    QLORA_RETURN_IF_ERROR(step({}, {}));
  return Status::ok();
}

// Sums and broadcasts
// ----------------------------------------------------------------------

/// Sends all chunks round the ring, from rank `first` to the rank before it.
struct RingCollectives::Pass {
  int first;
  int64_t start; ///< slot in which the first chunk is sent
  bool adds; ///< ranks add to the passing chunk; false: they store it

  int distance(int rank, int size) const {
    return (rank - first + size) % size;
  }
  /// Returns the chunk that a rank sends in a slot; out of range if none.
  int64_t sentBy(int rank, int size, int64_t slot) const {
    const int places = distance(rank, size);
    return places == size - 1 ? -1 : slot - start - places;
  }
};

Status RingCollectives::runPasses(std::span<const Pass> passes,
                                  qlora_dtype dtype, Bytes data) {
  const int64_t chunks =
      static_cast<int64_t>((data.size() + kChunkBytes - 1) / kChunkBytes);
  const auto chunk = [&](int64_t number) {
    const size_t begin = static_cast<size_t>(number) * kChunkBytes;
    return number < 0 || number >= chunks
               ? Bytes()
               : data.subspan(begin,
                              std::min(kChunkBytes, data.size() - begin));
  };
  const int previous = (rank() + size() - 1) % size();
  const int64_t slots = passes.back().start + size() - 2 + chunks;
  arriving.resize(std::min(kChunkBytes, data.size()));
  for (int64_t slot = 0; slot < slots; ++slot) {
    Message out(calls), in(calls);
    Bytes sent, received, added;
    for (const Pass &pass : passes) {
      const Bytes mine = chunk(pass.sentBy(rank(), size(), slot));
      const Bytes theirs = chunk(pass.sentBy(previous, size(), slot));
      out.add(mine);
      in.add(pass.adds ? Bytes(arriving).first(theirs.size()) : theirs);
      added = pass.adds ? theirs : added;
      sent = mine.empty() ? sent : mine;
      received = theirs.empty() ? received : theirs;
    }
    QLORA_RETURN_IF_ERROR(
        ring->exchange(Ring::kNext, sent.empty() ? nullptr : &out,
                       Ring::kPrevious, received.empty() ? nullptr : &in));
    addElements(dtype, added.data(), arriving.data(), added.size());
  }
  return Status::ok();
}

Status RingCollectives::sumInWindow(qlora_dtype dtype, Bytes data) {
  const size_t element = dtypeBits(dtype) / 8;
  while (!data.empty()) {
    const Bytes round =
        data.first(std::min(data.size(), SharedWindow::kCapacity));
    const size_t count = round.size() / element;
    const auto partBegin = [&](int part) {
      return count * static_cast<size_t>(part) / static_cast<size_t>(size()) *
             element;
    };
    window->write(round);
    QLORA_RETURN_IF_ERROR(meet());
    window->sumPart(dtype, partBegin(rank()), partBegin(rank() + 1));
    QLORA_RETURN_IF_ERROR(meet());
    window->read(0, round);
    window->finish();
    data = data.subspan(round.size());
  }
  return Status::ok();
}

Status RingCollectives::allReduce(qlora_dtype dtype, Bytes data) {
  if (window)
    return sumInWindow(dtype, data);
  const Pass passes[] = {{0, 0, true}, {size() - 1, size() - 1, false}};
  return runPasses(passes, dtype, data);
}

/// Runs an all-reduce and keeps this rank's shard of the result: the fixed
/// order of the sum sends every shard through all ranks anyway.
Status RingCollectives::reduceScatter(const CollectiveCall &call) {
  moving.assign(call.from.begin(), call.from.end());
  QLORA_RETURN_IF_ERROR(allReduce(call.dtype, moving));
  std::copy_n(moving.begin() + static_cast<size_t>(rank()) * call.to.size(),
              call.to.size(), call.to.begin());
  return Status::ok();
}

// All-gather and all-to-all
// ----------------------------------------------------------------------

/// Copies the rank's own shard to `piece`, unless both are the same memory.
static void putOwn(std::span<const uint8_t> own, std::span<uint8_t> piece) {
  if (own.data() != piece.data())
    std::copy(own.begin(), own.end(), piece.begin());
}

Status RingCollectives::gather(Bytes to, ConstBytes own) {
  const auto piece = [&](int ofRank) {
    return to.subspan(static_cast<size_t>((ofRank + size()) % size()) *
                          own.size(),
                      own.size());
  };
  putOwn(own, piece(rank()));
  for (int i = 0; i < size() - 1; ++i)
    QLORA_RETURN_IF_ERROR(step(piece(rank() - i), piece(rank() - i - 1)));
  return Status::ok();
}

/// All-gathers in shared memory, in equally many rounds on all ranks.
Status RingCollectives::gatherInWindow(Bytes to, ConstBytes own) {
  const auto pieceAt = [&](int ofRank, size_t done, size_t bytes) {
    return to.subspan(static_cast<size_t>(ofRank) * own.size() + done, bytes);
  };
  putOwn(own, pieceAt(rank(), 0, own.size()));
  for (size_t done = 0; done < own.size();) {
    const size_t bytes = std::min(own.size() - done, SharedWindow::kCapacity);
    window->write(own.subspan(done, bytes));
    QLORA_RETURN_IF_ERROR(meet());
    for (int places = 1; places < size(); ++places) {
      const int other = (rank() + places) % size();
      window->read(other, pieceAt(other, done, bytes));
    }
    window->finish();
    done += bytes;
  }
  return Status::ok();
}

/// Sends all blocks round the ring together, ordered by the distance to their
/// receivers. Each rank takes out its own block.
Status RingCollectives::allToAll(Bytes to, ConstBytes from) {
  const auto count = static_cast<size_t>(size());
  const size_t bytes = from.size() / count;
  const auto offsetOf = [&](size_t places) {
    return (static_cast<size_t>(rank()) + places) % count * bytes;
  };
  moving.clear();
  for (size_t places = 0; places < count; ++places) {
    const ConstBytes piece = from.subspan(offsetOf(places), bytes);
    moving.insert(moving.end(), piece.begin(), piece.end());
  }
  for (size_t places = 0; places < count; ++places) {
    if (places > 0) {
      arriving.resize(moving.size() - bytes);
      QLORA_RETURN_IF_ERROR(step(ConstBytes(moving).subspan(bytes), arriving));
      std::swap(moving, arriving);
    }
    std::copy_n(moving.begin(), bytes, to.begin() + offsetOf(count - places));
  }
  return Status::ok();
}

Status RingCollectives::sendOrReceive(const CollectiveCall &call) {
  const bool isSend = call.kind == QLORA_COLLECTIVE_SEND;
  if (call.peer != 1 && call.peer != -1)
    return Status::invalid(
        "a {} at a distance of {} ranks needs GPUs: CPU ranks reach only their "
        "neighbours",
        collectiveName(call.kind), call.peer);
  const Ring::Neighbour side = call.peer > 0 ? Ring::kNext : Ring::kPrevious;
  Message message(kBetweenTwo);
  message.add(isSend ? call.from : ConstBytes(call.to));
  return ring->exchange(side, isSend ? &message : nullptr, side,
                        isSend ? nullptr : &message);
}

Status RingCollectives::run(const CollectiveCall &call) {
  // SEND and RECV are not counted: pipeline stages run different numbers.
  const bool isOfTwo =
      call.kind == QLORA_COLLECTIVE_SEND || call.kind == QLORA_COLLECTIVE_RECV;
  if (isOfTwo)
    return sendOrReceive(call);
  ++calls;
  switch (call.kind) {
  case QLORA_COLLECTIVE_ALL_REDUCE:
    return allReduce(call.dtype, call.to);
  case QLORA_COLLECTIVE_ALL_GATHER:
    return window ? gatherInWindow(call.to, call.from)
                  : gather(call.to, call.from);
  case QLORA_COLLECTIVE_REDUCE_SCATTER:
    return reduceScatter(call);
  case QLORA_COLLECTIVE_BROADCAST: {
    const Pass pass = {call.peer, 0, false};
    return runPasses({&pass, 1}, call.dtype, call.to);
  }
  default:
    return allToAll(call.to, call.from);
  }
}

// Texts
// ----------------------------------------------------------------------

namespace {
/// The size of a text and its first bytes, usually the whole text.
struct Beginning {
  uint64_t bytes = 0;
  std::array<char, 56> text{};
};
} // namespace

StatusOr<std::vector<std::string>>
RingCollectives::allGather(std::string_view mine) {
  ++calls;
  constexpr size_t kBegun = sizeof Beginning::text;
  Beginning own;
  own.bytes = mine.size();
  mine.copy(own.text.data(), kBegun);
  std::vector<Beginning> begun(static_cast<size_t>(size()));
  QLORA_RETURN_IF_ERROR(
      gather({reinterpret_cast<uint8_t *>(begun.data()),
              begun.size() * sizeof(Beginning)},
             {reinterpret_cast<const uint8_t *>(&own), sizeof own}));
  std::vector<std::string> texts;
  for (const Beginning &each : begun) {
    texts.emplace_back(each.text.data(), std::min(each.bytes, kBegun));
    texts.back().resize(each.bytes);
  }
  const auto rest = [&](int ofRank) {
    std::string &text = texts[static_cast<size_t>((ofRank + size()) % size())];
    return Bytes(reinterpret_cast<uint8_t *>(text.data()), text.size())
        .subspan(std::min(text.size(), kBegun));
  };
  std::copy(mine.begin(), mine.end(),
            texts[static_cast<size_t>(rank())].begin());
  if (std::all_of(begun.begin(), begun.end(),
                  [](const Beginning &each) { return each.bytes <= kBegun; }))
    return texts;
  for (int i = 0; i < size() - 1; ++i)
    QLORA_RETURN_IF_ERROR(step(rest(rank() - i), rest(rank() - i - 1)));
  return texts;
}

} // namespace qlora
