// SPDX-License-Identifier: MIT

// PEFT adapter folders: adapter_model.safetensors and adapter_config.json,
// with the tokenizer's files of the base model beside them. Where the model is
// trained itself, without adapters, a model folder in the same way:
// model.safetensors of the types that its files have, and config.json.
//
// The adapter of a run's end is written whole or not at all: by way of a staging
// folder in its own, from which each file is renamed into place. When the disk
// is full, or the process is killed before, an earlier adapter is unharmed; what
// has been renamed outlasts a crash of the machine. It has its space before
// step 1: all but the trained values is written then, and the file for these is
// there in its full size, under another name until it has them. One that is
// whole but cannot be renamed into place stays in the staging folder, and the
// error says so.

#ifndef QLORA_RUNTIME_SESSION_ADAPTER_H
#define QLORA_RUNTIME_SESSION_ADAPTER_H

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/Base/AtomicFile.h"
#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Session/ArenaTensors.h"
#include "runtime/Weights/Parameters.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// In the folder of an adapter.
inline constexpr const char *kStagingFolder = ".staging";
inline constexpr const char *kAdapterWeights = "adapter_model.safetensors";

/// Whether a folder has an adapter's weights.
bool holdsAdapter(const std::filesystem::path &folder);

/// The name of the file with what is trained.
const char *trainedFile(const LoadedModule &module);

/// What an adapter folder holds of adapters that start at factors of the model
/// (runtime/Weights/WeightFactors.h): A and B as they are trained, beside what
/// is left of the model, as PEFT has them; or a plain LoRA of the model itself,
/// with A, A_0 and B, -B_0 of twice the rank.
enum class AdapterForm { kTrained, kPlain };

/// adapter_config.json for what the module trains, with PEFT's keys.
/// target_modules is the list that was given; for all-linear the last names
/// of the modules; for a regular expression their full names, since not every
/// reader of adapters knows regular expressions.
nlohmann::ordered_json adapterConfig(const LoadedModule &module,
                                     const Options &options,
                                     AdapterForm form = AdapterForm::kTrained);

/// Metadata of an adapter's weights, as save_pretrained writes it.
std::map<std::string, std::string> adapterMetadata();

/// The trainable parameters in the order of the file at a run's end, which may
/// have other types than that of a checkpoint.
ArenaTensors finalTensors(const LoadedModule &module, const Options &options);

/// adapter_config.json or config.json, and the tokenizer.
Status writeTrainedConfig(const LoadedModule &module, const Options &options,
                          const std::string &folder, AtomicFile::Flush flush,
                          AdapterForm form = AdapterForm::kTrained);

/// An adapter that waits for its values in `folder`/.staging, with all the
/// space on the disk that it will need. Removed when it gets no values.
class PreparedAdapter {
public:
  /// Creates `folder` when it is missing; the first two outlive this. Without
  /// space the error is kResourceExhausted, and ends with "make room there".
  static StatusOr<PreparedAdapter> prepare(const LoadedModule &module,
                                           const Options &options,
                                           const std::string &folder);
  PreparedAdapter(PreparedAdapter &&other) noexcept;
  PreparedAdapter &operator=(PreparedAdapter &&) = delete;
  ~PreparedAdapter();

  /// Puts the adapter into the folder, replacing one that is there, its tokenizer
  /// included. `trained`: the bytes of finalTensors(). `factors`: those that it
  /// started at, if they are the base's. Called once.
  Status write(const NextBytes &trained, const StartingFactors &factors = {});

private:
  PreparedAdapter(const LoadedModule &module, const Options &options,
                  std::string folder, std::string staging)
      : module(&module), options(&options), folder(std::move(folder)),
        staging(std::move(staging)) {}
  Status fill();
  Status commit(std::vector<std::filesystem::path> &files) const;
  Status
  removeOldTokenizer(const std::vector<std::filesystem::path> &written) const;

  const LoadedModule *module;
  const Options *options;
  std::string folder;
  std::string staging; ///< empty: moved from, or not ours to remove
  std::optional<AtomicFile> weights; ///< reserved; not empty once filled
};

/// Whether an adapter folder can continue under these options: PEFT's LoRA
/// with the same r, alpha, patterns and scaling, tensors of the same modules,
/// and nothing switched on that we do not do. Shapes of its tensors are checked
/// when they are read (Parameters.h). Errors name the file, the key, both
/// values, and the option that takes the adapter's.
Status checkAdapterConfig(const std::string &folder, const LoadedModule &module,
                          const Options &options);
/// The same without the tensors, before there is a program.
Status checkAdapterOptions(const std::string &folder, const Options &options);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_ADAPTER_H
