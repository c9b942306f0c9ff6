// SPDX-License-Identifier: MIT

// Puts the decisions of the passes beside the plan, in one of the formats.

#include "compiler/Report/Report.h"

#include "compiler/Report/HtmlReport.h"
#include "compiler/Report/MemorySnapshot.h"
#include "compiler/Report/RunFacts.h"

#include "runtime/Base/HostMemory.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Path.h"

using namespace mlir;
using namespace qlora;

/// Each pass writes its decisions, as JSON, into an attribute of the module.
static constexpr std::pair<llvm::StringLiteral, llvm::StringLiteral>
    kDecisions[] = {{"encode-activations", "train.encoded"},
                    {"rematerialize", "train.remat"},
                    {"plan-dequant", "train.dequant"},
                    {"bucket-gradients", "train.buckets"},
                    {"select-kernels", "program.selection"}};

static constexpr std::pair<llvm::StringLiteral, ReportFormat> kFormats[] = {
    {".json", ReportFormat::Json},
    {".html", ReportFormat::Html},
    {".pickle", ReportFormat::Pickle}};

StatusOr<ReportFormat> qlora::reportFormatOf(StringRef path) {
  for (auto [extension, format] : kFormats)
    if (llvm::sys::path::extension(path) == extension)
      return format;
  auto extensions = llvm::map_range(
      kFormats, [](const auto &row) { return row.first.str(); });
  return Status::invalid("--report: '{}' has to end in one of {}", path.str(),
                         llvm::join(extensions, ", "));
}

static llvm::json::Value parsed(StringAttr attribute) {
  return llvm::cantFail(llvm::json::parse(attribute.getValue()),
                        "a pass writes JSON");
}

/// What was decided, with what it is expected to cost.
static llvm::json::Value planOf(ModuleOp program,
                                ArrayRef<EntryTimeline> timelines,
                                const DeviceProfile &device) {
  llvm::json::Value plan =
      parsed(program->getAttrOfType<StringAttr>("program.plan"));
  llvm::json::Object &object = *plan.getAsObject();
  for (auto [entry, timeline] :
       llvm::zip_equal(*object.getArray("entries"), timelines))
    entry.getAsObject()->try_emplace("seconds", timeline.seconds());
  // A card's process and driver are not known here.
  if (!device.gpu) {
    object["process_bytes"] = kTypicalProcessBytes;
    object["resident_bytes"] = predictedPeakBytes(
        *object.getInteger("total_bytes"), kTypicalProcessBytes);
  }
  for (auto [pass, name] : kDecisions)
    if (auto decision = program->getAttrOfType<StringAttr>(name))
      object.try_emplace(pass, parsed(decision));
  return plan;
}

/// Of a card, what each entry takes by its low figure.
static LogicalResult addLowSeconds(ModuleOp program,
                                   const DeviceProfile &device,
                                   llvm::json::Object &plan) {
  if (!device.gpu)
    return success();
  const DeviceProfile low = lowRates(device);
  FailureOr<CommandTimes> times = CommandTimes::create(program, low);
  if (failed(times))
    return failure();
  for (auto [entry, json] : llvm::zip_equal(
           program.getOps<program::EntryOp>(), *plan.getArray("entries")))
    json.getAsObject()->try_emplace(
        "seconds_low", times->secondsOf(entry, QueueSharing::kTakeTurns));
  return success();
}

FailureOr<std::string> qlora::reportText(ModuleOp program,
                                         ReportFormat format,
                                         const DeviceProfile &device) {
  FailureOr<CommandTimes> times = CommandTimes::create(program, device);
  if (failed(times))
    return failure();
  std::vector<EntryTimeline> timelines;
  for (auto entry : program.getOps<program::EntryOp>())
    timelines.push_back(timelineOf(entry, *times));
  if (format == ReportFormat::Pickle)
    return memorySnapshot(program, timelines);
  llvm::json::Value plan = planOf(program, timelines, device);
  if (failed(addLowSeconds(program, device, *plan.getAsObject())))
    return failure();
  if (format == ReportFormat::Json)
    return llvm::formatv("{0:2}\n", plan).str();
  StatusOr<std::string> run = runFacts(program, device);
  if (!run.isOk())
    return emitError(program.getLoc(), run.status().message());
  return htmlReport(std::move(plan), *run, timelines);
}
