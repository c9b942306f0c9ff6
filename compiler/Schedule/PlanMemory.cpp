// SPDX-License-Identifier: MIT

// plan-memory: lifetimes become offsets.
//
//   %a = program.buffer activation bytes 8192 ...      // commands 0 to 2
//   %b = program.buffer activation bytes 8192 ...      // commands 3 to 4
//
// becomes, as the two never live together,
//
//   %a = program.buffer activation offset 0 bytes 8192 ...
//   %b = program.buffer activation offset 0 bytes 8192 ...
//
// Offsets are multiples of the arena's alignment. The packing itself is
// compiler/Support/ArenaPacker.h.

#include "compiler/Passes.h"
#include "compiler/Schedule/EntryBuffers.h"
#include "compiler/Schedule/StepLowering.h"
#include "compiler/Support/ArenaPacker.h"

#include "llvm/Support/JSON.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

namespace qlora {
#define GEN_PASS_DEF_PLANMEMORY
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

/// What the report says of one entry.
struct EntryPlan {
  int64_t bytes[2] = {0, 0};     ///< activation, workspace
  int64_t liveBytes[2] = {0, 0}; ///< the most at one command, without gaps
  int64_t savedBytes = 0;        ///< of forward values that the backward reads
  SmallVector<BufferOp> largest;
};

class PlanMemoryPass : public qlora::impl::PlanMemoryBase<PlanMemoryPass> {
  void runOnOperation() override;
  EntryPlan planEntry(EntryOp entry);
  uint64_t alignmentOf(Arena arena);
  void writeReport(ArrayRef<std::pair<EntryOp, EntryPlan>> plans);
};

} // namespace

static constexpr Arena kPlanned[] = {Arena::Activation, Arena::Workspace};
/// Buffers named in the report and in the error of a limit.
static constexpr size_t kLargest = 8;

/// Gives the buffers of one arena their offsets.
static SmallVector<BufferOp> place(ArrayRef<BufferLife> lives, Arena arena,
                                   uint64_t alignment, int64_t &bytes,
                                   int64_t &liveBytes) {
  SmallVector<BufferOp> ops;
  std::vector<PackedBuffer> lifetimes;
  for (auto [buffer, first, last] : lives) {
    if (BufferOp(buffer).getArena() != arena)
      continue;
    ops.push_back(buffer);
    lifetimes.push_back({first, last, BufferOp(buffer).getBytes(), alignment});
  }
  PackResult packed = packArena(lifetimes);
  bytes = packed.bytes;
  liveBytes = packed.lowerBound;
  for (auto [op, offset] : llvm::zip_equal(ops, packed.offsets))
    op.setOffset(offset);
  return ops;
}

uint64_t PlanMemoryPass::alignmentOf(Arena kind) {
  for (auto arena : getOperation().getOps<ArenaOp>())
    if (arena.getKind() == kind)
      return arena.getAlignment();
  return kArenaAlignment;
}

EntryPlan PlanMemoryPass::planEntry(EntryOp entry) {
  EntryPlan plan;
  SmallVector<BufferLife> lives = livesOf(entry);
  for (auto [i, arena] : llvm::enumerate(kPlanned)) {
    SmallVector<BufferOp> placed =
        place(lives, arena, alignmentOf(arena), plan.bytes[i],
              plan.liveBytes[i]);
    for (BufferOp op : placed)
      if (op.getSaved())
        plan.savedBytes += op.getBytes();
    if (arena != Arena::Activation)
      continue;
    llvm::stable_sort(placed, [](BufferOp a, BufferOp b) {
      return a.getBytes() > b.getBytes();
    });
    placed.resize(std::min(placed.size(), kLargest));
    plan.largest = std::move(placed);
  }
  for (auto buffer :
       llvm::make_early_inc_range(entry.getBody().getOps<BufferOp>()))
    if (buffer->use_empty())
      buffer.erase();
  return plan;
}

void PlanMemoryPass::writeReport(
    ArrayRef<std::pair<EntryOp, EntryPlan>> plans) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  llvm::json::OStream json(stream);
  int64_t total = 0;
  json.object([&] {
    json.attributeObject("arenas", [&] {
      for (auto arena : getOperation().getOps<ArenaOp>()) {
        json.attribute(stringifyArena(arena.getKind()),
                       static_cast<int64_t>(arena.getBytes()));
        if (arena.getKind() != Arena::Host)
          total += arena.getBytes();
      }
    });
    json.attribute("total_bytes", total);
    json.attributeArray("entries", [&] {
      for (auto &[entry, plan] : plans)
        json.object([&] {
          EntryOp op = entry;
          json.attribute("kind", stringifyEntryKind(op.getKind()));
          json.attribute("batch", static_cast<int64_t>(op.getBatch()));
          json.attribute("length", static_cast<int64_t>(op.getLength()));
          json.attribute("activation_bytes", plan.bytes[0]);
          json.attribute("activation_live_bytes", plan.liveBytes[0]);
          json.attribute("saved_bytes", plan.savedBytes);
          json.attribute("workspace_bytes", plan.bytes[1]);
          json.attributeArray("largest", [&] {
            for (BufferOp buffer : plan.largest)
              json.object([&] {
                json.attribute("of", buffer.getLabel().value_or(""));
                json.attribute("bytes",
                               static_cast<int64_t>(buffer.getBytes()));
                json.attribute("saved", buffer.getSaved());
              });
          });
        });
    });
  });
  getOperation()->setAttr("program.plan",
                          StringAttr::get(&getContext(), text));
}

void PlanMemoryPass::runOnOperation() {
  SmallVector<std::pair<EntryOp, EntryPlan>> plans;
  int64_t bytes[2] = {0, 0};
  for (auto entry : getOperation().getOps<EntryOp>()) {
    plans.emplace_back(entry, planEntry(entry));
    for (int i = 0; i < 2; ++i)
      bytes[i] = std::max(bytes[i], plans.back().second.bytes[i]);
  }
  for (auto arena : getOperation().getOps<ArenaOp>())
    for (int i = 0; i < 2; ++i)
      if (arena.getKind() == kPlanned[i])
        arena.setBytes(bytes[i]);
  writeReport(plans);
}
