// SPDX-License-Identifier: MIT

// A checkpoint and a run, held against each other.

#include "runtime/Session/RunStart.h"

#include "runtime/Base/UserFiles.h"
#include "runtime/Watch/Metrics.h"

namespace qlora {

StatusOr<RunStart> RunStart::find(const Options &options, RankGroup &group,
                                  SessionRequest &request) {
  RunStart start;
  QLORA_ASSIGN_OR_RETURN(start.resume,
                         findResumePoint(options, group, start.remarks));
  const nlohmann::ordered_json before =
      start.resume ? start.resume->facts : nullptr;
  QLORA_ASSIGN_OR_RETURN(start.accumulation,
                         accumulationFor(before, options, group.size()));
  if (!start.resume)
    return start;
  if (request.threads == 0 && before.at("ranks") == group.size())
    request.threads = before.at("threads");
  const std::string &table = start.resume->gemmTable;
  if (request.gemmTable == DeviceOptions::kMeasureGemms && !table.empty())
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
