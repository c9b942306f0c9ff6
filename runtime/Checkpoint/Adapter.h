// SPDX-License-Identifier: MIT

// PEFT adapter folders: adapter_model.safetensors, adapter_config.json and the
// base model's tokenizer files. Full fine-tuning writes a model folder instead:
// model.safetensors, with the dtypes of the model's files and their tensors
// that are not trained, and config.json.
//
// The final adapter is written completely or not at all. Files are created in a
// staging folder inside the output folder and then renamed into place. If the
// disk fills up or the process is killed, an earlier adapter stays intact.
// Renamed files survive a crash of the machine. Disk space is reserved before
// step 1: everything except the trained values is written then, and the weights
// file is allocated at full size under a temporary name. A complete adapter
// that cannot be renamed stays in the staging folder, and the error says so.

#ifndef QLORA_RUNTIME_CHECKPOINT_ADAPTER_H
#define QLORA_RUNTIME_CHECKPOINT_ADAPTER_H

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/Base/AtomicFile.h"
#include "runtime/Base/Status.h"
#include "runtime/Checkpoint/ArenaTensors.h"
#include "runtime/Checkpoint/UntrainedTensors.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Options/Options.h"
#include "runtime/Weights/Parameters.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// Name of the staging folder inside an adapter folder.
inline constexpr const char *kStagingFolder = ".staging";
inline constexpr const char *kAdapterWeights = "adapter_model.safetensors";

/// Names of a tokenizer's files, with its chat template.
std::span<const char *const> tokenizerFiles();

/// Whether a folder has the weights file of an adapter.
bool holdsAdapter(const std::filesystem::path &folder);

/// Returns the name of the safetensors file for the trainable parameters.
const char *trainedFile(const LoadedModule &module);

/// How adapters that start from factors of the base weights
/// (runtime/Weights/WeightFactors.h) are stored. kTrained: A and B as trained,
/// relative to the residual base weights, as PEFT stores them. kPlain: a plain
/// LoRA on the original weights, [A, A_0] and [B, -B_0], of twice the rank.
enum class AdapterForm { kTrained, kPlain };

/// Returns adapter_config.json with PEFT's keys. Its target_modules depends on
/// the option:
///
///   list                 the same list
///   all-linear           module names without their parents, such as "q_proj"
///   regular expression   full names of the adapted modules, since not every
///                        reader supports expressions
nlohmann::ordered_json adapterConfig(const LoadedModule &module,
                                     const Options &options,
                                     AdapterForm form = AdapterForm::kTrained);

/// Returns an adapter's metadata, as save_pretrained writes it.
std::map<std::string, std::string> adapterMetadata();

/// Returns the trainable parameters in the order of the final file. The order
/// depends on the file's dtypes, so it may differ from a checkpoint's order.
ArenaTensors finalTensors(const LoadedModule &module, const Options &options);

/// Writes adapter_config.json or config.json, and the tokenizer files.
Status writeTrainedConfig(const LoadedModule &module, const Options &options,
                          const std::string &folder, AtomicFile::Flush flush,
                          AdapterForm form = AdapterForm::kTrained);

/// An adapter in `folder`/.staging whose disk space is reserved before its
/// values are known. The destructor removes it unless it has trained values.
class PreparedAdapter {
public:
  /// Creates `folder` if it is missing. `module` and `options` must outlive the
  /// result. Returns kResourceExhausted if disk space is missing.
  static StatusOr<PreparedAdapter> prepare(const LoadedModule &module,
                                           const Options &options,
                                           const std::string &folder);
  PreparedAdapter(PreparedAdapter &&other) noexcept;
  PreparedAdapter &operator=(PreparedAdapter &&) = delete;
  ~PreparedAdapter();

  /// Moves the adapter into the folder, and replaces an existing adapter and
  /// its tokenizer. `trained`: the bytes of finalTensors(). `factors`: the
  /// initial A and B, if they were computed from the base. Call it once.
  Status write(const NextBytes &trained, const LoraInitFactors &factors = {});

private:
  PreparedAdapter(const LoadedModule &module, const Options &options,
                  std::string folder, std::string staging)
      : module(&module), options(&options), folder(std::move(folder)),
        staging(std::move(staging)) {}
  Status fill();
  std::vector<SafetensorsItem> items(const LoraInitFactors &factors) const;
  Status commit(std::vector<std::filesystem::path> &files) const;
  Status
  removeOldTokenizer(const std::vector<std::filesystem::path> &written) const;

  const LoadedModule *module;
  const Options *options;
  std::string folder;
  std::string staging; ///< empty: moved from, or owned by another object
  UntrainedTensors untrained;
  std::optional<AtomicFile> weights; ///< reserved; not empty once filled
};

/// Returns the options that an adapter folder's adapter_config.json implies:
/// the base model, and the shape and modules of the adapter.
StatusOr<std::vector<OptionSetting>> adapterSettings(const std::string &folder);

/// Returns whether an adapter's init_lora_weights, in its adapter_config.json,
/// changes the weights of the base: PiSSA, OLoRA, LoftQ, CorDA and others that
/// this project does not know. False if the file cannot be read.
bool changesBase(const std::string &folder);

/// Checks whether training can continue from an adapter folder under these
/// options. It must be a PEFT LoRA with the same r, alpha, patterns, scaling
/// and modules, and must use no unsupported feature. Tensor shapes are checked
/// when they are read (Parameters.h). Errors name the file, the key, both
/// values, and the option that accepts the adapter's value.
Status checkAdapterConfig(const std::string &folder, const LoadedModule &module,
                          const Options &options);
/// Checks the config without the tensors, before a program exists.
Status checkAdapterOptions(const std::string &folder, const Options &options);

} // namespace qlora

#endif // QLORA_RUNTIME_CHECKPOINT_ADAPTER_H
