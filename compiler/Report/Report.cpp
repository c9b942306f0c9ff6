// SPDX-License-Identifier: MIT

// Puts the decisions of the passes beside the plan, in one of the formats.

#include "compiler/Report/Report.h"

#include "compiler/Report/HtmlReport.h"
#include "compiler/Report/MemorySnapshot.h"

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

llvm::json::Value qlora::planOf(ModuleOp program) {
  llvm::json::Value plan =
      parsed(program->getAttrOfType<StringAttr>("program.plan"));
  for (auto [pass, name] : kDecisions)
    if (auto decision = program->getAttrOfType<StringAttr>(name))
      plan.getAsObject()->try_emplace(pass, parsed(decision));
  return plan;
}

FailureOr<std::string> qlora::reportText(ModuleOp program,
                                         ReportFormat format,
                                         const DeviceProfile &device) {
  if (format == ReportFormat::Json)
    return llvm::formatv("{0:2}\n", planOf(program)).str();
  FailureOr<CommandTimes> times = CommandTimes::create(program, device);
  if (failed(times))
    return failure();
  std::vector<EntryTimeline> timelines;
  for (auto entry : program.getOps<program::EntryOp>())
    timelines.push_back(timelineOf(entry, *times));
  return format == ReportFormat::Html
             ? htmlReport(planOf(program), timelines, device)
             : memorySnapshot(program, timelines);
}
