// SPDX-License-Identifier: MIT

// A checkpoint and a run, held against each other.

#include "runtime/Session/RunStart.h"

#include "runtime/Base/UserFiles.h"
#include "runtime/Watch/Metrics.h"

namespace qlora {

/// The record of a run has the number that it ran with.
static Status recordAccumulation(int64_t accumulation, Options &options) {
  if (options.integer("global_batch_size") == 0)
    return Status::ok();
  constexpr const char *kName = "gradient_accumulation_steps";
  const OptionSetting setting = {findOption(optionTable(), kName),
                                 std::to_string(accumulation),
                                 flagSpelling(kName)};
  return options.applySettings({&setting, 1});
}

StatusOr<RunStart> RunStart::find(Options &options, RankGroup &group,
                                  SessionRequest &request) {
  RunStart start;
  QLORA_ASSIGN_OR_RETURN(start.resume,
                         findResumePoint(options, group, start.remarks));
  const nlohmann::ordered_json before =
      start.resume ? start.resume->facts : nullptr;
  QLORA_ASSIGN_OR_RETURN(start.accumulation,
                         accumulationFor(before, options, group.dataRanks()));
  QLORA_RETURN_IF_ERROR(recordAccumulation(start.accumulation, options));
  if (!start.resume)
    return start;
  if (request.threads == 0 && before.at("ranks") == group.size())
    request.threads = before.at("threads");
  // On another mesh there are other products.
  const std::string &table = start.resume->gemmTable;
  if (request.gemmTable == DeviceOptions::kMeasureGemms && !table.empty() &&
      before.at("options").value("parallel", nlohmann::ordered_json()) ==
          options.value("parallel"))
    request.gemmTable = table;
  return start;
}

Status RunStart::compare(const RunFacts &own) {
  QLORA_ASSIGN_OR_RETURN(facts, checkpointFacts(own));
  if (!resume)
    return Status::ok();
  const std::string folder = shownPath(resume->folder);
  remarks.push_back(
      fmt::format("goes on from '{}', after step {}", folder, resume->step()));
  return compareFacts(folder, resume->facts, facts, remarks);
}

StatusOr<std::string> RunStart::history() const {
  return resume ? readWholeFile(resume->folder + "/" + kMetricsFile)
                : std::string();
}

} // namespace qlora
