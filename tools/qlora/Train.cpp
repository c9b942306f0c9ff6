// SPDX-License-Identifier: MIT

// Makes the programs of a training, and runs qlora-run.

#include "tools/qlora/Train.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/Kernels/Cuda/CudaGpu.h"
#include "runtime/Options/SweepGrid.h"
#include "runtime/Ranks/RankEnvironment.h"
#include "runtime/Session/RunCheck.h"
#include "tools/qlora-run/RunnerOptions.h"
#include "tools/qlora/Configuration.h"
#include "tools/qlora/ForeignConfigKeys.h"
#include "tools/qlora/HubData.h"

namespace qlora {

static const OptionRow kTrainOptions[] = {
    {"config", OptionType::kPath, "", kRun, "Train",
     "YAML file with options, also of axolotl, LLaMA-Factory or TRL"},
    {"model_revision", OptionType::kString, "", kRun, "Train",
     "branch, tag or commit of a model on the Hugging Face hub, also written "
     "NAME@REVISION; empty: main",
     "revision_of_model"},
    {"dry_run", OptionType::kBool, "false", kRun, "Train",
     "print the commands of qlora-import, qloracc and qlora-run, and run "
     "nothing"},
};

/// Whether other tools' files have a key of this name. A token has a better
/// remedy than a file.
static bool isKeyOfFiles(const std::string &name) {
  const std::string key = canonicalSpelling(name);
  return isForeignKey(key) && key != "hub_token" &&
         !findOptionName(optionTable(), key).isRefused();
}

const Tool &trainTool() {
  static const Tool tool = {
      .version = "qlora " QLORA_VERSION "\n",
      .usage = "usage: qlora train MODEL DATA [options]\n"
               "       qlora train CONFIG.yaml [options]\n"
               "       qlora train TRAIN.so DATA [options]\n"
               "\n"
               "Trains an adapter: imports the model, compiles it (programs "
               "are kept for later\n"
               "runs) and runs it. Flags override the YAML file. MODEL and "
               "DATA are paths, or\n"
               "names on the Hugging Face hub (OWNER/NAME), which are fetched "
               "once.\n",
      .input = "MODEL",
      .common = {"config",
                 "model_name_or_path",
                 "train_file",
                 "validation_file",
                 "load_in_4bit",
                 "bnb_4bit_use_double_quant",
                 "compute_dtype",
                 "lora_r",
                 "lora_alpha",
                 "lora_dropout",
                 "lora_target_modules",
                 "max_length",
                 "per_device_train_batch_size",
                 "gradient_accumulation_steps",
                 "num_train_epochs",
                 "learning_rate",
                 "lr_scheduler_type",
                 "warmup_ratio",
                 "logging_steps",
                 "save_steps",
                 "seed",
                 "output_dir",
                 "resume_from_checkpoint",
                 "memory_limit",
                 "target",
                 "gpus",
                 "dry_run"},
      .example = "  qlora train Qwen/Qwen3-0.6B data.jsonl --load-in-4bit \\\n"
                 "      --max-length 512 --output-dir adapter\n",
      .sections = {{kTrainOptions, {}, ""},
                   {hubDataRows(), {}, ""},
                   {optionTable(), {}, ""},
                   {runnerRows(), {}, ""},
                   {compilerRows(), {}, ""},
                   {importerRows(), {}, ""}},
      .tables = {kTrainOptions, hubDataRows(), optionTable(), runnerRows(),
                 compilerRows(), importerRows()},
      .isForeign = isKeyOfFiles};
  return tool;
}

/// Returns one list of settings per program that --sweep needs. A list has the
/// values of compiled-in axes. For a sweep, --dequantize is tiled by default,
/// because runs can then share decoded weights.
static StatusOr<std::vector<std::vector<OptionSetting>>>
programSettings(const CommandLine &line) {
  Options runner{runnerRows()}, compiler{compilerRows()};
  QLORA_RETURN_IF_ERROR(runner.applySettings(line.settings));
  QLORA_RETURN_IF_ERROR(compiler.applySettings(line.settings));
  QLORA_ASSIGN_OR_RETURN(const auto axes, sweepAxes(runner.names("sweep")));
  std::vector<SweepAxis> compiled;
  for (const SweepAxis &axis : axes)
    if (const OptionRow *row = findOption(optionTable(), axis.name);
        row && row->scope == OptionScope::kProgram)
      compiled.push_back(axis);
  std::vector<std::vector<OptionSetting>> all;
  const std::span<const OptionRow> tables[] = {optionTable()};
  for (const SweepPoint &point : sweepPoints(compiled)) {
    QLORA_ASSIGN_OR_RETURN(auto settings, point.settings(tables));
    if (!axes.empty() && !compiler.isGiven("dequantize"))
      settings.push_back(
          {findOption(compilerRows(), "dequantize"), "tiled", "--dequantize"});
    all.push_back(std::move(settings));
  }
  return all;
}

/// Returns the options of one run of a sweep, with its own output folder.
static StatusOr<Options> optionsOf(const SweepPoint &point, Options options) {
  const std::span<const OptionRow> tables[] = {optionTable()};
  QLORA_ASSIGN_OR_RETURN(auto settings, point.settings(tables));
  if (!settings.empty())
    settings.push_back({findOption(optionTable(), "output_dir"),
                        options.text("output_dir") + "/" + point.name(),
                        "--output-dir"});
  QLORA_RETURN_IF_ERROR(options.applySettings(settings));
  return options;
}

/// Returns whether the command line or a file names the model.
static bool namesModel(const CommandLine &line, const Options &own) {
  return !line.rest.empty() || !own.text("config").empty() ||
         std::ranges::any_of(line.settings, [](const OptionSetting &setting) {
           return setting.row->name == std::string_view("model_name_or_path");
         });
}

static Status checkModelIsNamed(const Options &options) {
  if (!options.text("model_name_or_path").empty())
    return Status::ok();
  return Status::invalid(
      "no model is named; add its folder or hub name: qlora train MODEL DATA, "
      "or model_name_or_path in the YAML file");
}

/// Checks that each rank of this machine has a GPU.
static Status checkGpus(int ranks, int ranksPerGpu) {
  QLORA_ASSIGN_OR_RETURN(const auto gpus, visibleGpus());
  QLORA_ASSIGN_OR_RETURN(const RankEnvironment env,
                         readRankEnvironment(std::getenv));
  const int last = env.worldSize > 1 ? env.localRank : ranks - 1;
  return checkGpu(last / ranksPerGpu, static_cast<int>(gpus.size()));
}

/// Refuses a run that qlora-run would refuse, before compiling for it.
static Status checkBeforeCompiling(const Configuration &configuration,
                                   const CommandLine &line, bool isDryRun) {
  Options runner{runnerRows()};
  QLORA_RETURN_IF_ERROR(runner.applySettings(line.settings));
  if (runner.text("device").starts_with("null") || runner.boolean("print"))
    return Status::ok();
  // A dry run may be for another machine.
  if (configuration.target == "cuda" && !isDryRun)
    QLORA_RETURN_IF_ERROR(
        checkGpus(static_cast<int>(runner.integer("gpus")),
                  static_cast<int>(runner.integer("ranks_per_gpu"))));
  QLORA_ASSIGN_OR_RETURN(const auto axes, sweepAxes(runner.names("sweep")));
  for (const SweepPoint &point : sweepPoints(axes)) {
    QLORA_ASSIGN_OR_RETURN(const Options options,
                           optionsOf(point, configuration.options));
    QLORA_RETURN_IF_ERROR(checkRun(options, !isDryRun));
  }
  return Status::ok();
}

static StatusOr<TrainCommands>
trainCommands(const CommandLine &line, const Options &own, ProgramUse use) {
  TrainCommands all;
  QLORA_ASSIGN_OR_RETURN(const auto programs, programSettings(line));
  std::vector<std::string> flags;
  for (const std::vector<OptionSetting> &settings : programs) {
    CommandLine of = line;
    std::ranges::copy(settings, std::back_inserter(of.settings));
    QLORA_ASSIGN_OR_RETURN(
        const Configuration configuration,
        configure(of, own.text("config"), own.text("model_revision"), use));
    if (all.programs.empty()) {
      for (const std::string &text : configuration.notes)
        note(text);
      flags = configuration.runnerFlags;
      all.target = configuration.target;
      all.parallel = configuration.options.text("parallel");
      if (configuration.program.empty())
        QLORA_RETURN_IF_ERROR(checkModelIsNamed(configuration.options));
      if (configuration.program.empty() && use == ProgramUse::kTrain)
        QLORA_RETURN_IF_ERROR(
            checkBeforeCompiling(configuration, line, own.boolean("dry_run")));
    }
    QLORA_ASSIGN_OR_RETURN(ProgramCommands made,
                           programCommands(configuration));
    note(made.note);
    all.run.arguments.push_back(made.program);
    all.programs.push_back(std::move(made));
  }
  std::ranges::copy(flags, std::back_inserter(all.run.arguments));
  return all;
}

/// Implements --dry-run: prints the commands.
static Status show(const TrainCommands &all) {
  for (const ProgramCommands &made : all.programs)
    QLORA_RETURN_IF_ERROR(showProgram(made));
  fmt::print("{}\n", shellText(all.run));
  return Status::ok();
}

/// Whether the runner's options request what `qlora plan` does not summarize.
static StatusOr<bool> isDetailed(const CommandLine &line) {
  Options runner{runnerRows()}, run;
  QLORA_RETURN_IF_ERROR(runner.applySettings(line.settings));
  QLORA_RETURN_IF_ERROR(run.applySettings(line.settings));
  return runner.boolean("verbose") || runner.boolean("print") ||
         runner.isGiven("node_mtbf_hours") || run.isGiven("log_format");
}

StatusOr<std::optional<TrainCommands>>
prepareTraining(std::span<const std::string> words, const Tool &tool,
                ProgramUse use) {
  QLORA_ASSIGN_OR_RETURN(CommandLine line, parseCommandLine(words, tool));
  if (!line.answer.empty()) {
    fmt::print("{}", line.answer);
    return std::optional<TrainCommands>();
  }
  setSimulatedDevice(runnerRows(), line.settings);
  Options own{std::span<const OptionRow>(kTrainOptions)};
  QLORA_RETURN_IF_ERROR(own.applySettings(line.settings));
  if (!line.foreign.empty())
    return Status::invalid("'{}' is a key of other tools' files. Fix: write it "
                           "into a YAML file, for qlora train FILE.yaml",
                           line.foreign.front());
  if (!namesModel(line, own))
    return Status::invalid("no model is named; {}; see --help",
                           tool.usage.substr(0, tool.usage.find('\n')));
  QLORA_ASSIGN_OR_RETURN(TrainCommands all, trainCommands(line, own, use));
  QLORA_ASSIGN_OR_RETURN(all.isDetailed, isDetailed(line));
  std::vector<std::string> &arguments = all.run.arguments;
  const bool namesGpu =
      std::ranges::any_of(arguments, [](const std::string &argument) {
        return argument.starts_with("--device=null");
      });
  if (use == ProgramUse::kPlan && !namesGpu)
    arguments.push_back("--device=null");
  if (own.boolean("dry_run")) {
    QLORA_RETURN_IF_ERROR(show(all));
    return std::optional<TrainCommands>();
  }
  for (const ProgramCommands &made : all.programs) {
    noteCached(made);
    QLORA_RETURN_IF_ERROR(makeProgram(made));
  }
  return std::optional(std::move(all));
}

Status train(std::span<const std::string> words) {
  QLORA_ASSIGN_OR_RETURN(
      const std::optional<TrainCommands> all,
      prepareTraining(words, trainTool(), ProgramUse::kTrain));
  return all ? becomeTool(all->run) : Status::ok();
}

} // namespace qlora
