// SPDX-License-Identifier: MIT

// qlora-run: train.so -> a PEFT adapter. Arguments in, exit code out; what
// happens in between is runtime/Session.

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/Core/CommandLine.h"
#include "runtime/Session/Calibrate.h"
#include "runtime/Session/Launcher.h"
#include "runtime/Session/NullRun.h"
#include "runtime/Session/OutputFolder.h"
#include "runtime/Session/ProgramText.h"
#include "runtime/Session/RankChannel.h"
#include "runtime/Session/Session.h"
#include "tools/qlora-run/WaitPolicy.h"

using namespace qlora;

static constexpr const char *kUsage =
    "usage: qlora-run TRAIN.so [--config FILE.yaml] [--gpus N] [options]\n"
    "\n"
    "Trains the program that qloracc made and writes a PEFT adapter. Options\n"
    "are spelled as Hugging Face spells them, with dashes or underscores;\n"
    "flags win over the YAML file, which wins over what TRAIN.so recorded.\n";

static constexpr const char *kGroup = "qlora-run";
static constexpr OptionScope kRun = OptionScope::kRun;

static const OptionRow kToolOptions[] = {
    {"config", OptionType::kPath, "", kRun, kGroup, "YAML file with options"},
    {"gpus", OptionType::kInt, "1", kRun, kGroup,
     "ranks to start on this machine: one per GPU for a program for cuda, "
     "else CPU ranks",
     "nproc_per_node", "", 1, 4096},
    {"device", OptionType::kString, "auto", kRun, kGroup,
     "auto (what TRAIN.so is for), cpu or cuda; null: check and count the "
     "program for --gpus N ranks, run nothing; null:CARD, with a known card "
     "(null:h200) or a device.json: predict a step's time too"},
    {"threads", OptionType::kInt, "0", kRun, kGroup,
     "CPU threads of each rank; 0: OMP_NUM_THREADS, or else this rank's share "
     "of the CPUs that this process may use", "t", "", 0, 4096},
    {"cuda_graphs", OptionType::kBool, "true", kRun, kGroup,
     "launch an entry as one captured graph; false: kernel by kernel"},
    {"disable_kernels", OptionType::kNames, "[]", kRun, kGroup,
     "library kernels not to use, such as attention.cudnn; the next one of "
     "Kernels.def is taken"},
    {"gemm_table", OptionType::kString, DeviceOptions::kMeasureGemms, kRun,
     kGroup,
     "algorithms of matrix products on a GPU: measure (once for a card, then "
     "kept in the user's cache), heuristic (cuBLASLt's first choice), or the "
     "gemm_table.json of an earlier run, which is then used as it is"},
    {"base_cache", OptionType::kString, BaseCacheRequest::kUserCache, kRun,
     kGroup,
     "where quantised bases are kept, for later runs of the same model to map "
     "instead of reading and quantising it again: auto (bases/ in the user's "
     "cache), a folder, or none; CPU only"},
    {"base_cache_limit", OptionType::kSize, "40GiB", kRun, kGroup,
     "bytes of all bases that are kept; the least recently used go first", "",
     "", 0},
    {"print", OptionType::kBool, "false", kRun, kGroup,
     "list the commands of the program"},
    {"dump", OptionType::kPath, "", kRun, kGroup,
     "write logits, first gradients and 4-bit weights to a safetensors file"},
    {"profile", OptionType::kPath, "", kRun, kGroup,
     "write what every command of a few steps costs, on all queues and ranks, "
     "as a Chrome trace (ui.perfetto.dev), and print the step's time by kind; "
     "on a GPU these steps run kernel by kernel with events around each, so "
     "that small kernels take longer than in a graph"},
    {"profile_warmup", OptionType::kInt, "2", kRun, kGroup,
     "steps before those of --profile", "", "", 0},
    {"profile_active", OptionType::kInt, "3", kRun, kGroup,
     "steps of --profile", "profile_steps", "", 1},
    {"device_profile", OptionType::kString, "", kRun, kGroup,
     "rates that --profile compares with: a known card (h200) or the "
     "device.json of --calibrate; without it, those of qloracc's default"},
    {"calibrate", OptionType::kBool, "false", kRun, kGroup,
     "measure this machine and write device.json for qloracc"},
    {"help", OptionType::kBool, "false", kRun, kGroup, "this text", "h"},
    {"version", OptionType::kBool, "false", kRun, kGroup, "print the version"},
};

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

/// Starts the ranks, after a look at what each of them would refuse.
static int launch(const SessionRequest &request, int ranks, char **argv,
                  int argc) {
  auto loaded = loadRequest(request);
  if (!loaded.isOk())
    return fail(loaded.status());
  if (Status status = checkOutputFolder(loaded->options); !status.isOk())
    return fail(status);
  LaunchResult result = launchRanks(
      {"/proc/self/exe", std::vector<std::string>(argv, argv + argc), ranks});
  if (!result.error.isOk())
    fail(result.error);
  return result.exitCode;
}

/// As a rank of a launcher, ours or another, or alone.
static int runRank(const SessionRequest &request, RankEnvironment env) {
  auto channel = RankChannel::open(env);
  if (!channel.isOk())
    return fail(channel.status());
  FileDescriptor listening;
  if (*channel)
    listening = (*channel)->takeListeningSocket();
  auto code = runSession(request, env, std::move(listening));
  if (code.isOk())
    return *code;
  if (!*channel)
    return fail(code.status());
  (*channel)->reportError(code.status());
  return 1;
}

static Status checkRanks(const Options &tool, const RankEnvironment &env) {
  int64_t gpus = tool.integer("gpus");
  bool isGiven = tool.source("gpus") != Options::Source::kDefault;
  if (!isGiven || env.worldSize == 1 || gpus == env.localWorldSize)
    return Status::ok();
  return Status::invalid("--gpus {} contradicts {}, which started {} ranks on "
                         "this machine; leave one of them out",
                         gpus, env.launcher, env.localWorldSize);
}

static int dispatch(const SessionRequest &request, const Options &tool,
                    char **argv, int argc) {
  int ranks = static_cast<int>(tool.integer("gpus"));
  auto device = parseDevice(tool.text("device"));
  if (!device.isOk())
    return fail(device.status());
  if (!request.profile.path.empty() &&
      (tool.boolean("print") || device->isNull))
    return fail(Status::invalid("--profile measures a run, and --print and "
                                "--device null run nothing"));
  if (tool.boolean("print") || device->isNull) {
    auto loaded = loadRequest(request);
    if (!loaded.isOk())
      return fail(loaded.status());
    if (tool.boolean("print"))
      return print(programText(loaded->module));
    return print(checkOnNullDevice(loaded->module, loaded->options, ranks,
                                   device->card));
  }
  auto env = readRankEnvironment(std::getenv);
  if (!env.isOk())
    return fail(env.status());
  if (Status status = checkRanks(tool, *env); !status.isOk())
    return fail(status);
  if (env->worldSize == 1 && ranks > 1)
    return launch(request, ranks, argv, argc);
  return runRank(request, *env);
}

int main(int argc, char **argv) {
  const std::span<const OptionRow> tables[] = {kToolOptions, optionTable()};
  std::vector<std::string> words(argv + 1, argv + argc);
  auto line = parseCommandLine(words, tables, UnknownFlags::kReject);
  if (!line.isOk())
    return fail(line.status());
  Options tool(kToolOptions);
  if (Status status = tool.applySettings(line->settings); !status.isOk())
    return fail(status);
  if (tool.boolean("help"))
    return print(std::string(kUsage) + optionHelp(tables));
  if (tool.boolean("version"))
    return print(std::string("qlora-run " QLORA_VERSION "\n"));
  boundBusyWaiting(argv);
  if (tool.boolean("calibrate"))
    return print(calibrate("device.json"));
  if (line->rest.size() != 1)
    return fail(Status::invalid("expects one TRAIN.so, but got {}; see --help",
                                line->rest.size()));
  SessionRequest request{line->rest[0],
                         tool.text("config"),
                         line->settings,
                         tool.text("dump"),
                         tool.text("device"),
                         tool.boolean("cuda_graphs"),
                         tool.names("disable_kernels"),
                         tool.text("gemm_table"),
                         {tool.text("base_cache"),
                          static_cast<uint64_t>(
                              tool.integer("base_cache_limit"))},
                         {tool.text("profile"), tool.integer("profile_warmup"),
                          tool.integer("profile_active"),
                          tool.text("device_profile")}};
  request.threads = static_cast<int>(tool.integer("threads"));
  return dispatch(request, tool, argv, argc);
}
