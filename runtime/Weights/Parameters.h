// SPDX-License-Identifier: MIT

// Fills the FROZEN and TRAINABLE arenas from the parameter table. Tensors are
// read one after the other, window by window, so that a host needs memory only
// for one window in addition to its arenas. Data for a device's arena is sent
// in windows too, except a tensor that is quantized in its file, which is sent
// whole. FrozenShards.h fills sharded bases.
//
// Frozen weights are copied, converted (bf16, f16, f32 to the arena's dtype, to
// nearest even), quantized as in bitsandbytes (QuantizeWeight.h), or copied in
// the quantized format of the file. A "resident" weight is quantized and then
// stored decoded. Trainable parameters come from a PEFT adapter if given, else
// from their init kind.

#ifndef QLORA_RUNTIME_WEIGHTS_PARAMETERS_H
#define QLORA_RUNTIME_WEIGHTS_PARAMETERS_H

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Progress.h"
#include "runtime/Base/Status.h"
#include "runtime/Device/Collectives.h"
#include "runtime/Device/FrozenArena.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Weights/ArenaSink.h"
#include "runtime/Weights/ModelFiles.h"
#include "runtime/Weights/Safetensors.h"
#include "runtime/Weights/WeightFactors.h"

namespace qlora {

/// The prefix that PEFT adds to the names of a model's modules.
inline constexpr std::string_view kPeftPrefix = "base_model.model.";

/// Returns true for full fine-tuning.
bool trainsModel(const LoadedModule &module);

/// The parameters of the TRAINABLE arena, in table order.
std::vector<const qlora_parameter *>
trainedParameters(const LoadedModule &module);

/// Returns a trainable parameter's name in files. Adapter parameters already
/// have PEFT's name. Weights of the model get kPeftPrefix, and "base_layer" if
/// they are the bias of a module with an adapter.
std::string trainedName(const LoadedModule &module,
                        const qlora_parameter &parameter);

/// A tensor of an adapter whose name is not trainedName(). The adapter is for
/// the text model of a multimodal model, but uses the names of a text-only
/// model, or the names of transformers before 4.52.
struct RenamedTensor {
  std::string inFile, ours;

  /// Returns the warning, given the folders of the adapter and of the model.
  std::string warning(const std::string &adapter,
                      const std::string &model) const;
};

/// Returns an adapter's first renamed tensor, for the warning.
std::optional<RenamedTensor> findRenamed(const LoadedModule &module,
                                         const SafetensorsFile &adapter);

/// Returns the adapter's tensor for a trainable parameter, whatever of these
/// names it has; null if there is none.
const SafetensorsTensor *findAdapterTensor(const LoadedModule &module,
                                           const SafetensorsFile &adapter,
                                           const qlora_parameter &parameter);

/// Returns kNotFound if the adapter lacks a tensor of an ADAPTER parameter, and
/// kInvalidArgument if it has a tensor that is not a trainable parameter.
Status checkAdapterTensors(const LoadedModule &module,
                           const SafetensorsFile &adapter);

/// The sources of parameters. The pointers must outlive the calls.
struct ParameterSources {
  const ModelFiles *model = nullptr; ///< null: no parameter may need a file
  /// adapter_model.safetensors to start from, or null. It must pass
  /// checkAdapterTensors().
  const SafetensorsFile *adapter = nullptr;
  uint64_t seed = 0; ///< seed of random inits; the same on all ranks
  const LoraInitFactors *factors = nullptr; ///< null: none are needed
  std::vector<int64_t> tokens = {}; ///< token ids of QLORA_INIT_ROWS
  /// Reports the bytes that fillFrozen() has filled on this rank.
  ProgressListener progress = {};
  /// The group of ranks that hold the base in fsdp shards; rank r has shard r.
  /// Null: the base has no fsdp shards.
  Collectives *shards = nullptr;
  /// The group with slices; rank r has slice r. Null: no slices.
  Collectives *slices = nullptr;
  /// Index of this rank's fsdp shard of trainable parameters.
  uint32_t piece = 0;
};

/// Returns kInvalidArgument if the groups' sizes differ from the numbers of
/// shards for which the module was compiled.
Status checkShardGroup(const LoadedModule &module, const Collectives *shards,
                       const Collectives *slices);

/// Fills this rank's `share` of the parameters in the FROZEN or HOST arena. If
/// the base is sharded, all ranks that hold shards call it together
/// (FrozenShards.h), each with a `share` of everything. Errors name the tensor:
/// kDataLoss if it cannot be cut into its slices (Slices.h),
/// kInvalidArgument if its shape or dtype differs from the compiled program,
/// kNotFound if it is missing.
Status fillFrozen(const LoadedModule &module, const ParameterSources &sources,
                  FillShare share, qlora_arena_kind kind, ArenaSink &arena);

/// Fills this rank's elements of each parameter in the TRAINABLE arena. Random
/// values depend only on the seed and the parameter's name, so every rank gets
/// the same bits, or its shard of them.
Status fillTrainable(const LoadedModule &module,
                     const ParameterSources &sources, ArenaSink &arena);

/// Fills STATE parameters that do not start at zero. Random values depend only
/// on seed and name, and are the same on all ranks.
Status fillStates(const LoadedModule &module, uint64_t seed, Device &device);

/// Rounds TRAINABLE to bf16 in ROUNDED, if the module has that arena.
/// Call it whenever the host has written TRAINABLE.
Status fillRounded(const LoadedModule &module, Device &device);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_PARAMETERS_H
