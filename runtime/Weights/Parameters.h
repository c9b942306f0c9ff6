// SPDX-License-Identifier: MIT

// Names to bytes: fills the FROZEN and TRAINABLE arenas from the parameter
// table. Tensors are read one after the other, window by window, so that
// resident memory grows by the arena (where it is on the host) and one window,
// not by the file. Into an arena elsewhere they go window by window too, a
// tensor that is quantised in its file whole; one that is to be quantised is
// quantised there (QuantizeWeight.h). Where ranks hold a base in pieces or
// slices: FrozenPieces.h.
//
// Frozen weights are copied, converted (bf16, f16, f32 to the arena's dtype,
// to nearest even), quantised as bitsandbytes does, or taken as
// bitsandbytes stored them; a "resident" one (quantised, but not NF4 in the
// arena) is quantised and decoded again. Trained ones come from a PEFT
// adapter where given, otherwise from their init kind.

#ifndef QLORA_RUNTIME_WEIGHTS_PARAMETERS_H
#define QLORA_RUNTIME_WEIGHTS_PARAMETERS_H

#include <cstdint>
#include <optional>
#include <span>
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

/// What PEFT puts before the names of a model's modules.
inline constexpr std::string_view kPeftPrefix = "base_model.model.";

/// True where the model is trained itself: full fine-tuning.
bool trainsModel(const LoadedModule &module);

/// The parameters of the TRAINABLE arena, in table order.
std::vector<const qlora_parameter *>
trainedParameters(const LoadedModule &module);

/// A trained parameter's name in files. In PEFT's adapters carry it already;
/// weights of the model get kPeftPrefix, and the bias of a module that has an
/// adapter is inside of "base_layer".
std::string trainedName(const LoadedModule &module,
                        const qlora_parameter &parameter);

/// A tensor of an adapter whose name is not trainedName(): a text model inside
/// of another one, named as if it were alone or as transformers did before 4.52.
struct RenamedTensor {
  std::string inFile, ours;

  /// What to say of it, given the adapter's folder and the model's.
  std::string warning(const std::string &adapter,
                      const std::string &model) const;
};

/// The first such tensor of an adapter; fillTrainable() reads all of them.
std::optional<RenamedTensor> findRenamed(const LoadedModule &module,
                                         const SafetensorsFile &adapter);

/// kNotFound if an adapter lacks a tensor of an ADAPTER parameter,
/// kInvalidArgument if it has one that is no trained parameter.
Status checkAdapterTensors(const LoadedModule &module,
                           const SafetensorsFile &adapter);

/// Where parameters come from. The pointers outlive the calls.
struct ParameterSources {
  const ModelFiles *model = nullptr; ///< null: no parameter may need a file
  /// adapter_model.safetensors to start from, or null. Every ADAPTER
  /// parameter must be in it under its name, or one that findRenamed() knows,
  /// and it may hold no other.
  const SafetensorsFile *adapter = nullptr;
  uint64_t seed = 0; ///< of random inits; the same on all ranks
  const StartingFactors *factors = nullptr; ///< null: none is needed
  std::vector<int64_t> tokens = {}; ///< whose rows QLORA_INIT_ROWS are
  /// Hears of bytes of this rank's share that fillFrozen() has filled.
  ProgressListener progress = {};
  /// The ranks that hold the base in pieces, of which this rank has the number
  /// of its rank among them; null: one rank that holds it whole.
  Collectives *shards = nullptr;
  /// The same for slices: group TP, or EP.
  Collectives *slices = nullptr;
  /// Of this rank among those that hold what is trained in pieces.
  uint32_t piece = 0;
};

/// kInvalidArgument where a module's base is in more or fewer pieces or slices
/// than there are ranks to hold them.
Status checkShardGroup(const LoadedModule &module, const Collectives *shards,
                       const Collectives *slices);

/// Fills this rank's share of the FROZEN or the HOST arena. Pieces and slices
/// are filled by all ranks that hold them together (FrozenPieces.h); their
/// share is everything. kDataLoss where a slice is none (Slices.h),
/// kInvalidArgument when a tensor has another shape or dtype than the module
/// was compiled for, kNotFound when it is missing; both name it.
Status fillFrozen(const LoadedModule &module, const ParameterSources &sources,
                  FillShare share, qlora_arena_kind kind, ArenaSink &arena);

/// Fills the TRAINABLE arena with what this rank has of each parameter. Random
/// values depend on the seed and the parameter's name only, so every rank gets the
/// same bits, or its piece of them.
Status fillTrainable(const LoadedModule &module,
                     const ParameterSources &sources, ArenaSink &arena);

/// Fills what of STATE does not start at zero; random values as above, and the
/// same on all ranks.
Status fillStates(const LoadedModule &module, uint64_t seed, Device &device);

/// ROUNDED := TRAINABLE, where the module has it: to be called whenever the
/// host has written the latter.
Status fillRounded(const LoadedModule &module, Device &device);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_PARAMETERS_H
