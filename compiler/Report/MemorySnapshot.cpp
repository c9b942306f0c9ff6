// SPDX-License-Identifier: MIT

// Converts arenas to segments and lifetimes to events (MemorySnapshot.h).

#include "compiler/Report/MemorySnapshot.h"

#include "compiler/Schedule/Commands.h"
#include "compiler/Support/PickleWriter.h"

#include "llvm/Support/FormatVariadic.h"

#include <map>

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

/// Address of the first segment. It is as high as GPU addresses, and exactly
/// representable as a double, because readers compute with doubles.
static constexpr int64_t kFirstAddress = 0x7f0000000000;
/// Segments begin at multiples of this, as in PyTorch's caching allocator.
static constexpr int64_t kSegmentAlignment = 2 << 20;

namespace {

/// A range of a segment that is always in use.
struct Block {
  int64_t offset, bytes;
  std::string name;
  Location loc;
};

class SnapshotWriter {
public:
  explicit SnapshotWriter(ModuleOp program) : program(program) {}

  std::string write(ArrayRef<EntryTimeline> timelines);

private:
  void placeArenas();
  void segment(ArenaOp arena);
  void block(int64_t address, int64_t bytes, const Block *used);
  void trace(const EntryTimeline &timeline);
  void event(StringRef action, const TimelineBuffer &buffer, double seconds,
             function_ref<void()> frames);
  uint32_t frames(BufferOp buffer, StringRef kernel, EntryOp entry);
  void frame(StringRef name, Location loc);
  void key(StringRef name) { pickle.text(std::string_view(name)); }
  void field(StringRef name, StringRef value) {
    key(name), pickle.text(std::string_view(value));
  }
  void field(StringRef name, int64_t value) {
    key(name), pickle.integer(value);
  }

  ModuleOp program;
  PickleWriter pickle;
  std::map<Arena, int64_t> addresses;
  std::map<Arena, SmallVector<Block>> blocks;
  double begun = 0; ///< total seconds of the entries traced so far
};

} // namespace

//===----------------------------------------------------------------------===//
// Segments
//===----------------------------------------------------------------------===//

/// Gives each arena an address, and one block per parameter. An arena without
/// parameters is a single block, unless plan-memory has packed it.
void SnapshotWriter::placeArenas() {
  int64_t next = kFirstAddress;
  for (auto arena : program.getOps<ArenaOp>()) {
    if (arena.isOnHost())
      continue;
    addresses[arena.getKind()] = next;
    next = llvm::alignTo(next + arena.getBytes(), kSegmentAlignment);
  }
  for (auto parameter : program.getOps<program::ParameterOp>())
    blocks[parameter.getArena()].push_back(
        {int64_t(parameter.getOffset()), int64_t(parameter.getBytes()),
         parameter.getName().str(), parameter.getLoc()});
  for (auto arena : program.getOps<ArenaOp>()) {
    SmallVector<Block> &parts = blocks[arena.getKind()];
    llvm::stable_sort(parts, [](const Block &a, const Block &b) {
      return a.offset < b.offset;
    });
    bool isPacked = arena.getKind() == Arena::Activation ||
                    arena.getKind() == Arena::Workspace;
    if (parts.empty() && !isPacked && arena.getBytes())
      parts.push_back({0, int64_t(arena.getBytes()),
                       stringifyArena(arena.getKind()).str(), arena.getLoc()});
  }
}

void SnapshotWriter::frame(StringRef name, Location loc) {
  auto place = loc->findInstanceOf<FileLineColLoc>();
  pickle.dict([&] {
    field("filename", place ? place.getFilename().getValue() : "");
    field("line", int64_t(place ? place.getLine() : 0));
    field("name", name);
  });
}

void SnapshotWriter::block(int64_t address, int64_t bytes, const Block *used) {
  pickle.dict([&] {
    field("address", address);
    field("size", bytes);
    field("requested_size", used ? bytes : 0);
    field("state", used ? "active_allocated" : "inactive");
    key("frames");
    pickle.list([&] {
      if (used)
        frame(used->name, used->loc);
    });
  });
}

/// Writes an arena as a segment. Unused ranges become inactive blocks, because
/// readers expect blocks without gaps.
void SnapshotWriter::segment(ArenaOp arena) {
  int64_t address = addresses.at(arena.getKind());
  int64_t used = 0;
  for (const Block &part : blocks[arena.getKind()])
    used += part.bytes;
  pickle.dict([&] {
    field("device", 0);
    field("address", address);
    field("total_size", int64_t(arena.getBytes()));
    field("allocated_size", used);
    field("active_size", used);
    field("requested_size", used);
    field("stream", 0);
    field("segment_type", "large");
    key("segment_pool_id"), pickle.pair(0, 0);
    key("is_expandable"), pickle.boolean(false);
    key("frames");
    pickle.list(
        [&] { frame(stringifyArena(arena.getKind()), arena.getLoc()); });
    key("blocks");
    pickle.list([&] {
      int64_t end = 0;
      for (const Block &part : blocks[arena.getKind()]) {
        if (part.offset > end)
          block(address + end, part.offset - end, nullptr);
        block(address + part.offset, part.bytes, &part);
        end = part.offset + part.bytes;
      }
      if (int64_t(arena.getBytes()) > end)
        block(address + end, int64_t(arena.getBytes()) - end, nullptr);
    });
  });
}

//===----------------------------------------------------------------------===//
// Trace
//===----------------------------------------------------------------------===//

/// Returns the kernel that first writes each buffer.
static DenseMap<Operation *, StringRef>
firstWriters(ArrayRef<Operation *> commands) {
  DenseMap<Operation *, StringRef> writers;
  for (Operation *command : commands) {
    auto launch = dyn_cast<LaunchOp>(command);
    StringRef name = launch ? launch.getKernel()
                            : command->getName().stripDialect();
    for (Value buffer : buffersWritten(command))
      writers.try_emplace(rootOf(buffer), name);
  }
  return writers;
}

void SnapshotWriter::event(StringRef action, const TimelineBuffer &buffer,
                           double seconds, function_ref<void()> frames) {
  BufferOp op = buffer.op;
  pickle.dict([&] {
    field("action", action);
    field("addr", addresses.at(op.getArena()) + int64_t(*op.getOffset()));
    field("size", int64_t(op.getBytes()));
    field("stream", 0);
    field("device", 0);
    field("time_us", int64_t((begun + seconds) * 1e6));
    key("frames"), frames();
  });
}

/// Writes the stack frames of a buffer. Returns their index in the pickle's
/// memo, by which the event that frees the buffer refers to them.
uint32_t SnapshotWriter::frames(BufferOp buffer, StringRef kernel,
                                EntryOp entry) {
  pickle.list([&] {
    frame(kernel, buffer.getLoc());
    frame(buffer.getLabel().value_or(""), buffer.getLoc());
    frame(llvm::formatv("{0}, batch {1}, length {2}",
                        stringifyEntryKind(entry.getKind()), entry.getBatch(),
                        entry.getLength())
              .str(),
          UnknownLoc::get(entry.getContext()));
  });
  return pickle.remember();
}

void SnapshotWriter::trace(const EntryTimeline &timeline) {
  DenseMap<Operation *, StringRef> writers = firstWriters(timeline.commands);
  std::vector<SmallVector<size_t>> born(timeline.commands.size()),
      gone(timeline.commands.size());
  for (auto [i, buffer] : llvm::enumerate(timeline.buffers)) {
    born[buffer.first].push_back(i);
    gone[buffer.last].push_back(i);
  }
  std::vector<uint32_t> written(timeline.buffers.size()); // memo indices
  // Queues run concurrently, but a trace's times must not decrease.
  double now = 0;
  for (auto [command, span] : llvm::enumerate(timeline.spans)) {
    now = std::max(now, span.start);
    for (size_t i : born[command]) {
      const TimelineBuffer &buffer = timeline.buffers[i];
      event("alloc", buffer, now, [&] {
        written[i] =
            frames(buffer.op, writers.lookup(buffer.op), timeline.entry);
      });
    }
    for (size_t i : gone[command]) {
      now = std::max(now, span.end);
      for (StringRef action : {"free_requested", "free_completed"})
        event(action, timeline.buffers[i], now,
              [&] { pickle.recall(written[i]); });
    }
  }
  begun += timeline.seconds();
}

std::string SnapshotWriter::write(ArrayRef<EntryTimeline> timelines) {
  placeArenas();
  pickle.dict([&] {
    key("segments");
    pickle.list([&] {
      for (auto arena : program.getOps<ArenaOp>())
        if (!arena.isOnHost() && arena.getBytes())
          segment(arena);
    });
    key("device_traces");
    pickle.list([&] {
      pickle.list([&] {
        for (const EntryTimeline &timeline : timelines)
          if (EntryOp(timeline.entry).getKind() != EntryKind::Accumulate)
            trace(timeline);
      });
    });
    key("allocator_settings"), pickle.dict([] {});
    key("external_annotations"), pickle.list([] {});
  });
  return std::move(pickle).finish();
}

std::string qlora::memorySnapshot(ModuleOp program,
                                  ArrayRef<EntryTimeline> timelines) {
  return SnapshotWriter(program).write(timelines);
}
