// SPDX-License-Identifier: MIT

// Converts timelines to columns (TimelineJson.h).

#include "compiler/Report/TimelineJson.h"

#include "compiler/Schedule/Commands.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/StringSaver.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

namespace {

class TimelineWriter {
public:
  explicit TimelineWriter(llvm::json::OStream &json) : json(json) {}

  void write(ModuleOp program, ArrayRef<EntryTimeline> timelines);

private:
  void writeArenas(ModuleOp program);
  void writeParameters(ModuleOp program);
  void writeEntry(const EntryTimeline &timeline);
  void writeCommands(const EntryTimeline &timeline);
  void writeBuffers(const EntryTimeline &timeline);
  void writeCollectives(const EntryTimeline &timeline);
  int64_t indexOf(StringRef text);
  int64_t indexOf(Location loc);
  void column(StringRef name, auto &&range, auto &&value) {
    json.attributeArray(name, [&] {
      for (const auto &row : range)
        json.value(value(row));
    });
  }
  void microseconds(StringRef name, ArrayRef<TimelineSpan> spans,
                    double TimelineSpan::*time);

  llvm::json::OStream &json;
  llvm::BumpPtrAllocator memory;
  llvm::StringSaver saver{memory}; ///< owns the locations in `texts`
  llvm::MapVector<StringRef, int64_t, llvm::StringMap<unsigned>> texts;
};

} // namespace

int64_t TimelineWriter::indexOf(StringRef text) {
  return texts.try_emplace(text, texts.size()).first->second;
}

/// Returns the index of "FILE:LINE", or of "" for an unknown location.
int64_t TimelineWriter::indexOf(Location loc) {
  auto place = loc->findInstanceOf<FileLineColLoc>();
  if (!place)
    return indexOf("");
  return indexOf(saver.save(place.getFilename().getValue() + ":" +
                            Twine(place.getLine())));
}

/// Rounds to 0.1 us, since every launch takes longer than that.
void TimelineWriter::microseconds(StringRef name, ArrayRef<TimelineSpan> spans,
                                  double TimelineSpan::*time) {
  json.attributeArray(name, [&] {
    for (const TimelineSpan &span : spans)
      json.rawValue([&](raw_ostream &os) {
        os << llvm::format("%.1f", span.*time * 1e6);
      });
  });
}

/// Returns the name of a launch's kernel. For other commands, returns op names.
static StringRef kernelOf(Operation *command) {
  if (auto launch = dyn_cast<LaunchOp>(command))
    return launch.getKernel();
  return command->getName().stripDialect();
}

static StringRef labelOf(Operation *command) {
  auto launch = dyn_cast<LaunchOp>(command);
  return launch ? launch.getLabel() : StringRef();
}

void TimelineWriter::writeCommands(const EntryTimeline &timeline) {
  json.attributeObject("commands", [&] {
    column("kernel", timeline.commands,
           [&](Operation *command) { return indexOf(kernelOf(command)); });
    column("label", timeline.commands,
           [&](Operation *command) { return indexOf(::labelOf(command)); });
    column("queue", timeline.commands, [](Operation *command) {
      return static_cast<int64_t>(queueOf(command));
    });
    microseconds("start", timeline.spans, &TimelineSpan::start);
    microseconds("end", timeline.spans, &TimelineSpan::end);
  });
}

/// Returns the index of the command that first writes each buffer.
static DenseMap<Operation *, int64_t>
firstWriters(ArrayRef<Operation *> commands) {
  DenseMap<Operation *, int64_t> writers;
  for (auto [index, command] : llvm::enumerate(commands))
    for (Value buffer : buffersWritten(command))
      writers.try_emplace(rootOf(buffer), index);
  return writers;
}

void TimelineWriter::writeBuffers(const EntryTimeline &timeline) {
  const auto writers = firstWriters(timeline.commands);
  auto number = [&](StringRef name, auto &&value) {
    column(name, timeline.buffers, [&](const TimelineBuffer &buffer) {
      return static_cast<int64_t>(value(buffer, BufferOp(buffer.op)));
    });
  };
  json.attributeObject("buffers", [&] {
    number("arena", [](auto &, BufferOp op) {
      return op.getArena() == Arena::Workspace;
    });
    number("label", [&](auto &, BufferOp op) {
      return indexOf(op.getLabel().value_or(""));
    });
    number("category", [](auto &buffer, BufferOp) { return buffer.category; });
    number("offset", [](auto &, BufferOp op) { return *op.getOffset(); });
    number("bytes", [](auto &, BufferOp op) { return op.getBytes(); });
    number("first", [](auto &buffer, BufferOp) { return buffer.first; });
    number("last", [](auto &buffer, BufferOp) { return buffer.last; });
    number("writer", [&](auto &, BufferOp op) { return writers.lookup(op); });
    number("location",
           [&](auto &, BufferOp op) { return indexOf(op.getLoc()); });
  });
}

void TimelineWriter::writeCollectives(const EntryTimeline &timeline) {
  json.attributeArray("collectives", [&] {
    for (auto [position, command] : llvm::enumerate(timeline.commands))
      if (auto together = dyn_cast<CollectiveOp>(command);
          together && together.getKind() == Collective::AllReduce &&
          together.getGroup() == Group::DP)
        json.object([&, position = position] {
          json.attribute("command", static_cast<int64_t>(position));
          json.attribute("bucket", static_cast<int64_t>(together.getNumber()));
          json.attribute("bytes", static_cast<int64_t>(
                                      rangeOf(together.getTarget()).bytes));
        });
  });
}

void TimelineWriter::writeEntry(const EntryTimeline &timeline) {
  json.attribute("peak_command", timeline.peak.command);
  writeCommands(timeline);
  writeBuffers(timeline);
  writeCollectives(timeline);
}

void TimelineWriter::writeArenas(ModuleOp program) {
  json.attributeArray("device_arenas", [&] {
    for (auto arena : program.getOps<ArenaOp>())
      if (!arena.isOnHost())
        json.value(stringifyArena(arena.getKind()));
  });
}

void TimelineWriter::writeParameters(ModuleOp program) {
  SmallVector<program::ParameterOp> all(program.getOps<program::ParameterOp>());
  auto number = [&](StringRef name, auto &&value) {
    column(name, all, [&](program::ParameterOp parameter) {
      return static_cast<int64_t>(value(parameter));
    });
  };
  json.attributeObject("parameters", [&] {
    number("name", [&](auto op) { return indexOf(op.getName()); });
    number("arena",
           [&](auto op) { return indexOf(stringifyArena(op.getArena())); });
    number("offset", [](auto op) { return op.getOffset(); });
    number("bytes", [](auto op) { return op.getBytes(); });
    number("location", [&](auto op) { return indexOf(op.getLoc()); });
  });
}

void TimelineWriter::write(ModuleOp program,
                           ArrayRef<EntryTimeline> timelines) {
  json.object([&] {
    json.attributeArray("categories", [&] {
      for (size_t i = 0; i < size_t(BufferCategory::Count); ++i)
        json.value(nameOf(static_cast<BufferCategory>(i)));
    });
    writeArenas(program);
    writeParameters(program);
    json.attributeArray("entries", [&] {
      for (const EntryTimeline &timeline : timelines)
        json.object([&] { writeEntry(timeline); });
    });
    json.attributeArray("texts", [&] {
      for (auto &[text, index] : texts)
        json.value(llvm::json::fixUTF8(text));
    });
  });
}

std::string qlora::timelineJson(ModuleOp program,
                                ArrayRef<EntryTimeline> timelines) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  llvm::json::OStream json(stream);
  TimelineWriter(json).write(program, timelines);
  return text;
}
