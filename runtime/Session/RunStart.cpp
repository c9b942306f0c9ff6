// SPDX-License-Identifier: MIT

// Compares a checkpoint with a run.

#include "runtime/Session/RunStart.h"

#include <cstdlib>

#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/CheckpointFolder.h"
#include "runtime/Session/AnswerEvaluation.h"
#include "runtime/Watch/Metrics.h"

namespace qlora {

static constexpr const char *kSteps = "gradient_accumulation_steps";

static Status recordAccumulation(int64_t accumulation, Options &options) {
  if (options.value(kSteps) == accumulation)
    return Status::ok();
  return options.applySetting(kSteps, std::to_string(accumulation),
                              flagSpelling(kSteps));
}

StatusOr<RunStart> RunStart::find(Options &options, RankGroup &group,
                                  SessionRequest &request) {
  RunStart start;
  QLORA_ASSIGN_OR_RETURN(start.resume,
                         findResumePoint(options, group, start.remarks));
  const nlohmann::ordered_json before =
      start.resume ? start.resume->facts : nullptr;
  if (group.rank() == 0) {
    const bool isOurs =
        start.resume && start.resume->isIn(options.text("output_dir"));
    start.run = isOurs ? runIdOf(before) : newRunId();
  }
  start.askedAccumulation = options.value(kSteps);
  QLORA_ASSIGN_OR_RETURN(start.accumulation,
                         accumulationFor(before, options, group.dataRanks(),
                                         start.remarks));
  QLORA_RETURN_IF_ERROR(recordAccumulation(start.accumulation, options));
  if (!start.resume)
    return start;
  if (request.threads == 0 && !std::getenv("OMP_NUM_THREADS") &&
      before.at("ranks") == group.size())
    request.threads = before.at("threads");
  // With another mesh, the matmuls have other shapes than those in the table.
  const std::string &table = start.resume->gemmTable;
  if (!request.isGemmTableGiven && !table.empty() &&
      before.at("options").value("parallel", nlohmann::ordered_json()) ==
          options.value("parallel"))
    request.gemmTable = table;
  return start;
}

Status RunStart::compare(const RunMetadata &own) {
  QLORA_ASSIGN_OR_RETURN(facts, checkpointMetadata(own));
  facts["options"][kSteps] = askedAccumulation;
  if (!run.empty())
    facts["run"] = run;
  QLORA_ASSIGN_OR_RETURN(
      facts["adapter"],
      startMetadata(own.options, resume ? &resume->facts : nullptr));
  if (!resume)
    return Status::ok();
  const std::string folder = shownPath(resume->folder);
  remarks.push_back(
      fmt::format("resumes from '{}', after step {}", folder, resume->step()));
  return compareMetadata(folder, resume->facts, facts, remarks);
}

Status RunStart::takeFolder(const std::string &output) {
  const int64_t step = resume && resume->isIn(output) ? resume->step() : -1;
  QLORA_ASSIGN_OR_RETURN(const std::vector<std::string> replaced,
                         qlora::takeFolder(output, run, step));
  AnswerEvaluation::removeAfter(output, step);
  if (!replaced.empty())
    remarks.push_back(fmt::format("this run renames {} in '{}', for example "
                                  "to {}.replaced; the next run that renames "
                                  "checkpoints deletes them",
                                  fmt::join(replaced, ", "), shownPath(output),
                                  replaced.front()));
  return Status::ok();
}

StatusOr<std::string> RunStart::history() const {
  return resume ? readWholeFile(resume->folder + "/" + kMetricsFile)
                : std::string();
}

} // namespace qlora
