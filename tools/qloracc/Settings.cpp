// SPDX-License-Identifier: MIT

// Parses the command line into settings, and refuses contradictory options.

#include "tools/qloracc/Settings.h"

#include "compiler/Codegen/CudaTarget.h"
#include "compiler/Search/MemoryLimit.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/CommandLine.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/Base/FindProgram.h"
#include "runtime/Base/HubReference.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Kernels/Cuda/TargetChoice.h"
#include "runtime/Options/AdapterOptions.h"
#include "runtime/Options/CommandLine.h"
#include "runtime/Options/DeviceMap.h"
#include "runtime/Options/ObjectiveOptions.h"
#include "runtime/Options/StepRows.h"
#include "tools/qloracc/CompilerOptions.h"

namespace qlora {

namespace {

constexpr OptionScope kProgram = OptionScope::kProgram;

bool isMlirFlag(const std::string &name) {
  return llvm::cl::getRegisteredOptions().count(name) != 0;
}

Tool compilerTool() {
  const std::span<const OptionRow> own = kCompilerOptions;
  return {.version = "qloracc " QLORA_VERSION " (MLIR 22)\n",
          .usage =
              "usage: qloracc MODEL.mlir -o TRAIN.so [options]\n"
              "\n"
              "Compiles a model of qlora-import into a program for qlora-run. "
              "Batch size and\n"
              "length are compiled in. Options have Hugging Face's names, with "
              "dashes or\n"
              "underscores; flags override the YAML file.\n",
          .input = "MODEL.mlir",
          .common = {"output", "config", "train_file", "max_length",
                     "per_device_train_batch_size", "lora_r", "lora_alpha",
                     "lora_target_modules", "load_in_4bit", "memory_limit"},
          .example =
              "  qloracc model.mlir -o train.so --load-in-4bit --lora-r 16 \\\n"
              "      --train-file data.jsonl --max-length 512 \\\n"
              "      --per-device-train-batch-size 4\n",
          .sections = {{own.first(kCompilerOptionsFirst), {}, ""},
                       {optionTable(), {kProgram}, ""},
                       {optionTable(),
                        {OptionScope::kRun},
                        "Recorded in TRAIN.so, as defaults that qlora-run may "
                        "override"},
                       {own.subspan(kCompilerOptionsFirst), {}, ""}},
          .footer = "\nMLIR's own flags (--mlir-print-ir-after-all, "
                    "--mlir-timing, ...) work too.\n",
          .tables = {kCompilerOptions, optionTable()},
          .isForeign = isMlirFlag};
}

/// Refuses options of scope kOutput, which are for qlora-run only.
Status refuseOutputs(const CommandLine &line) {
  for (const OptionSetting &setting : line.settings)
    if (setting.row->scope == OptionScope::kOutput &&
        findOption(optionTable(), setting.row->name) == setting.row)
      return Status::invalid(
          "{}: a program does not record output options; give it to qlora-run",
          setting.written);
  return Status::ok();
}

/// Checks that a data file can be read: its path is recorded, and its rows
/// affect what is compiled.
Status checkDataFile(const Options &options, std::string_view name) {
  for (const WeightedPath &file : options.paths(name))
    if (!isHubReference(file.path) && access(file.path.c_str(), R_OK) != 0)
      return Status::invalid("{}: cannot read '{}': {}", options.spelling(name),
                             file.path, std::strerror(errno));
  return Status::ok();
}

std::string initName(const std::string &choice, bool isB) {
  if (choice == "false")
    return "kaiming";
  if (startsAtFactors(choice))
    return "factor";
  return isB ? "zero" : choice == "gaussian" ? "gaussian" : "kaiming";
}

/// Sets the compression of gradients (--ddp-comm-hook). The pass
/// compress-gradients refuses sharded gradients.
Status fillGradients(CompilerSettings &settings) {
  CompileOptions &c = settings.compile;
  const Options &o = settings.options;
  c.compress.form = o.text("ddp_comm_hook");
  c.compress.rank = o.integer("powersgd_rank");
  if (c.compress.form != "power_sgd" && o.isGiven("powersgd_rank"))
    return Status::invalid(
        "{} needs --ddp-comm-hook power_sgd; add that, or remove it",
        o.spelling("powersgd_rank"));
  if (c.compress.form == "no")
    return Status::ok();
  const std::string given =
      fmt::format("{} {}", o.spelling("ddp_comm_hook"), c.compress.form);
  if (c.mesh.pp > 1 || c.mesh.ep > 1 || settings.findsLayout)
    return Status::invalid("{} does not work with --parallel {}; remove one",
                           given, o.text("parallel"));
  if (c.compress.form == "bf16")
    return Status::ok();
  if (settings.ranks < 2)
    return Status::invalid("{} needs the number of ranks, two or more; set it: "
                           "qlora train --gpus N, or qloracc --ranks N",
                           given);
  c.runRanks = settings.ranks;
  return Status::ok();
}

/// Sets the given mesh, or leaves the choice to the compiler.
Status fillMesh(const Options &own, CompilerSettings &settings) {
  const Options &o = settings.options;
  const std::string map = own.text("device_map");
  if (o.text("parallel") == kAutoParallel) {
    if (!map.empty())
      return Status::invalid(
          "--parallel auto conflicts with --device-map; remove one");
    QLORA_RETURN_IF_ERROR(checkStageSpeeds(settings.compile, 1));
    settings.findsLayout = true;
    return Status::ok();
  }
  if (settings.gpusPerNode > 0 || !settings.network.empty())
    return Status::invalid("--gpus-per-node and --network need --parallel "
                           "auto; add that, or remove them");
  QLORA_ASSIGN_OR_RETURN(const MappedMesh mapped,
                         mappedMesh(o, map, settings.ranks));
  if (!map.empty() && !own.isGiven("ranks") && mapped.mesh.pp == 1)
    return Status::invalid(
        "--device-map {} needs to know how many GPUs there are; "
        "add --ranks N, or --parallel pp=N",
        map);
  settings.compile.pipeline.deviceMap = mapped.map;
  QLORA_RETURN_IF_ERROR(checkStageSpeeds(settings.compile, mapped.mesh.pp));
  // If --device-map determines the stages, record them as --parallel.
  if (!map.empty())
    return setLayout(settings, mapped.mesh);
  applyMesh(mapped.mesh, settings);
  return Status::ok();
}

Status fillTarget(const Options &own, CompilerSettings &settings) {
  TargetRequest request{own.text("target"), own.names("cuda_arch"),
                        own.text("cuda_compiler"), own.text("device_profile")};
  // The emitted language determines the target.
  if (settings.emit == "cuda" ||
      (settings.emit == "cpp" && request.target == "auto"))
    request.target = settings.emit == "cuda" ? "cuda" : "cpu";
  request.hasKernels = settings.emit == "so";
  QLORA_ASSIGN_OR_RETURN(TargetChoice choice, chooseTarget(request));
  if (!choice.warning.empty())
    llvm::errs() << "qloracc: warning: " << choice.warning << "\n";
  QLORA_RETURN_IF_ERROR(CudaTarget::parseArchs(choice.archs).status());
  settings.compile.target = settings.codegen.target = choice.target;
  settings.codegen.cudaArchs = std::move(choice.archs);
  return Status::ok();
}

Status fillCompile(const Options &own, CompilerSettings &settings) {
  const Options &o = settings.options;
  CompileOptions &c = settings.compile;
  llvm::append_range(c.pipeline.speeds, own.lengths("stage_speeds"));
  QLORA_RETURN_IF_ERROR(fillMesh(own, settings)); // before fillShape()
  c.trained.all = o.text("finetuning_type") == "full";
  c.trained.unfrozen = dumpJson(o.value("unfrozen_parameters"));
  QLORA_RETURN_IF_ERROR(fillGradients(settings));
  QLORA_RETURN_IF_ERROR(fillShape(o, c));
  QLORA_RETURN_IF_ERROR(fillGeneration(o, c));
  c.computeType = o.text("compute_dtype");
  c.loraActivations = o.text("activation_dtype_for_lora");
  c.quantize.format = o.quantizedFormat();
  if (o.text("llm_int8_activations") == "int8")
    c.int8Threshold = o.number("llm_int8_threshold");
  c.quantize.block = o.integer("bnb_4bit_blocksize");
  c.quantize.doubleQuant = o.boolean("bnb_4bit_use_double_quant");
  c.loss.objective = o.text("rl");
  c.loss.beta = o.number("beta");
  const WeightedLosses losses = lossesOf(o);
  c.loss.kinds.assign(losses.words.begin(), losses.words.end());
  c.loss.weights.assign(losses.weights.begin(), losses.weights.end());
  c.loss.labelSmoothing =
      o.number(c.loss.objective == "none" ? "label_smoothing_factor"
                                          : "label_smoothing");
  c.loss.tau = o.number("discopop_tau");
  c.loss.gamma = o.number("simpo_gamma");
  c.linesOfRow = o.linesOfRow();
  c.loss.desirableWeight = o.number("desirable_weight");
  c.loss.undesirableWeight = o.number("undesirable_weight");
  c.lora.rank = o.integer("lora_r");
  c.lora.alpha = o.number("lora_alpha");
  c.lora.dropout = o.number("lora_dropout");
  c.lora.rslora = o.boolean("use_rslora");
  c.lora.dora = o.boolean("use_dora");
  c.lora.bias = o.boolean("lora_bias");
  c.lora.targets = dumpJson(o.value("lora_target_modules"));
  c.lora.exclude = dumpJson(o.value("exclude_modules"));
  c.lora.layers = dumpJson(o.value("layers_to_transform"));
  c.lora.layersPattern = dumpJson(o.value("layers_pattern"));
  c.lora.rankPattern = dumpJson(o.value("lora_rank_pattern"));
  c.lora.alphaPattern = dumpJson(o.value("lora_alpha_pattern"));
  c.targetParameters = dumpJson(o.value("target_parameters"));
  c.quantize.experts = o.boolean("quantize_moe_experts");
  c.trained.loraPlusRatio = o.number("loraplus_lr_ratio");
  c.noise.alpha = o.number("neftune_noise_alpha");
  c.trained.bias = o.text("bias");
  c.trained.optimizer = o.text("optim");
  c.lora.modulesToSave = dumpJson(o.value("modules_to_save"));
  c.trainedTokens = o.lengths("trainable_token_indices");
  c.lora.initA = initName(o.text("init_lora_weights"), false);
  c.lora.initB = initName(o.text("init_lora_weights"), true);
  QLORA_RETURN_IF_ERROR(fillAdapterChoice(o, c));
  c.memoryLimit = o.integer("memory_limit");
  c.hostMemoryLimit = o.integer("host_memory_limit");
  QLORA_RETURN_IF_ERROR(fillOffload(o, c));
  c.checkpointing = o.boolean("gradient_checkpointing");
  c.deviceProfile = own.text("device_profile");
  c.dequant.form = own.text("dequantize");
  c.vocabulary.form = own.text("shard_embeddings");
  c.offloadActivationsPolicy = own.text("offload_activations_policy");
  c.sequenceParallel = own.boolean("sequence_parallel");
  c.gradients.gradientBuckets = own.integer("gradient_buckets");
  c.remarks = own.boolean("remarks");
  if (c.checkpointing && c.loraActivations == "int8")
    return Status::invalid(
        "--activation-dtype-for-lora int8 compresses activations kept inside "
        "blocks, but --gradient-checkpointing keeps none; remove one");
  for (const std::string &name : own.names("disable_pass")) {
    if (!llvm::is_contained(optionalPasses(), name))
      return Status::invalid(
          "--disable-pass: '{}' is not an optional pass; choose from: {}", name,
          llvm::join(optionalPasses(), ", "));
    c.disabled.insert(name);
  }
  return Status::ok();
}

Status fillCodegen(const Options &own, CompilerSettings &settings) {
  CodegenOptions &codegen = settings.codegen;
  codegen.march = own.text("march");
  codegen.cacheFolder = own.text("cache_dir");
  codegen.useCache = own.boolean("cache");
  codegen.cudaCompiler = own.text("cuda_compiler");
  if (settings.emit == "cpp" && codegen.target != "cpu")
    return Status::invalid("--emit=cpp shows the kernels of --target cpu; "
                           "write --emit={}",
                           codegen.target);
  if (settings.compile.sequenceParallel && settings.compile.mesh.tp == 1)
    return Status::invalid(
        "--sequence-parallel needs --parallel tp=N; add that, or remove it");
  if (settings.compile.sequenceParallel &&
      settings.compile.loraActivations == "int8")
    return Status::invalid(
        "--activation-dtype-for-lora int8 conflicts with --sequence-parallel, "
        "which gathers the norms' outputs for adapters; remove one");
  return checkOffload(settings);
}

/// Applies --force-single-gpu: sets --parallel none, and refuses --ranks and
/// --device-map.
Status onlyOne(const Options &own, CompilerSettings &settings) {
  if (settings.ranks > 1)
    return Status::invalid(
        "--force-single-gpu conflicts with --ranks {}; remove one",
        settings.ranks);
  if (!own.text("device_map").empty())
    return Status::invalid(
        "--force-single-gpu conflicts with --device-map; remove one");
  QLORA_RETURN_IF_ERROR(checkForcedSingle(settings.options));
  return recordChoice("parallel", "none", settings);
}

} // namespace

StatusOr<CompilerSettings> parseSettings(std::span<const std::string> words) {
  CompilerSettings settings;
  const Tool tool = compilerTool();
  QLORA_ASSIGN_OR_RETURN(const CommandLine line, parseCommandLine(words, tool));
  Options own{std::span<const OptionRow>(kCompilerOptions)};
  QLORA_RETURN_IF_ERROR(own.applySettings(line.settings));
  settings.answer = line.answer;
  if (!settings.answer.empty())
    return settings;
  QLORA_RETURN_IF_ERROR(refuseOutputs(line));
  if (!own.text("config").empty())
    QLORA_RETURN_IF_ERROR(settings.options.applyYaml(own.text("config")));
  QLORA_RETURN_IF_ERROR(settings.options.applySettings(line.settings));
  QLORA_RETURN_IF_ERROR(settings.options.validate());
  settings.mlirFlags = line.foreign;
  for (const char *name : {"train_file", "validation_file"})
    QLORA_RETURN_IF_ERROR(checkDataFile(settings.options, name));
  settings.output = own.text("output");
  settings.emit = own.text("emit");
  settings.dumpPhases = own.text("dump_phases");
  settings.report = own.text("plan_report");
  settings.verbose = own.boolean("verbose");
  if (!settings.report.empty()) {
    QLORA_ASSIGN_OR_RETURN(settings.reportFormat,
                           reportFormatOf(settings.report));
  }
  settings.ranks = own.integer("ranks");
  if (own.boolean("force_single_gpu"))
    QLORA_RETURN_IF_ERROR(onlyOne(own, settings));
  settings.gpusPerNode = own.integer("gpus_per_node");
  settings.network = own.text("network");
  QLORA_RETURN_IF_ERROR(fillTarget(own, settings));
  QLORA_RETURN_IF_ERROR(fillCompile(own, settings));
  QLORA_RETURN_IF_ERROR(fillCodegen(own, settings));
  QLORA_ASSIGN_OR_RETURN(settings.input, onlyInput(line, tool));
  if (settings.options.boolean("auto_find_batch_size")) {
    QLORA_ASSIGN_OR_RETURN(
        settings.batches,
        batchCandidates(settings.options, settings.rowRanks()));
  }
  QLORA_ASSIGN_OR_RETURN(const std::string limit, resolveMemoryLimit(settings));
  if (!limit.empty())
    llvm::errs() << "qloracc: note: " << limit << "\n";
  if (!settings.codegen.cudaArchs.empty()) // fail before the passes
    QLORA_RETURN_IF_ERROR(
        findCudaCompiler(settings.codegen.cudaCompiler).status());
  return settings;
}

} // namespace qlora
