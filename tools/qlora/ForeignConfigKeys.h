// SPDX-License-Identifier: MIT

// Translates configuration files of axolotl, LLaMA-Factory and TRL. Keeps keys
// that are options of qlora or their aliases. Translates other keys to options,
// ignores them with a note, or refuses them if they would change the result in
// an unsupported way. A key with value null counts as absent. An absent key
// gets the tool's default if that changes the training (ForeignTools.h).

#ifndef QLORA_TOOLS_QLORA_FOREIGNCONFIGKEYS_H
#define QLORA_TOOLS_QLORA_FOREIGNCONFIGKEYS_H

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/OptionYaml.h"
#include "runtime/Options/Options.h"
#include "tools/qlora/ForeignParallel.h"

namespace qlora {

/// A configuration file, and the values that its translation depends on.
struct ForeignRequest {
  std::span<const YamlEntry> entries;
  std::string path;                     ///< for errors, which name the line
  std::span<const OptionSetting> flags; ///< override the file
  RankCounts ranks;
};

/// A special token of a file: the model's, or another end token.
struct SpecialToken {
  std::string name;             ///< "eos_token"
  nlohmann::ordered_json value; ///< a text, or a list of texts
  int line = 0;
  bool isUnused = false; ///< only texts without a template are trained
};

/// LLaMA-Factory's finetuning_type: freeze.
struct FreezeTuning {
  int64_t layers = 2;  ///< the last ones; negative: the first ones
  bool isEven = false; ///< use_llama_pro: `layers` of them at equal distances
  std::vector<std::string> modules = {"all"}; ///< of these layers
  std::vector<std::string> others;            ///< modules outside of the layers
};

struct ForeignFile {
  std::vector<YamlEntry> entries; ///< with our option names
  /// One line per ignored key that has an effect in the file's tool, and one
  /// line that names the tool.
  std::vector<std::string> notes;
  /// The file leaves lora_target_modules to PEFT, which chooses by model type.
  bool hasPeftTargets = false;
  bool isOfTool = false;   ///< the file is one of another tool
  bool hasOffload = false; ///< a section or key of the tool sets --offload
  /// Keys of config.json that the file replaces: importer's flags.
  nlohmann::ordered_json modelKeys = nlohmann::ordered_json::object();
  /// Compared with the model's by checkSpecialTokens().
  std::vector<SpecialToken> specialTokens;
  std::optional<FreezeTuning> freeze;
  Problems problems; ///< keys and values that are refused
};

ForeignFile translateForeignConfigKeys(const ForeignRequest &request);

/// Returns whether a file of another tool may have the key.
bool isForeignKey(const std::string &key);

/// Adds what is wrong with the file's model, if the model is here: its
/// architecture, and special tokens that it does not have. `revision`: of the
/// model on the hub; empty: main.
void addModelProblems(const ForeignRequest &request,
                      const std::string &revision, ForeignFile &file);

/// Replaces all-linear of a tool's file by the linears outside of the experts.
Status leaveOutExperts(const ForeignFile &file, Options &options,
                       std::vector<std::string> &notes);

/// Sets unfrozen_parameters as LLaMA-Factory's freeze tuning chooses them,
/// which depends on the model's number of layers.
Status chooseLayers(const ForeignFile &file, Options &options);

/// Refuses special tokens that the model in `folder` does not have.
Status checkSpecialTokens(std::span<const SpecialToken> tokens,
                          const std::string &path, const std::string &folder);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_FOREIGNCONFIGKEYS_H
