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
#include "runtime/Base/CommandLine.h"
#include "runtime/Base/CpuCount.h"
#include "runtime/Base/Exceptions.h"
#include "runtime/Base/ObjectiveOptions.h"
#include "runtime/Base/StopSignal.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Module/ProgramText.h"
#include "runtime/Predict/CalibrationRun.h"
#include "runtime/Predict/NullRun.h"
#include "runtime/Ranks/Supervisor.h"
#include "runtime/Ranks/RankEnvironment.h"
#include "runtime/Session/OutputFolder.h"
#include "runtime/Session/Session.h"
#include "runtime/Session/SharedGpus.h"
#include "runtime/Session/Sweep.h"
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

static int print(const StatusOr<std::string> &text) {
  if (!text.isOk())
    return fail(text.status());
  fmt::print("{}", text.value());
  return 0;
}

static int report(const std::string &folder) {
  if (Status status = writeReport(folder); !status.isOk())
    return fail(status);
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
static int launch(const SessionRequest &request, int ranks, char **argv,
                  int argc) {
  auto loaded = loadRequest(request);
  if (!loaded.isOk())
    return fail(loaded.status());
  if (Status status = checkMesh(loaded->module, ranks); !status.isOk())
    return fail(status);
  if (Status status =
          checkSharing(loaded->module, request.ranksPerGpu, ranks);
      !status.isOk())
    return fail(status);
  if (Status status =
          checkRanksOf(loaded->options, ranks, loaded->module.rowRanks());
      !status.isOk())
    return fail(status);
  if (Status status = checkOutputFolder(loaded->options); !status.isOk())
    return fail(status);
  return startRanks(ranks, argv, argc);
}

/// Runs `work` as a rank of a launcher (ours or another), or alone. Returns its
/// exit code.
template <typename Work>
static int asRank(RankEnvironment env, Work &&work) {
  auto channel = RankChannel::open(env);
  if (!channel.isOk())
    return fail(channel.status());
  FileDescriptor listening;
  if (*channel)
    listening = (*channel)->takeListeningSocket();
  const std::string where = fmt::format("rank {}", env.rank);
  auto code = endExceptions(*channel ? "this rank" : where, [&] {
    return work(env, std::move(listening));
  });
  if (code.isOk())
    return *code;
  if (!*channel)
    return fail(code.status());
  (*channel)->reportError(code.status());
  return 1;
}

static int runRank(const SessionRequest &request, const RankEnvironment &env) {
  ignoreSaveSignal(); // until there is something to save
  return asRank(env, [&](const RankEnvironment &own, FileDescriptor listening) {
    return runSession(request, own, std::move(listening));
  });
}

static int sweep(SweepRequest request, const RankEnvironment &env) {
  ignoreSaveSignal();
  request.report = [](const Status &status) { fail(status); };
  auto code = runSweep(request, env);
  return code.isOk() ? *code : fail(code.status());
}

/// Returns whether libgomp is loaded as OpenMP runtime.
static bool usesLibgomp() {
  void *library = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library)
    dlclose(library);
  return library != nullptr;
}

/// Returns whether /proc/self/exe is this program. It is the loader if that was
/// started with the program's name; then no interpreter is loaded.
static bool isOwnExecutable() { return getauxval(AT_BASE) != 0; }

/// Limits how long OpenMP threads spin at the end of a loop before they sleep,
/// in this process and its children, unless the user has set it
/// (OMP_WAIT_POLICY, GOMP_SPINCOUNT). libgomp's default of 300,000 rounds is 3
/// to 15 ms. On CPUs that other processes use too, a spinning thread uses up
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
    return; // its ranks inherit it
  // Use the path, so that the process keeps its name.
  char program[PATH_MAX] = {};
  if (readlink("/proc/self/exe", program, sizeof program - 1) > 0)
    execv(program, argv);
  // If that fails, the run is still correct.
}

static Status checkSingle(const Options &tool, const std::string &whoSays,
                          int64_t ranks) {
  if (!tool.boolean("force_single_gpu") || ranks == 1)
    return Status::ok();
  return Status::invalid(
      "--force-single-gpu needs one rank, but {} {}; remove one", whoSays,
      ranks);
}

/// Refuses --ranks-per-gpu except for a training run.
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
  bool isGiven = tool.source("gpus") != Options::Source::kDefault;
  if (!isGiven || env.worldSize == 1 || gpus == env.localWorldSize)
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

static int calibrate(const std::vector<std::string> &named,
                     const Options &tool, char **argv, int argc) {
  auto path = calibrationFile(named);
  if (!path.isOk())
    return fail(path.status());
  const std::string device = tool.text("device");
  if (device != "auto" && device != "cpu")
    return fail(Status::invalid(
        "--calibrate measures CPUs and the links between their ranks, not "
        "--device {}; describe GPUs with --gpus-per-node and --network",
        device));
  auto env = readRankEnvironment(std::getenv);
  if (!env.isOk())
    return fail(env.status());
  if (Status status = checkRanks(tool, *env); !status.isOk())
    return fail(status);
  if (Status status = checkRun(tool, "--calibrate"); !status.isOk())
    return fail(status);
  const int ranks = static_cast<int>(tool.integer("gpus"));
  if (env->worldSize == 1 && ranks > 1)
    return startRanks(ranks, argv, argc);
  const CalibrationRequest request = {
      *path,
      threadsPerRank({static_cast<int>(tool.integer("threads")),
                      std::getenv("OMP_NUM_THREADS"), usableCpus(),
                      env->localWorldSize}),
      tool.text("device_profile")};
  return asRank(*env, [&](const RankEnvironment &own,
                          FileDescriptor listening) -> StatusOr<int> {
    QLORA_ASSIGN_OR_RETURN(
        const std::string text,
        runCalibration(request, own, std::move(listening)));
    fmt::print("{}", text);
    return 0;
  });
}

static int dispatch(SessionRequest request,
                    const std::vector<std::string> &modules,
                    const Options &tool, char **argv, int argc) {
  int ranks = static_cast<int>(tool.integer("gpus"));
  if (Status status = checkSingle(tool, "--gpus is", ranks); !status.isOk())
    return fail(status);
  auto device = parseDevice(tool.text("device"));
  if (!device.isOk())
    return fail(device.status());
  if (Status status = device->describeNetwork(tool.integer("gpus_per_node"),
                                              tool.text("network"));
      !status.isOk())
    return fail(status);
  if (Status status = device->describeFailures(tool.number("node_mtbf_hours"));
      !status.isOk())
    return fail(status);
  const bool runsNothing = tool.boolean("print") || device->isNull;
  if (!request.profile.path.empty() && runsNothing)
    return fail(Status::invalid("--profile needs a run, but --print and "
                                "--device null run nothing; remove one"));
  if (!request.referenceKernels.empty() && runsNothing)
    return fail(Status::invalid("--reference-kernels needs a run, but --print "
                                "and --device null run nothing; remove one"));
  if (runsNothing) {
    if (Status status = checkRun(tool, "--print and --device null");
        !status.isOk())
      return fail(status);
    for (const std::string &module : modules) {
      request.modulePath = module;
      auto loaded = loadRequest(request);
      if (!loaded.isOk())
        return fail(loaded.status());
      const int code = print(
          tool.boolean("print")
              ? StatusOr<std::string>(programText(loaded->module))
              : checkOnNullDevice(loaded->module, loaded->options, ranks,
                                  *device, request.disabledKernels));
      if (code != 0)
        return code;
    }
    return 0;
  }
  request.checkModel = checkModelIdentity;
  auto env = readRankEnvironment(std::getenv);
  if (!env.isOk())
    return fail(env.status());
  if (Status status = checkRanks(tool, *env); !status.isOk())
    return fail(status);
  auto axes = sweepAxes(tool.names("sweep"));
  if (!axes.isOk())
    return fail(axes.status());
  if (!axes->empty()) {
    if (Status status = checkRun(tool, "--sweep"); !status.isOk())
      return fail(status);
    return sweep({request, modules, *axes, std::max(ranks, env->worldSize), {}},
                 *env);
  }
  if (env->worldSize == 1 && ranks > 1)
    return launch(request, ranks, argv, argc);
  request.programs = modules;
  return runRank(request, *env);
}

static int runTool(int argc, char **argv) {
  const Tool description = runner();
  std::vector<std::string> words(argv + 1, argv + argc);
  auto line = parseCommandLine(words, description);
  if (!line.isOk())
    return fail(line.status());
  setSimulatedDevice(kRunnerOptions, line->settings);
  Options tool(kRunnerOptions);
  if (Status status = tool.applySettings(line->settings); !status.isOk())
    return fail(status);
  if (!line->answer.empty())
    return print(line->answer);
  boundBusyWaiting(argv);
  if (const std::string folder = tool.text("report"); !folder.empty())
    return report(folder);
  if (tool.boolean("calibrate"))
    return calibrate(line->rest, tool, argv, argc);
  if (line->rest.empty())
    if (auto input = onlyInput(*line, description); !input.isOk())
      return fail(input.status());
  SessionRequest request{line->rest[0],
                         tool.text("config"),
                         line->settings,
                         tool.text("dump"),
                         tool.text("device"),
                         tool.boolean("cuda_graphs"),
                         tool.names("disable_kernels"),
                         tool.names("reference_kernels"),
                         tool.text("gemm_table"),
                         {tool.text("base_cache"),
                          static_cast<uint64_t>(
                              tool.integer("base_cache_limit"))},
                         {tool.text("profile"), tool.integer("profile_warmup"),
                          tool.integer("profile_active"),
                          tool.text("device_profile")},
                         tool.boolean("verbose"),
                          static_cast<int>(tool.integer("threads")),
                          static_cast<int>(tool.integer("ranks_per_gpu"))};
  request.isGemmTableGiven =
      tool.source("gemm_table") != Options::Source::kDefault;
  if (tool.boolean("force_single_gpu")) // overrides a configuration
    request.settings.push_back({findOption(optionTable(), "parallel"), "none",
                                "--force-single-gpu"});
  return dispatch(std::move(request), line->rest, tool, argv, argc);
}

int main(int argc, char **argv) {
  auto code = endExceptions("this program", [&]() -> StatusOr<int> {
    return runTool(argc, argv);
  });
  return code.isOk() ? *code : fail(code.status());
}
