// SPDX-License-Identifier: MIT

// Converts timelines to columns and inserts them into the page (HtmlReport.h).

#include "compiler/Report/HtmlReport.h"

#include "compiler/Schedule/Commands.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/Support/Format.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

extern const char qloraReportPage[];
extern const char qloraReportScript[];

/// Placeholders in the page; each occurs once.
static constexpr StringLiteral kDataMark = "{{data}}";
static constexpr StringLiteral kScriptMark = "{{script}}";

namespace {

class PageData {
public:
  explicit PageData(llvm::json::OStream &json) : json(json) {}

  void write(const llvm::json::Value &plan, StringRef run,
             ArrayRef<EntryTimeline> timelines);

private:
  void writeEntry(const EntryTimeline &timeline);
  void writeCommands(const EntryTimeline &timeline);
  void writeBuffers(const EntryTimeline &timeline);
  void writePeak(const TimelinePeak &peak);
  void writeCollectives(const EntryTimeline &timeline);
  int64_t indexOf(StringRef text);
  void column(StringRef name, auto &&range, auto &&value) {
    json.attributeArray(name, [&] {
      for (const auto &row : range)
        json.value(value(row));
    });
  }
  void microseconds(StringRef name, ArrayRef<TimelineSpan> spans,
                    double TimelineSpan::*time);

  llvm::json::OStream &json;
  llvm::MapVector<StringRef, int64_t, llvm::StringMap<unsigned>> texts;
};

} // namespace

int64_t PageData::indexOf(StringRef text) {
  return texts.try_emplace(text, texts.size()).first->second;
}

/// Rounds to 0.1 us, since every launch takes longer than that.
void PageData::microseconds(StringRef name, ArrayRef<TimelineSpan> spans,
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

void PageData::writeCommands(const EntryTimeline &timeline) {
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

void PageData::writeBuffers(const EntryTimeline &timeline) {
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
  });
}

void PageData::writePeak(const TimelinePeak &peak) {
  json.attributeObject("peak", [&] {
    json.attribute("command", peak.command);
    json.attribute("bytes", peak.bytes);
    json.attributeObject("by_category", [&] {
      for (auto [category, bytes] : llvm::enumerate(peak.byCategory))
        json.attribute(nameOf(static_cast<BufferCategory>(category)), bytes);
    });
  });
}

void PageData::writeCollectives(const EntryTimeline &timeline) {
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

void PageData::writeEntry(const EntryTimeline &timeline) {
  EntryOp entry = timeline.entry;
  json.attribute("kind", stringifyEntryKind(entry.getKind()));
  json.attribute("batch", static_cast<int64_t>(entry.getBatch()));
  json.attribute("length", static_cast<int64_t>(entry.getLength()));
  json.attribute("seconds", timeline.seconds());
  writeCommands(timeline);
  writeBuffers(timeline);
  writePeak(timeline.peak);
  writeCollectives(timeline);
}

void PageData::write(const llvm::json::Value &plan, StringRef run,
                     ArrayRef<EntryTimeline> timelines) {
  json.object([&] {
    json.attribute("plan", plan);
    json.attributeBegin("run");
    json.rawValue(run);
    json.attributeEnd();
    json.attributeArray("categories", [&] {
      for (size_t i = 0; i < size_t(BufferCategory::Count); ++i)
        json.value(nameOf(static_cast<BufferCategory>(i)));
    });
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

/// Escapes `<`, so that the JSON is valid inside any HTML element. It occurs
/// only in JSON strings, which may contain escapes.
static std::string embeddable(StringRef json) {
  std::string text;
  text.reserve(json.size());
  for (char character : json)
    if (character == '<')
      text += "\\u003c";
    else
      text += character;
  return text;
}

std::string qlora::htmlReport(llvm::json::Value plan, StringRef run,
                              ArrayRef<EntryTimeline> timelines) {
  std::string data;
  llvm::raw_string_ostream stream(data);
  llvm::json::OStream json(stream);
  PageData(json).write(plan, run, timelines);
  auto [head, afterHead] = StringRef(qloraReportPage).split(kDataMark);
  auto [middle, tail] = afterHead.split(kScriptMark);
  return (head + embeddable(data) + middle + qloraReportScript + tail).str();
}
