// SPDX-License-Identifier: MIT

// qlora-run: train.so -> a PEFT adapter. Parses the arguments; runtime/Session
// does the rest.

#include <dlfcn.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <fmt/format.h>

#include <climits>
#include <cstdlib>
#include <string>
#include <vector>

#include "frontend/ModelIdentity.h"
#include "runtime/Base/CpuCount.h"
#include "runtime/Base/Exceptions.h"
#include "runtime/Base/StopSignal.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Extras/RunExtras.h"
#include "runtime/Extras/Sweep.h"
#include "runtime/Module/ProgramText.h"
#include "runtime/Options/CommandLine.h"
#include "runtime/Options/ObjectiveOptions.h"
#include "runtime/Predict/CalibrationRun.h"
#include "runtime/Predict/DeviceChoice.h"
#include "runtime/Predict/NullRun.h"
#include "runtime/Ranks/RankEnvironment.h"
#include "runtime/Ranks/Supervisor.h"
#include "runtime/Session/GenerationSession.h"
#include "runtime/Session/OutputFolder.h"
#include "runtime/Session/Session.h"
#include "runtime/Session/SharedGpus.h"
#include "runtime/Watch/ReportPage.h"
#include "tools/qlora-run/RunnerOptions.h"

using namespace qlora;

static constexpr OptionScope kRun = OptionScope::kRun;

static Tool runner() {
  const std::span<const OptionRow> own = kRunnerOptions;
  const std::vector<OptionScope> scopes = {kRun, OptionScope::kOutput};
  return {
      .version = "qlora-run " QLORA_VERSION "\n",
      .usage =
          "usage: qlora-run TRAIN.so [options]\n"
          "\n"
          "Runs a training program of qloracc and writes a PEFT adapter. "
          "Options have\n"
          "Hugging Face's names, with dashes or underscores. Flags override "
          "the YAML file,\n"
          "and the YAML file overrides the options recorded in TRAIN.so.\n",
      .input = "TRAIN.so",
      .common = {"config", "train_file", "validation_file", "output_dir",
                 "gpus", "num_train_epochs", "max_steps", "learning_rate",
                 "gradient_accumulation_steps", "model_name_or_path"},
      .example =
          "  qlora-run train.so --train-file data.jsonl --output-dir adapter "
          "\\\n"
          "      --learning-rate 2e-4 --num-train-epochs 2 --gpus 2\n",
      .sections = {{own.first(kRunnerOptionsFirst), scopes, ""},
                   {optionTable(), scopes, ""},
                   {own.subspan(kRunnerOptionsFirst), scopes, ""},
                   {optionTable(),
                    {OptionScope::kProgram},
                    "Fixed when TRAIN.so is compiled (give them to qloracc; a "
                    "YAML file may hold\nthem for both tools)"}},
      .tables = {kRunnerOptions, optionTable()}};
}

static int fail(const Status &status) {
  fmt::print(stderr, "qlora-run: error: {}\n", status.message());
  return 1;
}

static StatusOr<int> report(const std::string &folder) {
  QLORA_RETURN_IF_ERROR(writeReport(folder));
  fmt::print("report written to {}/{}\n", shownPath(folder), kReportFile);
  return 0;
}

/// Starts this program as `ranks` processes.
static int startRanks(int ranks, char **argv, int argc) {
  LaunchResult result = launchRanks(
      {"/proc/self/exe", std::vector<std::string>(argv, argv + argc), ranks});
  if (!result.error.isOk())
    fail(result.error);
  return result.exitCode;
}

/// Starts the ranks, after checks that would fail in each of them.
static StatusOr<int> launch(const SessionRequest &request, int ranks,
                            char **argv, int argc) {
  QLORA_ASSIGN_OR_RETURN(const auto loaded, loadRequest(request));
  QLORA_RETURN_IF_ERROR(checkMesh(loaded.module, ranks));
  QLORA_RETURN_IF_ERROR(
      checkSharing(loaded.module, request.ranksPerGpu, ranks));
  QLORA_RETURN_IF_ERROR(
      checkRanksOf(loaded.options, ranks, loaded.module.rowRanks()));
  QLORA_RETURN_IF_ERROR(checkOutputFolder(loaded.options));
  return startRanks(ranks, argv, argc);
}

/// Runs `work` as a rank of a launcher (ours or another), or alone. Returns its
/// exit code. launchRanks() prints the errors of its ranks.
template <typename Work>
static StatusOr<int> asRank(RankEnvironment env, Work &&work) {
  QLORA_ASSIGN_OR_RETURN(auto channel, RankChannel::open(env));
  FileDescriptor listening;
  if (channel)
    listening = channel->takeListeningSocket();
  const std::string where = fmt::format("rank {}", env.rank);
  auto code = endExceptions(channel ? "this rank" : where,
                            [&] { return work(env, std::move(listening)); });
  if (code.isOk() || !channel)
    return code;
  channel->reportError(code.status());
  return 1;
}

static StatusOr<int> runRank(const SessionRequest &request,
                             const RankEnvironment &env) {
  ignoreSaveSignal(); // until there is something to save
  return asRank(env, [&](const RankEnvironment &own, FileDescriptor listening) {
    return runSession(request, own, std::move(listening));
  });
}

static StatusOr<int> sweep(SweepRequest request, const RankEnvironment &env) {
  ignoreSaveSignal();
  request.report = [](const Status &status) { fail(status); };
  return runSweep(request, env);
}

/// Returns whether libgomp is loaded as OpenMP runtime.
static bool usesLibgomp() {
  void *library = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library)
    dlclose(library);
  return library != nullptr;
}

/// Returns whether /proc/self/exe is this program. If the dynamic loader was
/// started with the program as its argument, /proc/self/exe is the loader. The
/// kernel has then loaded no interpreter, so AT_BASE is 0.
static bool isOwnExecutable() { return getauxval(AT_BASE) != 0; }

/// Limits how long OpenMP threads spin at the end of a loop before they sleep,
/// in this process and its children, unless the user has set that limit
/// (OMP_WAIT_POLICY, GOMP_SPINCOUNT). libgomp's default of 300,000 rounds takes
/// 3 to 15 ms. On CPUs that other processes use too, a spinning thread uses up
/// the time slice of the thread that it waits for, and a step takes ten to
/// forty times as long. 1,000 rounds are 25 to 50 us, about the time to wake a
/// thread, so a run with its own CPUs loses nothing.
///
/// libgomp reads the variable when it is loaded, before any code of ours. So
/// the program executes itself again, in the same process: call this before
/// anything is opened.
static void boundBusyWaiting(char **argv) {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT"))
    return;
  setenv("GOMP_SPINCOUNT", "1000", /*overwrite=*/1);
  if (!usesLibgomp() || !isOwnExecutable())
    return; // child processes inherit the variable
  // Execute the path, not the link, so that the process keeps its name.
  char program[PATH_MAX] = {};
  if (readlink("/proc/self/exe", program, sizeof program - 1) > 0)
    execv(program, argv);
  // If execv() fails, the run may be slower, but is correct.
}

static Status checkSingle(const Options &tool, const std::string &whoSays,
                          int64_t ranks) {
  if (!tool.boolean("force_single_gpu") || ranks == 1)
    return Status::ok();
  return Status::invalid(
      "--force-single-gpu needs one rank, but {} {}; remove one", whoSays,
      ranks);
}

/// Refuses --ranks-per-gpu together with the options that `other` names.
static Status checkRun(const Options &tool, const char *other) {
  const int64_t ranksPerGpu = tool.integer("ranks_per_gpu");
  if (ranksPerGpu == 1)
    return Status::ok();
  return Status::invalid(
      "--ranks-per-gpu {} does not work with {}. Fix: remove --ranks-per-gpu",
      ranksPerGpu, other);
}

static Status checkRanks(const Options &tool, const RankEnvironment &env) {
  int64_t gpus = tool.integer("gpus");
  QLORA_RETURN_IF_ERROR(
      checkSingle(tool, env.launcher + " started", env.worldSize));
  if (!tool.isGiven("gpus") || env.worldSize == 1 || gpus == env.localWorldSize)
    return Status::ok();
  return Status::invalid("--gpus {} conflicts with {}, which started {} ranks "
                         "on this machine; remove one",
                         gpus, env.launcher, env.localWorldSize);
}

/// Returns the profile that --calibrate writes; refuses to overwrite a program.
static StatusOr<std::string>
calibrationFile(const std::vector<std::string> &named) {
  if (named.empty())
    return std::string("device.json");
  if (named.size() == 1 && named[0].ends_with(".json"))
    return named[0];
  return Status::invalid("--calibrate expects one file to write, NAME.json, "
                         "and no program, but got '{}'",
                         fmt::join(named, "' and '"));
}

static StatusOr<int> calibrate(const std::vector<std::string> &named,
                               const Options &tool, char **argv, int argc) {
  QLORA_ASSIGN_OR_RETURN(const std::string path, calibrationFile(named));
  const std::string device = tool.text("device");
  if (device != "auto" && device != "cpu")
    return Status::invalid(
        "--calibrate measures CPUs and the links between their ranks, not "
        "--device {}; to predict on a GPU, name it with --simulate, such as "
        "h200",
        device);
  QLORA_ASSIGN_OR_RETURN(const RankEnvironment env,
                         readRankEnvironment(std::getenv));
  QLORA_RETURN_IF_ERROR(checkRanks(tool, env));
  QLORA_RETURN_IF_ERROR(checkRun(tool, "--calibrate"));
  const int ranks = static_cast<int>(tool.integer("gpus"));
  if (env.worldSize == 1 && ranks > 1)
    return startRanks(ranks, argv, argc);
  const CalibrationRequest request = {
      path,
      threadsPerRank({static_cast<int>(tool.integer("threads")),
                      std::getenv("OMP_NUM_THREADS"), usableCpus(),
                      env.localWorldSize}),
      tool.text("device_profile")};
  const auto measure = [&](const RankEnvironment &own,
                           FileDescriptor listening) -> StatusOr<int> {
    QLORA_ASSIGN_OR_RETURN(const std::string text,
                           runCalibration(request, own, std::move(listening)));
    return fmt::print("{}", text), 0;
  };
  return asRank(env, measure);
}

/// Prints each program, or checks it on the null device. Returns the exit code.
static StatusOr<int> inspect(SessionRequest request,
                             const std::vector<std::string> &modules,
                             const Options &tool, const DeviceChoice &device) {
  const int ranks = static_cast<int>(tool.integer("gpus"));
  for (const std::string &module : modules) {
    request.modulePath = module;
    QLORA_ASSIGN_OR_RETURN(const auto loaded, loadRequest(request));
    if (tool.boolean("print")) {
      fmt::print("{}", programText(loaded.module));
      continue;
    }
    QLORA_ASSIGN_OR_RETURN(const std::string text,
                           checkOnNullDevice(loaded.module, loaded.options,
                                             ranks, device,
                                             request.disabledKernels));
    fmt::print("{}", text);
  }
  return 0;
}

static StatusOr<int> dispatch(SessionRequest request,
                              const std::vector<std::string> &modules,
                              const Options &tool, char **argv, int argc) {
  const int ranks = static_cast<int>(tool.integer("gpus"));
  QLORA_RETURN_IF_ERROR(checkSingle(tool, "--gpus is", ranks));
  QLORA_ASSIGN_OR_RETURN(DeviceChoice device, parseDevice(tool.text("device")));
  QLORA_RETURN_IF_ERROR(device.describeNetwork(tool.integer("gpus_per_node"),
                                               tool.text("network")));
  QLORA_RETURN_IF_ERROR(
      device.describeFailures(tool.number("node_mtbf_hours")));
  const bool runsNothing = tool.boolean("print") || device.isNull;
  if (!request.profile.path.empty() && runsNothing)
    return Status::invalid("--profile needs a run, but --print and "
                           "--device null run nothing; remove one");
  if (!request.referenceKernels.empty() && runsNothing)
    return Status::invalid("--reference-kernels needs a run, but --print "
                           "and --device null run nothing; remove one");
  if (runsNothing) {
    QLORA_RETURN_IF_ERROR(checkRun(tool, "--print and --device null"));
    return inspect(std::move(request), modules, tool, device);
  }
  request.checkModel = checkModelIdentity;
  QLORA_ASSIGN_OR_RETURN(const RankEnvironment env,
                         readRankEnvironment(std::getenv));
  QLORA_RETURN_IF_ERROR(checkRanks(tool, env));
  QLORA_ASSIGN_OR_RETURN(const auto axes, sweepAxes(tool.names("sweep")));
  if (!axes.empty()) {
    QLORA_RETURN_IF_ERROR(checkRun(tool, "--sweep"));
    return sweep({request, modules, axes, std::max(ranks, env.worldSize), {}},
                 env);
  }
  if (tool.boolean("generate")) {
    if (ranks > 1 || env.worldSize > 1 || modules.size() > 1)
      return Status::invalid("--generate runs one program on one rank; start "
                             "it once for each rank");
    return runGenerationSession(request, env);
  }
  if (!request.adapters.empty())
    return Status::invalid("--adapter needs --generate; add that, or use "
                           "--adapter-name-or-path to train an adapter on");
  if (env.worldSize == 1 && ranks > 1)
    return launch(request, ranks, argv, argc);
  request.programs = modules;
  return runRank(request, env);
}

static StatusOr<int> runTool(int argc, char **argv) {
  const Tool description = runner();
  const std::vector<std::string> words(argv + 1, argv + argc);
  QLORA_ASSIGN_OR_RETURN(CommandLine line,
                         parseCommandLine(words, description));
  setSimulatedDevice(kRunnerOptions, line.settings);
  Options tool(kRunnerOptions);
  QLORA_RETURN_IF_ERROR(tool.applySettings(line.settings));
  if (!line.answer.empty())
    return fmt::print("{}", line.answer), 0;
  boundBusyWaiting(argv);
  if (const std::string folder = tool.text("report"); !folder.empty())
    return report(folder);
  if (tool.boolean("calibrate"))
    return calibrate(line.rest, tool, argv, argc);
  if (line.rest.empty())
    return onlyInput(line, description).status();
  SessionRequest request;
  request.modulePath = line.rest[0];
  request.configFile = tool.text("config");
  request.settings = line.settings;
  for (const OptionSetting &setting : line.settings)
    if (setting.row->name == std::string_view("adapter"))
      request.adapters.push_back(setting.text);
  request.dumpFile = tool.text("dump");
  request.extras = makeExtras;
  request.evaluationRows = tool.text("evaluation_rows");
  request.device = tool.text("device");
  request.cudaGraphs = tool.boolean("cuda_graphs");
  request.disabledKernels = tool.names("disable_kernels");
  request.referenceKernels = tool.names("reference_kernels");
  request.gemmTable = tool.text("gemm_table");
  request.isGemmTableGiven = tool.isGiven("gemm_table");
  request.baseCache = {tool.text("base_cache"),
                       static_cast<uint64_t>(tool.integer("base_cache_limit"))};
  request.profile = {tool.text("profile"), tool.integer("profile_warmup"),
                     tool.integer("profile_active"),
                     tool.text("device_profile")};
  request.verbose = tool.boolean("verbose");
  request.threads = static_cast<int>(tool.integer("threads"));
  request.ranksPerGpu = static_cast<int>(tool.integer("ranks_per_gpu"));
  if (tool.boolean("force_single_gpu")) // overrides a configuration
    request.settings.push_back({findOption(optionTable(), "parallel"), "none",
                                "--force-single-gpu"});
  return dispatch(std::move(request), line.rest, tool, argv, argc);
}

int main(int argc, char **argv) {
  auto code =
      endExceptions("this program", [&] { return runTool(argc, argv); });
  return code.isOk() ? *code : fail(code.status());
}
