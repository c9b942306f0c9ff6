// SPDX-License-Identifier: MIT

// The frozen weights ("base") of a rank whose arenas are host memory. The base
// is mapped from the cache (QuantizedBaseFile.h) if an earlier run has stored
// it. Else the ranks of the machine fill it, and the first of them stores it.
// The cache only saves time: a problem with it causes a remark, and the run
// continues without the cache.
//
// Each pipeline stage has a base and a cache file of its own. Ranks that hold
// fsdp shards or slices of a base have different bytes, so each has its own
// memory and cache file. They fill their shards together (FrozenShards.h), so
// files are mapped only if every holder of the base finds its file.
//
//   QLORA_ASSIGN_OR_RETURN(
//       base, QuantizedBase::open(module, model, group, request));
//   device->load(module, &base->memory());
//   if (!base->isFilled()) fill this rank's base->share(); all ranks: barrier
//   QLORA_RETURN_IF_ERROR(base->seal(model));
//   train
//   base->finish();

#ifndef QLORA_RUNTIME_WEIGHTS_QUANTIZEDBASE_H
#define QLORA_RUNTIME_WEIGHTS_QUANTIZEDBASE_H

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/Device/FrozenArena.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Weights/ModelFiles.h"
#include "runtime/Weights/QuantizedBaseFile.h"

namespace qlora {

/// Returns whether at least one frozen weight is quantized on load. Caching a
/// base that is only copied would save nothing.
bool quantizesBase(const LoadedModule &module);

/// Returns the number of consecutive ranks that together hold a base in fsdp
/// shards or slices. 1: each rank has the complete base.
uint32_t holdersOf(const LoadedModule &module);

/// Returns the name of a quantized base in the cache: a hash of everything that
/// determines the FROZEN arena. So the cache never returns an outdated base.
///
///   output   the arena's size; for each weight in it the name, shape, dtype in
///            the file and in the arena, quantization, block, double
///            quantization and offset; our quantizer's output for a sample;
///            kBaseVersion, which we raise for changes that the sample misses;
///            for a sharded base the sizes and number of the shards, the
///            sharded dimensions, and the index of this shard
///   input    for each file of the model folder its name, identity
///            (FileDescriptor.h) and tensors; the file of each tensor
///
/// Hashing the weights would take the time that the cache saves, so a file is
/// identified by these attributes. A changed file has another identity, even if
/// its modification time was restored. A copy of a file also has another
/// identity, so it is quantized again. Links are followed: two snapshots of the
/// Hugging Face cache that share a blob share a base. `piece`: index of this
/// rank among the holders of the base.
StatusOr<std::string> baseKey(const LoadedModule &module,
                              const ModelFiles &model, uint32_t piece = 0);

/// Returns kUnavailable if a model file was written too recently for its
/// identity to be reliable (FileDescriptor.h). Call it before reading weights.
Status checkSettled(const ModelFiles &model);

/// Returns kUnavailable if a file has changed since it was opened. Call it
/// after the weights were read.
Status checkUnchanged(const ModelFiles &model);

/// Command-line options for the cache.
struct QuantizedBaseCacheRequest {
  /// A folder, kUserCache (`bases` in the user's cache folder) or kNone.
  std::string place = kUserCache;
  uint64_t limit = uint64_t{40} << 30; ///< maximum bytes of all bases
  static constexpr const char *kUserCache = "auto";
  static constexpr const char *kNone = "none";
};

/// The base of one rank. Must outlive the device, and must not be moved after
/// Device::load().
class QuantizedBase {
public:
  /// Finds or allocates the base. All ranks must call it.
  static StatusOr<QuantizedBase> open(const LoadedModule &module,
                                      const ModelFiles &model, RankGroup &group,
                                      const QuantizedBaseCacheRequest &request);

  FrozenArena &memory() { return arena; }
  const FillShare &share() const { return part; }
  /// Returns whether the base is mapped from a file, or seal() was called.
  bool isFilled() const { return arena.isFilled() || isSealed; }
  /// Path of the mapped file; empty if this run quantized the base. If the base
  /// is not sharded, only the first rank of a machine has a path.
  const std::string &mappedFile() const { return mapped; }

  /// Write-protects the base after all ranks have filled their share(). Starts
  /// to write a base to the cache if this run quantized it.
  Status seal(const ModelFiles &model);
  /// Completes the file after a successful run. A failure only adds a remark.
  void finish();

  /// Returns and clears the remarks, one line each.
  std::vector<std::string> takeRemarks();

private:
  FileDescriptor find(const LoadedModule &module, const ModelFiles &model,
                      const QuantizedBaseCacheRequest &request,
                      uint32_t piece = 0);
  Status openPiece(const LoadedModule &module, const ModelFiles &model,
                   RankGroup &group, const QuantizedBaseCacheRequest &request);
  StatusOr<bool> agreeOnPieces(RankGroup &group, uint32_t holders,
                               bool hasFile);
  Status shareRemarks(RankGroup &group);
  void remark(const Status &status);

  std::optional<QuantizedBaseCache> cache; ///< the folder of cached bases
  std::string key;                ///< empty: do not store the base
  uint64_t writers = 1; ///< ranks of this machine that store a base
  std::string mapped;
  std::vector<std::string> remarks;
  FillShare part;
  FrozenArena arena;
  bool isSealed = false;
  std::unique_ptr<QuantizedBaseWriter> writer; ///< reads the arena
};

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_QUANTIZEDBASE_H
