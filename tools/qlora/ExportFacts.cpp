// SPDX-License-Identifier: MIT

// Derives the facts from options, config.json and names of tensors.

#include "tools/qlora/ExportFacts.h"

#include <algorithm>
#include <optional>
#include <regex>

#include "frontend/GgufFamilies.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Options/AdapterOptions.h"
#include "runtime/Options/AdapterTargets.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

static ExportFacts factsOfModel(const ModelConfig &config) {
  ExportFacts facts;
  facts.architecture = config.family->architecture;
  facts.isTied = config.tied;
  facts.linearsAreInOut = config.family->layout == LinearLayout::kInOut;
  const auto gguf = findGgufFamily(config, facts.ggufWarnings);
  if (!gguf.isOk())
    facts.ggufRefusal = gguf.status().message();
  return facts;
}

namespace {
/// PEFT's choice of modules, for modules outside of the layers.
class ModuleChoice {
public:
  static StatusOr<ModuleChoice> of(const Options &options);
  bool adapts(const std::string &path) const;

private:
  Targets targets;
  std::optional<Targets> excluded;
  std::vector<std::string> saved;
};
} // namespace

StatusOr<ModuleChoice> ModuleChoice::of(const Options &options) {
  ModuleChoice choice;
  std::string error;
  if (!choice.targets.parse(dumpJson(options.value("lora_target_modules")),
                            error))
    return Status::invalid("{}: {}", options.spelling("lora_target_modules"),
                           error);
  const std::string exclude = dumpJson(options.value("exclude_modules"));
  if (exclude != "[]" && !choice.excluded.emplace().parse(exclude, error))
    return Status::invalid("{}: {}", options.spelling("exclude_modules"),
                           error);
  choice.saved = options.names("modules_to_save");
  return choice;
}

bool ModuleChoice::adapts(const std::string &path) const {
  // all-linear means neither the embedding nor the LM head.
  return !targets.isAllLinear() && targets.matches(path) &&
         !isSavedModule(path, saved) &&
         !(excluded && excluded->matches(path));
}

StatusOr<ExportFacts> factsOfTraining(const Options &options,
                                      const ModelConfig &config) {
  ExportFacts facts = factsOfModel(config);
  facts.isAdapter = options.text("finetuning_type") == "lora";
  if (!facts.isAdapter)
    return facts;
  const auto ranks = options.numberMap("lora_rank_pattern");
  facts.rank = options.integer("lora_r");
  for (const auto &[name, rank] : ranks)
    facts.rank = std::max(facts.rank, static_cast<int64_t>(rank));
  // The final adapter is a plain one of twice the rank.
  if (leavesResidual(options.text("init_lora_weights")))
    facts.rank *= 2;
  facts.hasAlphaPattern = !options.numberMap("lora_alpha_pattern").empty();
  facts.hasPatterns = facts.hasAlphaPattern || !ranks.empty();
  facts.usesRslora = options.boolean("use_rslora");
  facts.usesDora = options.boolean("use_dora");
  facts.trainsBiases =
      options.boolean("lora_bias") || options.text("bias") != "none";
  facts.trainsTokens = !options.lengths("trainable_token_indices").empty();
  facts.adaptsStackedExperts = !options.names("target_parameters").empty();
  facts.savedModules = options.names("modules_to_save");
  QLORA_ASSIGN_OR_RETURN(const ModuleChoice choice, ModuleChoice::of(options));
  const ModuleNames &modules = config.family->modules;
  facts.adaptsEmbedding = choice.adapts(config.modulePath(modules.embedding));
  facts.adaptsHead = choice.adapts(config.modulePath(modules.head));
  return facts;
}

/// Returns the first name that PEFT does not write; empty if there is none.
static std::string unknownTensor(const SafetensorsFile &file) {
  static const std::regex kNames(
      R"(base_model\.model\..+\.(lora_[AB]\.(weight|bias)|lora_embedding_[AB])"
      R"(|lora_magnitude_vector|token_adapter\.trainable_tokens_(delta|original)))"
      R"(|base_model\.model\.(?!.*\.lora_).+\.(weight|bias))");
  for (const SafetensorsTensor &tensor : file.tensors())
    if (!std::regex_match(tensor.name, kNames))
      return tensor.name;
  return {};
}

StatusOr<ExportFacts> factsOfAdapter(const std::string &folder,
                                     const ModelConfig &config) {
  QLORA_ASSIGN_OR_RETURN(const auto settings, adapterSettings(folder));
  Options options;
  QLORA_RETURN_IF_ERROR(options.applySettings(settings));
  // The folder has the final rank.
  QLORA_RETURN_IF_ERROR(
      options.applySetting("init_lora_weights", "true", "init_lora_weights"));
  QLORA_ASSIGN_OR_RETURN(ExportFacts facts, factsOfTraining(options, config));
  facts.needsChangedBase = changesBase(folder);
  QLORA_ASSIGN_OR_RETURN(
      const SafetensorsFile file,
      SafetensorsFile::open(folder + "/" + kAdapterWeights));
  facts.unknownTensor = unknownTensor(file);
  return facts;
}

} // namespace qlora
