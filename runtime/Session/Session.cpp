// SPDX-License-Identifier: MIT

// The sequence of a run.

#include "runtime/Session/Session.h"

#include <cmath>
#include <filesystem>
#include <optional>

#include "runtime/Base/Exceptions.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Checkpoint/ArenaTensors.h"
#include "runtime/Checkpoint/CheckpointFolder.h"
#include "runtime/Checkpoint/CheckpointWriter.h"
#include "runtime/Data/DataFiles.h"
#include "runtime/Options/ObjectiveOptions.h"
#include "runtime/Predict/ResidentMemoryEstimate.h"
#include "runtime/Session/AnswerEvaluation.h"
#include "runtime/Session/EvaluatedRows.h"
#include "runtime/Session/Evaluation.h"
#include "runtime/Session/GradientTree.h"
#include "runtime/Session/OutputFolder.h"
#include "runtime/Session/ProgramChoice.h"
#include "runtime/Session/RankConsistencyCheck.h"
#include "runtime/Session/RankSpeeds.h"
#include "runtime/Session/RunHardware.h"
#include "runtime/Session/RunStart.h"
#include "runtime/Session/RunSummary.h"
#include "runtime/Session/SessionRecord.h"
#include "runtime/Session/SharedGpus.h"
#include "runtime/Session/Training.h"
#include "runtime/Watch/ReportPage.h"
#include "runtime/Watch/Sinks.h"
#include "runtime/Weights/Parameters.h"

namespace qlora {

namespace fs = std::filesystem;

namespace {

/// Owns the objects of a run; destroyed in reverse order.
class Session {
public:
  Session(const SessionRequest &request, LoadedRequest loaded,
          std::optional<OutputFolder> output, RankGroup group,
          RankEnvironment env)
      : request(request), module(std::move(loaded.module)),
        options(std::move(loaded.options)), output(std::move(output)),
        group(std::move(group)), env(std::move(env)) {
    if (request.extras)
      extras = request.extras(request);
  }
  ~Session();

  /// Runs the session. If any rank fails, all ranks return the same error.
  StatusOr<int> runAsRank();

private:
  StatusOr<int> run();
  Status createOutput();
  Status openData();
  Status openProfiler();
  Status findSpeeds();
  Status loadBase();
  int64_t totalSteps() const;
  StepShape stepShape() const {
    return {start.accumulation, group.dataRanks(), module.meetsInEntries(),
            options.boolean("reproducible_reductions"), speeds};
  }
  uint64_t ownBytes() const;
  uint64_t untouchedBytes() const;
  void warnOfBase();
  Status writeRecord();
  Status announce(const Run &run);
  std::string verbosePlan(const Run &run) const;
  StatusOr<int> work(const Run &run);
  Status finish(const Run &run, const TrainingResult &result);
  Metrics *listener() { return metrics ? &*metrics : nullptr; }
  SessionRequest request;
  LoadedModule module;
  Options options;
  std::optional<OutputFolder> output; ///< only rank 0 has it
  RankGroup group;
  RankEnvironment env;

  RunStart start;
  std::vector<double> speeds; ///< relative speeds of ranks; empty: equal
  std::string outputFolder;
  std::optional<PreparedAdapter> adapter; ///< only on rank 0, if it trains
  SessionRecord record;
  std::optional<Metrics> metrics; ///< only rank 0 has it
  SessionData data;
  KernelObserver observer;
  std::unique_ptr<Profiler> profiler; ///< null: not requested
  LoadedWeights weights;
  std::unique_ptr<Device> device;
  std::unique_ptr<AnswerEvaluation> answers; ///< null: generates no answers
  RunExtras extras;
};

} // namespace

Session::~Session() {
  // Leak a device with unfinished work, which may still access its memory.
  if (device && !device->settle())
    (void)device.release();
}

Status Session::createOutput() {
  outputFolder = options.text("output_dir");
  if (group.rank() != 0)
    return Status::ok();
  metrics.emplace(options.text("log_format") == "json", stdout, stderr,
                  request.sweep ? request.sweep->name : "");
  if (trains(options)) {
    auto prepared = PreparedAdapter::prepare(module, options, outputFolder);
    if (prepared.status().code() == StatusCode::kResourceExhausted)
      return Status::error(StatusCode::kResourceExhausted,
                           "no space for the adapter: {}, or choose an "
                           "--output-dir on another disk",
                           prepared.status().message());
    QLORA_RETURN_IF_ERROR(prepared.status());
    adapter.emplace(std::move(*prepared));
  }
  return Status::ok();
}

/// Writes this run's settings next to its adapter.
Status Session::writeRecord() {
  QLORA_RETURN_IF_ERROR(start.takeFolder(outputFolder));
  QLORA_RETURN_IF_ERROR(replaceWholeFile(
      outputFolder + "/" + kSettingsFile, options.resolvedYaml()));
  if (const std::string table = device->gemmTable(); !table.empty())
    QLORA_RETURN_IF_ERROR(
        replaceWholeFile(outputFolder + "/gemm_table.json", table));
  QLORA_ASSIGN_OR_RETURN(const std::string history, start.history());
  QLORA_RETURN_IF_ERROR(
      metrics->open(outputFolder, Metrics::Start::kNew, history));
  return attachSinks(*metrics, options, start.stepsDone(), totalSteps());
}

/// Starts to print and write. Called after everything is loaded and checked,
/// because from now on training replaces files of an earlier run.
Status Session::announce(const Run &run) {
  if (!metrics)
    return Status::ok();
  QLORA_RETURN_IF_ERROR(
      run.train ? writeRecord()
                : metrics->open(outputFolder, Metrics::Start::kAppend));
  metrics->say(runHeader(run, data.summary));
  if (request.ranksPerGpu > 1)
    metrics->say(fmt::format("sharing  {}", sharingText(request.ranksPerGpu)));
  if (request.verbose)
    metrics->say(verbosePlan(run));
  for (const std::string &warning :
       {output->remark(), env.secretRemark,
        device->traits.hasHostArenas ? threadsRemark(threadsOf(request, env))
                                     : ""})
    if (!warning.empty())
      metrics->warn(warning);
  for (const std::string &remark : device->remarks())
    metrics->warn(remark);
  for (const std::string &remark : start.remarks)
    metrics->note(remark);
  if (run.train)
    if (const Status status = record.begin(run, start.facts); !status.isOk())
      metrics->warn(status.message());
  warnOfBase();
  return Status::ok();
}

/// Lists every arena, memory outside the plan, and the source of the base.
std::string Session::verbosePlan(const Run &run) const {
  std::string plan = planText(module, *device, group.size());
  plan += kernelsText(module, *device);
  plan += run.memory.residentText();
  if (weights.base && !weights.base->mappedFile().empty())
    plan += fmt::format("  frozen base mapped from '{}'\n",
                        weights.base->mappedFile());
  return plan;
}

/// Prints rank 0's remarks about the base's cache; drops other ranks' remarks.
void Session::warnOfBase() {
  if (!weights.base || !metrics)
    return;
  for (const std::string &remark : weights.base->takeRemarks())
    metrics->warn(remark);
}

Status Session::openData() {
  QLORA_ASSIGN_OR_RETURN(CompiledVariants variants,
                         CompiledVariants::of(module));
  DataRequest request{options, variants,
                      options.recordedMetadata("vocab_size")};
  if (metrics) {
    request.note = [&](std::string_view text) { metrics->note(text); };
    request.warn = [&](std::string_view text) { metrics->warn(text); };
  }
  request.trains = trains(options);
  if (metrics)
    request.progress = [&](const std::string &option) {
      return metrics->progress("tokenising " + dataName(options, option),
                               Metrics::kBytes);
    };
  QLORA_ASSIGN_OR_RETURN(data, openDataFiles(request, group));
  return Status::ok();
}

Status Session::loadBase() {
  // A checkpoint already includes the adapter that its run started from.
  const std::string from =
      start.resume ? "" : options.text("adapter_name_or_path");
  if (!from.empty())
    QLORA_RETURN_IF_ERROR(checkAdapterConfig(from, module, options));
  WeightRequest wanted =
      WeightRequest::of(module, options, group, request.baseCache, from);
  if (module.table().mesh.zero2 > 1)
    wanted.piece = static_cast<uint32_t>(
        group.collectives(QLORA_GROUP_FSDP).rank());
  if (module.table().mesh.fsdp > 1)
    wanted.shards = &group.collectives(QLORA_GROUP_FSDP);
  if (module.sliceRanks() > 1)
    wanted.slices = &group.collectives(sliceGroup(module));
  if (metrics)
    wanted.progress = metrics->progress(options.quantizedFormat().empty()
                                            ? "reading the base"
                                            : "reading and quantizing the base",
                                        Metrics::kBytes);
  if (request.sweep)
    wanted.shared = &request.sweep->base;
  if (metrics)
    wanted.factors.progress =
        metrics->progress("decomposing weights", "weights");
  QLORA_ASSIGN_OR_RETURN(weights, loadWeights(wanted, *device));
  if (weights.renamed && metrics)
    metrics->warn(weights.renamed->warning(from, wanted.modelFolder));
  if (request.sweep) // a sweep has one process for all runs
    weights.processBytes = 0;
  if (start.resume && metrics && module.arena(QLORA_ARENA_RESIDUAL) &&
      !hasResiduals(start.resume->folder))
    metrics->warn(
        fmt::format("'{}' was saved by an earlier version without error "
                    "feedback ({}): error feedback starts at zero",
                    start.resume->folder, kResidualsFile));
  if (start.resume)
    return restoreArenas(*start.resume, module, *device, group);
  // An initial adapter has all values that the entry INITIALIZE would compute.
  const qlora_entry *first = module.entry(QLORA_ENTRY_INITIALIZE);
  return first && from.empty() ? runEntry(*device, module, *first, {})
                               : Status::ok();
}

/// Returns the steps that the options request; 0 without training data.
int64_t Session::totalSteps() const {
  if (!data.training)
    return 0;
  if (const int64_t steps = options.integer("max_steps"); steps > 0)
    return steps;
  const auto perEpoch = static_cast<double>(
      data.training->schedule().stepsPerEpoch(stepShape().count()));
  return static_cast<int64_t>(
      std::ceil(options.number("num_train_epochs") * perEpoch));
}

/// Returns the process's bytes outside arenas; 0 if a GPU has the arenas.
uint64_t Session::ownBytes() const {
  if (weights.processBytes == 0 || !stepShape().assignsAsOne)
    return weights.processBytes;
  return weights.processBytes + GradientTree::pendingBytes(
                                    start.accumulation, module, group.size());
}

/// Returns the arena bytes that this rank never touches.
uint64_t Session::untouchedBytes() const {
  if (weights.processBytes == 0)
    return 0;
  ResidentMemoryEstimate touched(module, group.dataRank());
  if (data.training)
    touched.addTraining(data.training->schedule(), stepShape(), totalSteps());
  if (data.validation)
    touched.addEvaluation(data.validation->schedule(), stepShape());
  if (answers)
    touched.addGeneration();
  return touched.untouchedBytes();
}

Status Session::finish(const Run &run, const TrainingResult &result) {
  const ArenaTensors tensors = finalTensors(module, options);
  ArenaReader reader(tensors, *device, group);
  if (!metrics)
    return reader.finish();
  NextBytes trained = [&](std::span<uint8_t> out) { return reader.read(out); };
  if (result.takesBest(options)) {
    auto best = readTrained(
        module, options,
        {checkpointFolder(outputFolder, result.bestStep), start.run});
    if (best.isOk())
      trained = std::move(*best);
    else // do not lose the training result
      metrics->warn(fmt::format("the adapter of the best evaluation cannot be "
                                "read, so the last one is written: {}",
                                best.status().message()));
  }
  const Status written = adapter->write(trained, weights.factors);
  QLORA_RETURN_IF_ERROR(reader.finish());
  QLORA_RETURN_IF_ERROR(written);
  std::string text = "\n";
  if (request.verbose)
    text += run.memory.measuredText() + "\n";
  text += runEnding(run, result);
  QLORA_RETURN_IF_ERROR(metrics->log(runTotals(run, result), text));
  for (const Status &status : {writeReport(outputFolder), record.end()})
    if (!status.isOk())
      metrics->warn(status.message()); // the adapter is written
  for (const auto &extra : extras)
    QLORA_RETURN_IF_ERROR(extra->end(run, data.summary, result));
  return Status::ok();
}

StatusOr<int> Session::work(const Run &run) {
  if (!request.evaluationRows.empty())
    QLORA_RETURN_IF_ERROR(writeEvaluatedRows(run, request.evaluationRows));
  if (run.validation && !start.resume)
    QLORA_RETURN_IF_ERROR(
        evaluateAndLog(run, 0, 0, "before training").status());
  if (!run.train)
    return 0;
  std::optional<CheckpointWriter> writer;
  if (metrics)
    writer.emplace(run, start.facts, start.resume ? &*start.resume : nullptr);
  QLORA_ASSIGN_OR_RETURN(TrainingResult result,
                         train(run, {extras, writer ? &*writer : nullptr,
                                     start.resume ? &*start.resume : nullptr}));
  if (writer && !writer->finish())
    result.savedStep = 0;
  if (run.validation && result.stopSignal == 0 && !result.justEvaluated)
    QLORA_RETURN_IF_ERROR(evaluateAndLog(run, result.steps, result.epoch,
                                         "after training")
                              .status());
  QLORA_RETURN_IF_ERROR(finish(run, result));
  // Wait for all files: a rank that ends earlier would seem to have failed.
  QLORA_RETURN_IF_ERROR(group.collectives().barrier());
  return result.stopSignal == 0 ? 0 : 128 + result.stopSignal;
}

/// Called before weights are read, so that an unwritable path fails early.
Status Session::openProfiler() {
  if (request.profile.path.empty())
    return Status::ok();
  if (!data.training)
    return Status::invalid(
        "--profile needs training steps. Fix: --max-steps 10");
  QLORA_ASSIGN_OR_RETURN(
      profiler, Profiler::open(request.profile,
                               {module, *device, group, listener()},
                               totalSteps()));
  return Status::ok();
}

/// Finds the speeds of ranks (RankSpeeds.h); the same result on all ranks.
Status Session::findSpeeds() {
  speeds = givenSpeeds(options, group.size());
  if (!options.lengths("rank_speeds").empty() || module.meetsInEntries() ||
      group.size() == 1 || options.boolean("reproducible_reductions"))
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(const std::vector<std::string> words,
                         group.collectives().allGather(
                             speedReport(device->traits.hardware, module)));
  PredictedSpeeds predicted = speedsFromReports(words);
  speeds = std::move(predicted.speeds);
  if (!predicted.remark.empty())
    start.remarks.push_back(std::move(predicted.remark));
  return Status::ok();
}

StatusOr<int> Session::run() {
  QLORA_ASSIGN_OR_RETURN(start, RunStart::find(options, group, request));
  QLORA_ASSIGN_OR_RETURN(
      device, openDevice(request, module, options, group, env, observer));
  QLORA_RETURN_IF_ERROR(createOutput());
  QLORA_RETURN_IF_ERROR(openData());
  QLORA_RETURN_IF_ERROR(openProfiler());
  QLORA_ASSIGN_OR_RETURN(
      answers, AnswerEvaluation::open(module, *device, options, group,
                                      listener()));
  QLORA_RETURN_IF_ERROR(checkRankConsistency(request, module, options, group,
                                             data.training.get(),
                                             data.validation.get()));
  QLORA_RETURN_IF_ERROR(
      checkSharedMemory(module, request.ranksPerGpu, env, group));
  QLORA_ASSIGN_OR_RETURN(const std::string hardware,
                         hardwareText(*device, group, request, env));
  QLORA_RETURN_IF_ERROR(findSpeeds());
  if (data.training)
    QLORA_RETURN_IF_ERROR(
        start.compare({module, options, *data.training, stepShape(),
                       threadsPerRank(threadsOf(request, env))}));
  QLORA_RETURN_IF_ERROR(loadBase());
  Program program(module, *device);
  const Run run{module,
                options,
                group,
                *device,
                program,
                observer,
                data.training.get(),
                data.validation.get(),
                listener(),
                profiler.get(),
                answers.get(),
                outputFolder,
                stepShape(),
                totalSteps(),
                {module, *device, ownBytes(), untouchedBytes(),
                 data.training ? streamBufferBytes(module, group.size()) : 0},
                hardware};
  for (const auto &extra : extras)
    QLORA_RETURN_IF_ERROR(extra->begin(run));
  QLORA_RETURN_IF_ERROR(announce(run));
  QLORA_ASSIGN_OR_RETURN(const int code, work(run));
  if (weights.base)
    weights.base->finish();
  warnOfBase();
  return code;
}

/// Loads the module and checks the options before the rank meets the others.
static StatusOr<LoadedRequest> loadForRanks(SessionRequest &request,
                                            const RankEnvironment &env) {
  if (!request.programs.empty()) {
    QLORA_ASSIGN_OR_RETURN(request.modulePath,
                           chooseProgram(request.programs, env,
                                         request.ranksPerGpu));
  }
  QLORA_ASSIGN_OR_RETURN(LoadedRequest loaded, loadRequest(request));
  QLORA_RETURN_IF_ERROR(checkMesh(loaded.module, env.worldSize));
  QLORA_RETURN_IF_ERROR(
      prepareSharing(loaded.module, request.ranksPerGpu, env));
  loaded.module.chooseRank(env.rank, env.worldSize);
  QLORA_RETURN_IF_ERROR(checkRanksOf(loaded.options, env.worldSize,
                                     loaded.module.rowRanks()));
  QLORA_RETURN_IF_ERROR(
      checkRankSpeeds(loaded.options, loaded.module, env.worldSize));
  QLORA_RETURN_IF_ERROR(
      checkReproducible(loaded.options, loaded.module, env.worldSize));
  return loaded;
}

StatusOr<int> Session::runAsRank() {
  if (group.size() == 1)
    return run();
  // Exceptions must not bypass the group, which informs the other ranks.
  auto code = endExceptions("training", [&] { return run(); });
  return code.isOk() ? code : group.end(code.status());
}

StatusOr<int> runSession(const SessionRequest &asked,
                         const RankEnvironment &env, FileDescriptor listening) {
  SessionRequest request = asked;
  auto loaded = loadForRanks(request, env);
  const std::chrono::seconds timeout =
      loaded.isOk()
          ? std::chrono::seconds(loaded->options.integer("ddp_timeout"))
          : env.patience;
  // A rank that cannot run joins too, to report its error to the others.
  QLORA_ASSIGN_OR_RETURN(
      RankGroup group,
      RankGroup::join(env, std::move(listening), timeout,
                      loaded.isOk() ? loaded->module.groups() : GroupSizes(),
                      loaded.status()));
  // Claim the folder after joining, so that all ranks get its errors.
  auto output = claimOutput(loaded->options, group);
  if (!output.isOk())
    return group.end(output.status());
  return Session(request, std::move(*loaded), std::move(*output),
                 std::move(group), env)
      .runAsRank();
}

} // namespace qlora
