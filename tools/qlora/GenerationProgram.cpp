// SPDX-License-Identifier: MIT

// The program, and the options of all commands that generate.

#include "tools/qlora/GenerationProgram.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "frontend/HfConfig.h"
#include "runtime/Base/Amounts.h"
#include "runtime/Base/CpuCount.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Kernels/Cuda/CudaGpu.h"
#include "runtime/Session/SessionRequest.h"
#include "runtime/Watch/RunFolder.h"
#include "tools/qlora/GenerationSource.h"
#include "tools/qlora/HubCache.h"
#include "tools/qlora/OptionSettings.h"
#include "tools/qlora/Train.h"

namespace qlora {

namespace fs = std::filesystem;

static const OptionRow kAdapterOptions[] = {
    {"adapter", OptionType::kString, "", kRun, "Generate",
     "PEFT adapter to use: a folder, or NAME=DIR; if repeated, each row names "
     "the adapter that it uses; none: the base alone; empty: that of RUN_DIR, "
     "if it is one", "", kNoAdapter},
};

// Numbers are passed to qlora-data only if they are given, because it reads
// other defaults from generation_config.json.
static const OptionRow kSamplingOptions[] = {
    {"system", OptionType::kString, "", kRun, "Generate",
     "system message, for conversations without one"},
    {"stop", OptionType::kString, "", kRun, "Generate",
     "end an answer before this text; repeat it for several texts"},
    {"max_new_tokens", OptionType::kInt, "auto", kRun, "Generate",
     "maximum tokens of an answer; auto: generation_config.json decides, else "
     "--generation-length", "", "auto", 1, 1 << 24},
    {"temperature", OptionType::kFloat, "0", kRun, "Generate",
     "temperature of sampling; 0: always the likeliest token; "
     "generation_config.json may have another default", "", "", 0},
    {"top_k", OptionType::kInt, "0", kRun, "Generate",
     "sample from this many likeliest tokens; 0: from all; "
     "generation_config.json may have another default", "", "", 0, 1 << 30},
    {"top_p", OptionType::kFloat, "1", kRun, "Generate",
     "sample from the likeliest tokens that together have this probability; "
     "generation_config.json may have another default", "", "", 0, 1},
    {"min_p", OptionType::kFloat, "0", kRun, "Generate",
     "sample from tokens of at least this probability, relative to the "
     "likeliest; generation_config.json may have another default", "", "", 0,
     1},
    {"repetition_penalty", OptionType::kFloat, "1", kRun, "Generate",
     "above 1: make tokens of prompt and answer less likely; "
     "generation_config.json may have another default", "", "", 0},
    {"presence_penalty", OptionType::kFloat, "0", kRun, "Generate",
     "above 0: make tokens of the answer less likely", "", "", -100, 100},
    {"ignore_eos", OptionType::kBool, "false", kRun, "Generate",
     "continue after end tokens, until --max-new-tokens"},
};

static const OptionRow kRankOptions[] = {
    {"gpus", OptionType::kInt, "1", kRun, "Generate",
     "ranks (processes) that share the rows: one per GPU for a cuda program, "
     "else they share the CPU", "nproc_per_node", "", 1, 4096},
};

std::span<const OptionRow> adapterRows() { return kAdapterOptions; }

std::span<const OptionRow> samplingRows() { return kSamplingOptions; }

std::span<const OptionRow> rankRows() { return kRankOptions; }

static std::span<const OptionRow> onlyRow(std::span<const OptionRow> table,
                                          std::string_view name) {
  return {findOption(table, name), 1};
}

void addGenerationTables(Tool &tool,
                         std::vector<std::span<const OptionRow>> own) {
  tool.tables = std::move(own);
  for (const std::span<const OptionRow> table :
       {adapterRows(), samplingRows(), onlyRow(optionTable(), "seed"),
        onlyRow(optionTable(), "chat_template"),
        onlyRow(optionTable(), "model_name_or_path"),
        groupOf(optionTable(), "Generation"), groupOf(optionTable(), "LoRA"),
        groupOf(optionTable(), "Quantization"),
        groupOf(optionTable(), "Batch, length and memory"),
        onlyRow(runnerRows(), "device"), onlyRow(runnerRows(), "threads"),
        groupOf(runnerRows(), "Kernels and caches"),
        onlyRow(trainTool().tables.front(), "dry_run"), compilerRows()})
    tool.tables.push_back(table);
  for (const std::span<const OptionRow> table : tool.tables)
    tool.sections.push_back({table, {}, ""});
}

StatusOr<GenerationCommand>
GenerationCommand::parse(std::span<const std::string> words, const Tool &tool,
                         std::span<const OptionRow> own) {
  GenerationCommand command;
  command.own = Options(own);
  Options ofTrain(trainTool().tables.front());
  QLORA_ASSIGN_OR_RETURN(command.line, parseCommandLine(words, tool));
  for (Options *options : {&command.own, &command.adapter, &command.sampling,
                           &command.ranks, &ofTrain, &command.run})
    QLORA_RETURN_IF_ERROR(options->applySettings(command.line.settings));
  command.isDryRun = ofTrain.boolean("dry_run");
  return command;
}

/// Adds a default unless there is a setting for its option.
static void addDefault(const OptionSetting &setting,
                       std::vector<OptionSetting> &settings) {
  if (std::ranges::find(settings, setting.row, &OptionSetting::row) ==
      settings.end())
    settings.push_back(setting);
}

/// Completes the settings to compile a program that generates.
static Status addCompileSettings(const GenerationSource &source,
                                 std::vector<OptionSetting> &settings) {
  if (!source.model.empty())
    settings.push_back(settingOf("model_name_or_path", source.model));
  for (const OptionSetting &setting : source.defaults)
    addDefault(setting, settings);
  if (source.adapters.empty())
    addDefault(settingOf("lora_target_modules", "[]"), settings);
  const auto model = std::ranges::find(
      settings, findOption(optionTable(), "model_name_or_path"),
      &OptionSetting::row);
  if (model == settings.end())
    return Status::invalid("'{}' names no base model. Fix: name MODEL "
                           "instead, with --adapter {}",
                           source.adapter(), source.adapter());
  QLORA_ASSIGN_OR_RETURN(model->text, modelFolder(model->text));
  QLORA_ASSIGN_OR_RETURN(const ModelConfig config,
                         readHfConfig(model->text, {}));
  const OptionRow &length = *findOption(optionTable(), "generation_length");
  int64_t tokens = std::stoll(length.initial);
  if (config.maxPositions > 0)
    tokens = std::min(tokens, config.maxPositions);
  addDefault(settingOf("generation_length", fmt::to_string(tokens)), settings);
  addDefault(settingOf("entries", "generate"), settings);
  return Status::ok();
}

/// Returns the chat template to use instead of the model's, or empty: the
/// user's, else the one that the adapter was trained with.
static std::string chatTemplate(const Options &options,
                                const std::string &adapter) {
  constexpr const char *kFile = "chat_template.jinja";
  const std::string given = options.text("chat_template");
  if (!given.empty() || !hasFile(adapter, kFile))
    return given;
  return adapter + "/" + kFile;
}

/// Sets the options of a compiled program and of the command line, and the
/// program's target.
static Status readProgram(const std::string &path, const CommandLine &line,
                          GenerationProgram &program) {
  SessionRequest request;
  request.modulePath = path;
  request.settings = line.settings;
  QLORA_ASSIGN_OR_RETURN(LoadedRequest loaded, loadRequest(request));
  if (loaded.options.text("model_name_or_path").empty())
    return Status::invalid("'{}' names no model. Fix: add --model-name-or-path "
                           "DIR",
                           path);
  program.options = std::move(loaded.options);
  program.isCuda = loaded.module.table().target == QLORA_TARGET_CUDA;
  return Status::ok();
}

/// Resolves what compiles or runs the program. Sets the options and the target
/// of `program`.
static StatusOr<Configuration> configureProgram(const CommandLine &line,
                                                const GenerationSource &source,
                                                GenerationProgram &program) {
  CommandLine compiled = line;
  compiled.rest.clear();
  // The given seed is only for sampling, which qlora-data requests.
  std::erase_if(compiled.settings, [](const OptionSetting &setting) {
    return setting.row->name == std::string_view("seed");
  });
  if (source.program.empty())
    QLORA_RETURN_IF_ERROR(addCompileSettings(source, compiled.settings));
  else
    compiled.rest.push_back(source.program);
  QLORA_ASSIGN_OR_RETURN(Configuration configuration,
                         configure(compiled, "", "", ProgramUse::kTrain));
  if (!source.program.empty()) {
    QLORA_RETURN_IF_ERROR(readProgram(source.program, line, program));
    return configuration;
  }
  program.options = configuration.options;
  program.isCuda = configuration.target == "cuda";
  const Options &options = program.options;
  if (options.text("parallel") != "none")
    return Status::invalid("{} {}: each rank of a generation has the whole "
                           "model. Fix: remove it; --gpus starts several ranks",
                           options.spelling("parallel"),
                           options.text("parallel"));
  if (source.usesAdapter() && !source.isChoice)
    QLORA_RETURN_IF_ERROR(checkAdapterOptions(source.adapter(), options));
  return configuration;
}

/// Returns qlora-run's command line.
static StatusOr<std::vector<std::string>>
engineWords(const std::string &program, const GenerationSource &source,
            const Configuration &configuration) {
  QLORA_ASSIGN_OR_RETURN(std::string engine, findTool("qlora-run"));
  std::vector<std::string> words = {std::move(engine), program, "--generate"};
  std::ranges::copy(configuration.runnerFlags, std::back_inserter(words));
  // A program may record the adapter that its training starts from.
  if (source.usesAdapter())
    for (const NamedAdapter &adapter : source.adapters)
      words.push_back("--adapter=" + adapter.name + "=" +
                      absolutePath(adapter.folder));
  else if (source.isBaseOnly)
    words.push_back("--adapter-name-or-path=");
  return words;
}

/// Gives each rank a GPU, or its fraction of the CPUs.
static Status addRanks(const GenerationCommand &command,
                       GenerationProgram &program) {
  const auto ranks = static_cast<int>(command.ranks.integer("gpus"));
  if (ranks == 1)
    return Status::ok();
  // A dry run may be for another machine.
  if (program.isCuda && !command.isDryRun) {
    QLORA_ASSIGN_OR_RETURN(const auto gpus, visibleGpus());
    if (ranks > std::ssize(gpus))
      return Status::unavailable(
          "{} {}: this process sees {}. Fix: --gpus {}, or show more GPUs "
          "(CUDA_VISIBLE_DEVICES)",
          command.ranks.spelling("gpus"), ranks,
          formatCounted(std::ssize(gpus), "GPU"), gpus.size());
  }
  program.dataFlags.push_back(fmt::format("--ranks={}", ranks));
  Options runner{runnerRows()};
  QLORA_RETURN_IF_ERROR(runner.applySettings(command.line.settings));
  if (!runner.isGiven("threads"))
    program.engine.push_back(fmt::format(
        "--threads={}", threadsPerRank({0, std::getenv("OMP_NUM_THREADS"),
                                        usableCpus(), ranks})));
  return Status::ok();
}

/// Returns qlora-data's flags.
static std::vector<std::string> dataFlags(const GenerationCommand &command,
                                          const GenerationProgram &program) {
  std::vector<std::string> flags = {
      "--model=" + program.options.text("model_name_or_path"),
      fmt::format("--seed={}", command.run.integer("seed"))};
  if (!program.chatTemplate.empty())
    flags.push_back("--chat-template=" + program.chatTemplate);
  const Options &sampling = command.sampling;
  if (sampling.isGiven("system"))
    flags.push_back("--system=" + sampling.text("system"));
  for (const std::string &text : textsOf(command.line.settings, "stop"))
    flags.push_back("--stop=" + text);
  if (sampling.boolean("ignore_eos"))
    flags.push_back("--ignore-eos");
  for (const OptionRow &row : kSamplingOptions)
    if (sampling.isGiven(row.name) && sampling.value(row.name).is_number())
      flags.push_back(fmt::format("{}={}", flagSpelling(row.name),
                                  dumpExact(sampling.value(row.name))));
  return flags;
}

StatusOr<GenerationProgram>
findGenerationProgram(const GenerationCommand &command) {
  QLORA_ASSIGN_OR_RETURN(
      GenerationSource source,
      findSource(command.line.rest[0], command.line.settings));
  source.defaults.push_back(
      settingOf("generation_batch", fmt::to_string(command.batch)));
  GenerationProgram program;
  QLORA_ASSIGN_OR_RETURN(
      const Configuration configuration,
      configureProgram(command.line, source, program));
  for (const std::string &text : configuration.notes)
    note(text);
  QLORA_ASSIGN_OR_RETURN(program.made, programCommands(configuration));
  note(program.made.note);
  program.run = source.run;
  program.chatTemplate = chatTemplate(program.options, source.adapter());
  program.rowsChoose = source.isChoice && source.usesAdapter();
  program.dataFlags = dataFlags(command, program);
  QLORA_ASSIGN_OR_RETURN(
      program.engine,
      engineWords(program.made.program, source, configuration));
  QLORA_RETURN_IF_ERROR(addRanks(command, program));
  return program;
}

Status becomeAnswer(const GenerationProgram &program, ToolCommand answer,
                    bool isDryRun) {
  answer.arguments.push_back("--");
  std::ranges::copy(program.engine, std::back_inserter(answer.arguments));
  if (isDryRun) {
    QLORA_RETURN_IF_ERROR(showProgram(program.made));
    return fmt::print("{}\n", shellText(answer)), Status::ok();
  }
  QLORA_RETURN_IF_ERROR(makeProgram(program.made));
  return becomeTool(answer);
}

} // namespace qlora
