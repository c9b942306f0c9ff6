// SPDX-License-Identifier: MIT

// Combines the plan with the passes' decisions and writes the report.

#include "compiler/Report/Report.h"

#include "compiler/PassMetadata.h"
#include "compiler/Report/EntryTimeline.h"
#include "compiler/Report/PlanTimes.h"
#include "compiler/Report/RunMetadata.h"
#include "compiler/Report/TimelineJson.h"
#include "compiler/Schedule/EntryBuffers.h"

#include "runtime/Base/FillPage.h"
#include "runtime/Base/HostMemory.h"

#include "mlir/IR/Threading.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/Path.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

extern const char qloraReportPage[];
extern const char qloraReportScript[];

/// Maximum number of buffers that are listed per entry, largest first.
static constexpr size_t kLargest = 8;

/// Passes that record one decision for the whole module.
static constexpr llvm::StringLiteral kModulePasses[] = {
    kLayoutDecision, "shard-matmuls",        "shard-context",
    "shard-experts", "shard-sequence",       "partition-pipeline",
    "plan-dequant",  "place-frozen-weights", "bucket-gradients",
    "select-kernels"};

static constexpr std::pair<llvm::StringLiteral, ReportFormat> kFormats[] = {
    {".json", ReportFormat::Json},
    {".html", ReportFormat::Html}};

StatusOr<ReportFormat> qlora::reportFormatOf(StringRef path) {
  for (auto [extension, format] : kFormats)
    if (llvm::sys::path::extension(path) == extension)
      return format;
  auto extensions = llvm::map_range(
      kFormats, [](const auto &row) { return row.first.str(); });
  return Status::invalid("--plan-report: '{}' has to end in one of {}; for "
                         "pytorch.org/memory_viz, give the .json to "
                         "qlora-memory-viz",
                         path.str(), llvm::join(extensions, ", "));
}

//===----------------------------------------------------------------------===//
// Decisions (compiler/PassMetadata.h)
//===----------------------------------------------------------------------===//

static llvm::json::Value jsonOf(Attribute attribute) {
  return llvm::TypeSwitch<Attribute, llvm::json::Value>(attribute)
      .Case([](BoolAttr flag) { return flag.getValue(); })
      .Case([](IntegerAttr number) { return number.getInt(); })
      .Case([](FloatAttr number) { return number.getValueAsDouble(); })
      .Case([](StringAttr text) { return llvm::json::fixUTF8(text.strref()); })
      .Case([](DenseI64ArrayAttr list) {
        return llvm::json::Array(list.asArrayRef());
      })
      .Case([](ArrayAttr list) {
        llvm::json::Array values;
        for (Attribute value : list)
          values.push_back(jsonOf(value));
        return values;
      })
      .Case([](DictionaryAttr dictionary) {
        llvm::json::Object object;
        for (NamedAttribute entry : dictionary)
          object[entry.getName().strref()] = jsonOf(entry.getValue());
        return object;
      });
}

/// Returns the decision of `pass` for each entry that was lowered from a step.
static llvm::json::Array decisionsOf(ModuleOp program, StringRef pass) {
  llvm::json::Array list;
  for (auto entry : program.getOps<EntryOp>())
    if (auto decision = decisionOf<DictionaryAttr>(entry, pass))
      list.push_back(jsonOf(decision));
  return list;
}

/// Combines the values of `key` in the objects of `list`, starting from 0.
static double combined(const llvm::json::Array &list, StringRef key,
                       double (*combine)(double, double)) {
  double result = 0;
  for (const llvm::json::Value &value : list)
    result = combine(result, *value.getAsObject()->getNumber(key));
  return result;
}

static void addDecisions(ModuleOp program, llvm::json::Object &plan) {
  for (StringRef pass : kModulePasses)
    if (auto decision = decisionOf<Attribute>(program, pass))
      plan[pass] = jsonOf(decision);
  auto sum = [](double a, double b) { return a + b; };
  auto most = [](double a, double b) { return std::max(a, b); };
  if (llvm::json::Array steps = decisionsOf(program, "encode-activations");
      !steps.empty()) {
    llvm::json::Object all;
    for (StringRef key : {"values", "exact_bytes", "encoded_bytes"})
      all[key] = int64_t(combined(steps, key, sum));
    plan["encode-activations"] = std::move(all);
  }
  if (llvm::json::Array steps = decisionsOf(program, "offload-activations");
      !steps.empty())
    plan["offload-activations"] = llvm::json::Object{
        {"copied", int64_t(combined(steps, "copied", most))},
        {"bytes", int64_t(combined(steps, "bytes", most))},
        {"steps", std::move(steps)}};
  if (llvm::json::Array steps = decisionsOf(program, "rematerialize");
      !steps.empty()) {
    llvm::json::Object &first = *steps.front().getAsObject();
    plan["rematerialize"] = llvm::json::Object{
        {"policy", *first.get("policy")},
        {"budget", *first.get("budget")},
        {"estimated_peak", int64_t(combined(steps, "estimated_peak", most))},
        {"recompute_seconds", combined(steps, "recompute_seconds", most)},
        {"steps", std::move(steps)}};
  }
}

//===----------------------------------------------------------------------===//
// Arenas and entries
//===----------------------------------------------------------------------===//

static llvm::json::Array largestOf(EntryOp entry) {
  llvm::json::Array list;
  for (BufferOp buffer : largestBuffers(entry, kLargest))
    list.push_back(llvm::json::Object{
        {"of", llvm::json::fixUTF8(buffer.getLabel().value_or(""))},
        {"bytes", int64_t(buffer.getBytes())},
        {"saved", buffer.getSaved()}});
  return list;
}

static llvm::json::Object planOf(const EntryTimeline &timeline) {
  int64_t bytes[] = {0, 0}, saved = 0;
  for (const TimelineBuffer &buffer : timeline.buffers) {
    BufferOp op = buffer.op;
    int64_t &end = bytes[op.getArena() == Arena::Workspace];
    end = std::max<int64_t>(end, *op.getOffset() + op.getBytes());
    saved += op.getSaved() ? op.getBytes() : 0;
  }
  llvm::json::Object peak;
  for (auto [category, alive] : llvm::enumerate(timeline.peak.byCategory))
    if (alive > 0 && BufferCategory(category) != BufferCategory::Workspace)
      peak[nameOf(BufferCategory(category))] = alive;
  EntryOp entry = timeline.entry;
  return llvm::json::Object{{"kind", stringifyEntryKind(entry.getKind())},
                            {"batch", int64_t(entry.getBatch())},
                            {"length", int64_t(entry.getLength())},
                            {"activation_bytes", bytes[0]},
                            {"activation_live_bytes", timeline.peak.bytes},
                            {"peak", std::move(peak)},
                            {"saved_bytes", saved},
                            {"workspace_bytes", bytes[1]},
                            {"largest", largestOf(entry)}};
}

static llvm::json::Object planOf(ModuleOp program,
                                 ArrayRef<EntryTimeline> timelines) {
  llvm::json::Object arenas;
  llvm::json::Array entries;
  for (const EntryTimeline &timeline : timelines)
    entries.push_back(planOf(timeline));
  for (auto arena : program.getOps<ArenaOp>())
    arenas[stringifyArena(arena.getKind())] = int64_t(arena.getBytes());
  return llvm::json::Object{{"arenas", std::move(arenas)},
                            {"total_bytes", plannedBytes(program)},
                            {"host_bytes", plannedHostBytes(program)},
                            {"entries", std::move(entries)}};
}

std::string qlora::planJson(ModuleOp program, bool withDecisions) {
  SmallVector<EntryOp> entries(program.getOps<EntryOp>());
  std::vector<EntryTimeline> timelines(entries.size());
  parallelFor(program.getContext(), 0, entries.size(),
              [&](size_t i) { timelines[i] = timelineOf(entries[i]); });
  llvm::json::Object plan = planOf(program, timelines);
  if (withDecisions)
    addDecisions(program, plan);
  return llvm::formatv("{0}", llvm::json::Value(std::move(plan)));
}

/// Adds the predicted costs on `device`: times of the commands to `timelines`,
/// and the seconds of entries to `plan`, also at a GPU's low rates
/// (DeviceProfile.h).
static LogicalResult addCosts(ModuleOp program, const DeviceProfile &device,
                              std::vector<EntryTimeline> &timelines,
                              llvm::json::Object &plan) {
  FailureOr<PlanTimes> times = PlanTimes::create(program, device);
  if (failed(times))
    return failure();
  for (auto [i, timeline, json] :
       llvm::enumerate(timelines, *plan.getArray("entries"))) {
    llvm::json::Object &entry = *json.getAsObject();
    entry["seconds"] =
        times->of(i, QueueSharing::kSideBySide, &timeline.spans).seconds;
    if (device.gpu)
      entry["seconds_low"] = times->atLowRates(i).seconds;
  }
  // On a GPU, the memory of the process and the driver is unknown here.
  if (!device.gpu) {
    plan["process_bytes"] = kTypicalProcessBytes;
    plan["resident_bytes"] = predictedPeakBytes(*plan.getInteger("total_bytes"),
                                                kTypicalProcessBytes);
  }
  return success();
}

/// Returns the text of plan.json. The timeline is last, and on one line.
static std::string textOf(const llvm::json::Object &plan, StringRef timeline) {
  SmallVector<StringRef> keys;
  for (const auto &[key, value] : plan)
    keys.push_back(key);
  llvm::sort(keys);
  std::string text;
  llvm::raw_string_ostream stream(text);
  llvm::json::OStream json(stream, /*IndentSize=*/2);
  json.object([&] {
    for (StringRef key : keys)
      json.attribute(key, *plan.get(key));
    json.attributeBegin("timeline");
    json.rawValue(timeline);
    json.attributeEnd();
  });
  return text;
}

FailureOr<std::string> qlora::reportText(ModuleOp program, ReportFormat format,
                                         const DeviceProfile &device) {
  std::vector<EntryTimeline> timelines;
  for (auto entry : program.getOps<EntryOp>())
    timelines.push_back(timelineOf(entry));
  llvm::json::Object plan = planOf(program, timelines);
  addDecisions(program, plan);
  if (failed(addCosts(program, device, timelines, plan)))
    return failure();
  const std::string text = textOf(plan, timelineJson(program, timelines));
  if (format == ReportFormat::Json)
    return text + "\n";
  StatusOr<std::string> run = runMetadata(program, device);
  if (!run.isOk())
    return emitError(program.getLoc(), run.status().message());
  return fillPage(qloraReportPage,
                  "{\"plan\":" + text + ",\"run\":" + *run + "}",
                  qloraReportScript);
}
