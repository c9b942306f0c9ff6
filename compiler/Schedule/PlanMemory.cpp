// SPDX-License-Identifier: MIT

// plan-memory: assigns arena offsets to buffers, according to their lifetimes.
//
//   %a = program.buffer activation bytes 8192 ...      // commands 0 to 2
//   %b = program.buffer activation bytes 8192 ...      // commands 3 to 4
//
// becomes, as their lifetimes do not overlap,
//
//   %a = program.buffer activation offset 0 bytes 8192 ...
//   %b = program.buffer activation offset 0 bytes 8192 ...
//
// Offsets are multiples of the arena's alignment. ArenaPacker.h describes the
// packing. The arena is as large as the largest entry needs. That entry is
// packed first. The others are packed in parallel, and their packing stops as
// soon as they fit into the same bytes.

#include "compiler/Passes.h"
#include "compiler/Schedule/EntryBuffers.h"
#include "compiler/Support/ArenaPacker.h"

#include "mlir/IR/Threading.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

namespace qlora {
#define GEN_PASS_DEF_PLANMEMORY
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class PlanMemoryPass : public qlora::impl::PlanMemoryBase<PlanMemoryPass> {
  void runOnOperation() override;
  void pack(ArenaOp arena, ArrayRef<SmallVector<BufferLife>> lives);
};

/// The buffers of an entry in one arena.
struct EntryPacking {
  SmallVector<BufferOp> ops;
  std::vector<PackedBuffer> buffers;
  uint64_t bytes = 0; ///< sum over all buffers
};
} // namespace

static EntryPacking packingOf(ArrayRef<BufferLife> lives, ArenaOp arena) {
  EntryPacking packing;
  for (auto [op, first, last] : lives) {
    BufferOp buffer = op;
    if (buffer.getArena() != arena.getKind())
      continue;
    packing.ops.push_back(buffer);
    packing.buffers.push_back({first, last, uint64_t(buffer.getBytes()),
                               uint64_t(arena.getAlignment())});
    packing.bytes += buffer.getBytes();
  }
  return packing;
}

/// Sets the offsets of the buffers. Returns the arena bytes that they need.
static uint64_t place(EntryPacking &packing, uint64_t enough) {
  PackResult packed = packArena(packing.buffers, enough);
  for (auto [op, offset] : llvm::zip_equal(packing.ops, packed.offsets))
    op.setOffset(offset);
  return packed.bytes;
}

void PlanMemoryPass::pack(ArenaOp arena,
                          ArrayRef<SmallVector<BufferLife>> lives) {
  std::vector<EntryPacking> packings;
  for (ArrayRef<BufferLife> entry : lives)
    packings.push_back(packingOf(entry, arena));
  if (packings.empty())
    return;
  auto largest = llvm::max_element(
      packings, [](auto &a, auto &b) { return a.bytes < b.bytes; });
  const uint64_t enough = place(*largest, 0);
  std::vector<uint64_t> bytes(packings.size(), enough);
  parallelFor(&getContext(), 0, packings.size(), [&](size_t i) {
    if (&packings[i] != &*largest)
      bytes[i] = place(packings[i], enough);
  });
  arena.setBytes(*llvm::max_element(bytes));
}

void PlanMemoryPass::runOnOperation() {
  SmallVector<EntryOp> entries(getOperation().getOps<EntryOp>());
  std::vector<SmallVector<BufferLife>> lives(entries.size());
  parallelFor(&getContext(), 0, entries.size(),
              [&](size_t i) { lives[i] = livesOf(entries[i]); });
  for (auto arena : getOperation().getOps<ArenaOp>())
    if (arena.getKind() == Arena::Activation ||
        arena.getKind() == Arena::Saved || arena.getKind() == Arena::Workspace)
      pack(arena, lives);
  for (EntryOp entry : entries)
    for (auto buffer :
         llvm::make_early_inc_range(entry.getBody().getOps<BufferOp>()))
      if (buffer->use_empty())
        buffer.erase();
}
