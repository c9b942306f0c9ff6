// SPDX-License-Identifier: MIT

// From words to settings; contradictions end here.

#include "tools/qloracc/Settings.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/CommandLine.h"

#include "runtime/Core/CommandLine.h"
#include "tools/qloracc/MemoryLimit.h"
#include "tools/qloracc/TokenBuckets.h"

namespace qlora {

namespace {

using enum OptionType;
constexpr const char *kGroup = "Compiler";

const OptionRow kOwn[] = {
    {"config", kPath, "", OptionScope::kProgram, kGroup,
     "YAML file with any of the options below"},
    {"output", kPath, "", OptionScope::kProgram, kGroup, "the module to write",
     "o"},
    {"target", kChoice, "cpu", OptionScope::kProgram, kGroup,
     "what runs the program", "", "cpu cuda"},
    {"emit", kChoice, "so", OptionScope::kProgram, kGroup,
     "print the IR after a phase, or the generated kernels (cpp, cuda)", "",
     "adapt step optimize program cpp cuda so"},
    {"dump_phases", kPath, "", OptionScope::kProgram, kGroup,
     "folder for the IR after every phase and the kernels"},
    {"report", kPath, "", OptionScope::kProgram, kGroup,
     "file for the memory plan and every decision: .json, .html (a picture), "
     ".pickle (for pytorch.org/memory_viz)"},
    {"device_profile", kString, "", OptionScope::kProgram, kGroup,
     "a known card (h100, h200, ...), or a file: device.json of qlora-run "
     "--calibrate"},
    {"dequant", kChoice, "auto", OptionScope::kProgram, kGroup,
     "where stored weights become numbers", "",
     "auto panel scratch resident"},
    {"disable_pass", kNames, "[]", OptionScope::kProgram, kGroup,
     "optimisations to leave out, by the name of their pass"},
    {"max_buckets", kInt, "4", OptionScope::kProgram, kGroup,
     "all-reduces of a step at most", "", "", 1, 4},
    {"march", kString, "native", OptionScope::kProgram, kGroup,
     "instructions of the kernels: native, x86-64-v2, x86-64-v3, x86-64-v4"},
    {"cuda_arch", kNames, "[80, 89, 90, 100, 120, compute_80]",
     OptionScope::kProgram, kGroup,
     "kinds of cards: 90 or sm_90; compute_80 is PTX for all from there on"},
    {"cuda_compiler", kString, "", OptionScope::kProgram, kGroup,
     "the CUDA compiler: a path, or a name on PATH; default: nvcc"},
    {"cache_dir", kPath, "", OptionScope::kProgram, kGroup,
     "folder of compiled kernels; default: the user's cache"},
    {"cache", kBool, "true", OptionScope::kProgram, kGroup,
     "keep compiled kernels"},
    {"remarks", kBool, "false", OptionScope::kProgram, kGroup,
     "say why kernels, decoding and recomputation were chosen"},
    {"verbose", kBool, "false", OptionScope::kProgram, kGroup,
     "print the memory plan", "v"},
    {"help", kBool, "false", OptionScope::kProgram, kGroup, "this text", "h"},
    {"version", kBool, "false", OptionScope::kProgram, kGroup,
     "print the version"},
};

std::string initName(const std::string &choice, bool isB) {
  if (choice == "false")
    return "kaiming";
  return isB ? "zero" : choice == "gaussian" ? "gaussian" : "kaiming";
}

Status fillCompile(const Options &own, CompilerSettings &settings) {
  const Options &o = settings.options;
  CompileOptions &c = settings.compile;
  c.target = own.text("target");
  c.batch = o.integer("per_device_train_batch_size");
  c.lengths = o.lengths("max_length");
  QLORA_ASSIGN_OR_RETURN(const bool isPaddingFree, wantsTokenBuckets(o));
  if (isPaddingFree)
    c.buckets = tokenBuckets(
        c.batch * *std::max_element(c.lengths.begin(), c.lengths.end()));
  c.computeType = o.text("compute_dtype");
  c.loraActivations = o.text("activation_dtype_for_lora");
  c.loadIn4bit = o.boolean("load_in_4bit");
  c.block = o.integer("bnb_4bit_blocksize");
  c.doubleQuant = o.boolean("bnb_4bit_use_double_quant");
  c.rank = o.integer("lora_r");
  c.alpha = o.number("lora_alpha");
  c.dropout = o.number("lora_dropout");
  c.rslora = o.boolean("use_rslora");
  c.targets = o.value("lora_target_modules").dump();
  c.rankPattern = o.value("lora_rank_pattern").dump();
  c.alphaPattern = o.value("lora_alpha_pattern").dump();
  c.modulesToSave = o.value("modules_to_save").dump();
  c.initA = initName(o.text("init_lora_weights"), false);
  c.initB = initName(o.text("init_lora_weights"), true);
  c.memoryLimit = o.integer("memory_limit");
  c.offloadEmbedding = o.text("offload_embedding");
  c.checkpointing = o.boolean("gradient_checkpointing");
  c.deviceProfile = own.text("device_profile");
  c.dequantForm = own.text("dequant");
  c.maxBuckets = own.integer("max_buckets");
  c.remarks = own.boolean("remarks");
  if (c.checkpointing && c.loraActivations == "int8")
    return Status::invalid(
        "--activation-dtype-for-lora int8 is about what is kept inside blocks, "
        "and --gradient-checkpointing keeps nothing there; leave one of them "
        "out");
  for (const std::string &name : own.names("disable_pass")) {
    if (!llvm::is_contained(optionalPasses(), name))
      return Status::invalid("--disable-pass: '{}' is not an optional pass; "
                             "there are: {}",
                             name, llvm::join(optionalPasses(), ", "));
    c.disabled.insert(name);
  }
  return Status::ok();
}

Status fillCodegen(const Options &own, CompilerSettings &settings) {
  CodegenOptions &codegen = settings.codegen;
  codegen.target = own.text("target");
  codegen.march = own.text("march");
  codegen.cacheFolder = own.text("cache_dir");
  codegen.useCache = own.boolean("cache");
  codegen.cudaArchs = own.names("cuda_arch");
  codegen.cudaCompiler = own.text("cuda_compiler");
  // The kernels of a target are shown in its own C++.
  if (settings.emit == "cuda")
    settings.compile.target = codegen.target = "cuda";
  if (settings.emit == "cpp" && codegen.target != "cpu")
    return Status::invalid("--emit=cpp shows the kernels of --target cpu; "
                           "write --emit={}",
                           codegen.target);
  if (settings.compile.offloadEmbedding == "true" && codegen.target != "cuda")
    return Status::invalid("--offload-embedding true needs --target cuda: a "
                           "CPU has one memory");
  return Status::ok();
}

/// `auto` becomes the number that is recorded.
Status resolveMemoryLimit(CompilerSettings &settings) {
  if (settings.compile.memoryLimit != kAutoSize)
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(MemoryLimit limit,
                         machineMemoryLimit(settings.compile.target));
  llvm::errs() << limit.reason << "\n";
  settings.compile.memoryLimit = limit.bytes;
  const OptionSetting setting = {findOption(optionTable(), "memory_limit"),
                                 std::to_string(limit.bytes),
                                 "--memory-limit"};
  return settings.options.applySettings({&setting, 1});
}

/// `--name=value` -> `name`.
std::string flagName(const std::string &word) {
  std::string name = word.substr(word.find_first_not_of('-'));
  return name.substr(0, name.find('='));
}

Status unknownFlag(const std::string &word) {
  const std::span<const OptionRow> tables[] = {kOwn, optionTable()};
  std::string near = nearestName(canonicalSpelling(flagName(word)),
                                 allOptionNames(tables));
  if (near.empty())
    return Status::invalid("unknown option '{}'; --help lists them", word);
  return Status::invalid("unknown option '{}'; did you mean '--{}'?", word,
                         near);
}

/// The input file, and the flags of MLIR, which are registered by now.
Status splitRest(const std::vector<std::string> &rest,
                 CompilerSettings &settings) {
  for (const std::string &word : rest) {
    if (word.size() > 1 && word.front() == '-' &&
        word.find_first_not_of('-') != std::string::npos) {
      if (!llvm::cl::getRegisteredOptions().count(flagName(word)))
        return unknownFlag(word);
      settings.mlirFlags.push_back(word);
      continue;
    }
    if (!settings.input.empty())
      return Status::invalid("more than one input: '{}' and '{}'",
                             settings.input, word);
    settings.input = word;
  }
  return Status::ok();
}

} // namespace

StatusOr<CompilerSettings>
parseSettings(std::span<const std::string> words) {
  CompilerSettings settings;
  const std::span<const OptionRow> tables[] = {kOwn, optionTable()};
  QLORA_ASSIGN_OR_RETURN(
      CommandLine line,
      parseCommandLine(words, tables, UnknownFlags::kKeep));
  Options own{std::span<const OptionRow>(kOwn)};
  QLORA_RETURN_IF_ERROR(own.applySettings(line.settings));
  if (!own.text("config").empty())
    QLORA_RETURN_IF_ERROR(settings.options.applyYaml(own.text("config")));
  QLORA_RETURN_IF_ERROR(settings.options.applySettings(line.settings));
  QLORA_RETURN_IF_ERROR(settings.options.validate());
  QLORA_RETURN_IF_ERROR(splitRest(line.rest, settings));
  settings.output = own.text("output");
  settings.emit = own.text("emit");
  settings.dumpPhases = own.text("dump_phases");
  settings.report = own.text("report");
  settings.verbose = own.boolean("verbose");
  if (!settings.report.empty()) {
    QLORA_ASSIGN_OR_RETURN(settings.reportFormat,
                           reportFormatOf(settings.report));
  }
  settings.help = own.boolean("help");
  settings.version = own.boolean("version");
  QLORA_RETURN_IF_ERROR(fillCompile(own, settings));
  QLORA_RETURN_IF_ERROR(fillCodegen(own, settings));
  if (settings.help || settings.version)
    return settings;
  if (settings.input.empty())
    return Status::invalid("no input; usage: qloracc model.mlir -o train.so");
  if (settings.emit == "so" && settings.output.empty())
    return Status::invalid("no output; give -o train.so, or --emit a phase");
  QLORA_RETURN_IF_ERROR(resolveMemoryLimit(settings));
  return settings;
}

std::string settingsHelp() {
  const std::span<const OptionRow> tables[] = {kOwn, optionTable()};
  return "usage: qloracc model.mlir -o train.so [options]\n\n" +
         optionHelp(tables) +
         "\nMLIR's own flags (--mlir-print-ir-after-all, --mlir-timing, ...) "
         "work too.\n";
}

} // namespace qlora
