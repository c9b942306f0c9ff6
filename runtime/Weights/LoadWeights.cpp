// SPDX-License-Identifier: MIT

// Fills the arenas in the required order.

#include "runtime/Weights/LoadWeights.h"

#include <optional>
#include <utility>

#include "runtime/Base/HostMemory.h"
#include "runtime/Base/StopSignal.h"
#include "runtime/Weights/ArenaSink.h"
#include "runtime/Weights/ModelFiles.h"
#include "runtime/Weights/Parameters.h"

namespace qlora {

WeightRequest WeightRequest::of(const LoadedModule &module,
                                const Options &options, RankGroup &group,
                                const QuantizedBaseCacheRequest &cache,
                                const std::string &adapter) {
  WeightRequest request{
      module,  group,
      cache,   options.text("model_name_or_path"),
      adapter, static_cast<uint64_t>(options.integer("seed"))};
  request.tokens = options.lengths("trainable_token_indices");
  request.factors = {options.text("init_lora_weights"),
                     options.recordedMetadata("adapter_factors"), request.seed};
  return request;
}

/// Returns the sweep's shared base if this run needs the same bytes, else a new
/// base. `ofFactors`: initial LoRA factors are subtracted from the base. Such a
/// base is neither cached nor shared, because baseKey() ignores the factors.
static StatusOr<std::shared_ptr<QuantizedBase>>
openBase(const WeightRequest &request, const ModelFiles &model,
         bool ofFactors) {
  SharedBase *const shared = ofFactors ? nullptr : request.shared;
  std::string key;
  if (shared) {
    QLORA_ASSIGN_OR_RETURN(key, baseKey(request.module, model));
    if (shared->base && shared->key == key)
      return shared->base;
  }
  QuantizedBaseCacheRequest cache = request.cache;
  if (ofFactors)
    cache.place = QuantizedBaseCacheRequest::kNone;
  QLORA_ASSIGN_OR_RETURN(
      QuantizedBase made,
      QuantizedBase::open(request.module, model, request.group, cache));
  auto base = std::make_shared<QuantizedBase>(std::move(made));
  if (shared && !shared->base)
    *shared = {key, base};
  return base;
}

static Status allocate(const WeightRequest &request, const ModelFiles &model,
                       Device &device, LoadedWeights &weights) {
  if (!device.traits.hasHostArenas)
    return device.load(request.module, nullptr);
  const uint64_t before = readProcessMemory().residentBytes;
  QLORA_ASSIGN_OR_RETURN(
      weights.base, openBase(request, model, weights.factors.isOfBase()));
  // Exclude the base from processBytes, since the base counts as an arena. It
  // may be mapped and resident already.
  const uint64_t withBase = readProcessMemory().residentBytes;
  QLORA_RETURN_IF_ERROR(device.load(request.module, &weights.base->memory()));
  weights.processBytes =
      before + (readProcessMemory().residentBytes - withBase);
  return Status::ok();
}

/// Fills all arenas. If a rank fails here, its process exits, which closes its
/// connections, so the other ranks do not wait for it.
static Status fill(const LoadedModule &module, const ParameterSources &sources,
                   RankGroup &group, Device &device, QuantizedBase *base) {
  if (!base || !base->isFilled()) {
    const auto frozen = openArena(device, module, QLORA_ARENA_FROZEN);
    QLORA_RETURN_IF_ERROR(fillFrozen(module, sources,
                                     base ? base->share() : FillShare(),
                                     QLORA_ARENA_FROZEN, *frozen));
  }
  if (module.arena(QLORA_ARENA_HOST)) {
    // Each rank has its own host arena, so every rank fills it.
    const auto host = openArena(device, module, QLORA_ARENA_HOST);
    QLORA_RETURN_IF_ERROR(
        fillFrozen(module, sources, FillShare(), QLORA_ARENA_HOST, *host));
  }
  QLORA_RETURN_IF_ERROR(group.collectives().barrier());
  // A signal during loading kills the process. Later it ends training cleanly.
  installStopSignals();
  if (base)
    QLORA_RETURN_IF_ERROR(base->seal(*sources.model));
  if (!module.arena(QLORA_ARENA_TRAINABLE) &&
      !module.entry(QLORA_ENTRY_UPDATE))
    return Status::ok(); // generation without adapters
  if (!module.arena(QLORA_ARENA_TRAINABLE))
    return Status::invalid("'{}' has no trainable parameters; compile it with "
                           "--lora-target-modules or --modules-to-save",
                           module.path());
  const auto adapter = openArena(device, module, QLORA_ARENA_TRAINABLE);
  QLORA_RETURN_IF_ERROR(fillTrainable(module, sources, *adapter));
  QLORA_RETURN_IF_ERROR(fillStates(module, sources.seed, device));
  return fillRounded(module, device);
}

StatusOr<LoadedWeights> loadWeights(const WeightRequest &request,
                                    Device &device) {
  if (request.modelFolder.empty())
    return Status::invalid(
        "no model folder is named; add --model-name-or-path DIR");
  QLORA_RETURN_IF_ERROR(
      checkShardGroup(request.module, request.shards, request.slices));
  QLORA_ASSIGN_OR_RETURN(ModelFiles model,
                         ModelFiles::open(request.modelFolder));
  ParameterSources sources;
  sources.model = &model;
  sources.seed = request.seed;
  sources.progress = request.progress;
  sources.tokens = request.tokens;
  sources.shards = request.shards;
  sources.slices = request.slices;
  sources.piece = request.piece;
  std::optional<SafetensorsFile> adapter;
  if (!request.adapterFolder.empty()) {
    QLORA_ASSIGN_OR_RETURN(
        adapter, SafetensorsFile::open(request.adapterFolder +
                                       "/adapter_model.safetensors"));
    sources.adapter = &*adapter;
  }
  LoadedWeights weights;
  if (adapter)
    weights.renamed = findRenamed(request.module, *adapter);
  QLORA_ASSIGN_OR_RETURN(
      weights.factors, LoraInitFactors::compute(request.module, request.factors,
                                                model, request.group));
  sources.factors = &weights.factors;
  QLORA_RETURN_IF_ERROR(allocate(request, model, device, weights));
  QLORA_RETURN_IF_ERROR(fill(request.module, sources, request.group, device,
                             weights.base.get()));
  // Only rank 0 needs the factors later, to write the adapter.
  if (!weights.factors.isOfBase() || request.group.rank() != 0)
    weights.factors = {};
  weights.factors.turnB();
  return weights;
}

} // namespace qlora
