// SPDX-License-Identifier: MIT

// A loaded and checked train.so. A pipeline has a program for each stage; the
// accessors show the first stage until chooseRank or ofStage selects one.
//
// open() checks the file's seal before loading it (runtime/README.md, "Whom we
// trust"). It checks version and size of the tables, that library kernels exist
// in Kernels.def with the same operands and constants, and that this CPU has
// the instructions of the generated kernels. A device checks whether its GPU
// can run the images when it loads them. The compiler guarantees valid tables,
// and the null device verifies that (ModuleCheck.h).

#ifndef QLORA_RUNTIME_MODULE_MODULELOADER_H
#define QLORA_RUNTIME_MODULE_MODULELOADER_H

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ABI/module.h"
#include "runtime/Base/Status.h"
#include "runtime/Options/GroupSizes.h"

namespace qlora {

/// Movable; the module must outlive spans and references to it. Immutable, so
/// any thread may read it.
class LoadedModule {
public:
  /// Returns kNotFound if there is no file, kDataLoss if it is damaged,
  /// kUnavailable if its version is wrong or the CPU lacks an instruction.
  static StatusOr<LoadedModule> open(const std::string &path);
  /// Wraps `table`, which must outlive the result, after all checks except
  /// those of a file. For tests.
  static StatusOr<LoadedModule> fromTable(const qlora_module &table,
                                          std::string name);

  /// Wraps the tables of one stage, which this process has made and which must
  /// outlive the result. Nothing is checked.
  static LoadedModule ofTables(const qlora_module &stage) {
    return LoadedModule(&stage, "", nullptr);
  }

  const qlora_module &table() const { return *module; }
  int stage() const { return static_cast<int>(module->stage); }
  /// Ranks per group, in a single mesh; after chooseRank, in the run.
  const GroupSizes &groups() const { return sizes; }
  int groupSize() const { return static_cast<int>(sizes[QLORA_GROUP_FSDP]); }
  int tensorRanks() const { return static_cast<int>(sizes[QLORA_GROUP_TP]); }
  int contextRanks() const { return static_cast<int>(sizes[QLORA_GROUP_CP]); }
  /// Number of shards of a sliced weight (qlora_parameter::slices).
  uint32_t sliceRanks() const {
    const MeshAxis *axis = axisWith(module->mesh, kSlices);
    return axis ? module->mesh.*axis->ranks : 1;
  }
  int stages() const { return static_cast<int>(sizes[QLORA_GROUP_PP]); }
  /// Number of ranks with the same rows of data.
  int rowRanks() const { return static_cast<int>(sizes.rowRanks()); }
  /// Number of ranks of one mesh; a run has a multiple of it.
  int meshSize() const { return static_cast<int>(sizes.meshSize()); }
  /// Whether entries with a micro-batch have collectives, so that all ranks of
  /// a mesh must run the same entries.
  bool meetsInEntries() const { return meetsInMicroBatches(module->mesh); }
  /// Whether any stage has a collective over a group (enum qlora_group).
  bool uses(unsigned group) const;
  /// Tokens of an entry's micro-batch on each rank.
  int64_t tokensOf(const qlora_entry &entry) const {
    return entry.batch * entry.length / contextRanks();
  }
  /// Selects the stage of this rank in a run of `ranks` ranks (checkMesh), and
  /// this rank's ranges of sharded operands. Before this call, the ranges are
  /// those of rank 0.
  void chooseRank(int rank, int ranks);
  /// Returns a view of another stage, with the ranges of that stage's rank 0.
  LoadedModule ofStage(int number) const;
  /// The path, or fromTable's name.
  const std::string &path() const { return name; }

  std::span<const qlora_arena> arenas() const;
  std::span<const qlora_parameter> parameters() const;
  std::span<const qlora_kernel> kernels() const;
  std::span<const qlora_launch> launches() const;
  std::span<const qlora_entry> entries() const;
  std::span<const qlora_command> commands() const;
  std::span<const qlora_operand> operands() const;
  std::span<const qlora_image> images() const;

  std::span<const qlora_command> commands(const qlora_entry &entry) const;
  std::span<const qlora_binding> bindings(const qlora_entry &entry) const;
  std::span<const qlora_operand> operands(const qlora_command &command) const;
  std::span<const int64_t> constants(const qlora_launch &launch) const;

  /// Returns the index of the arena of a kind, if the module has that arena.
  std::optional<uint32_t> arena(qlora_arena_kind kind) const;
  /// Returns the bytes of the arena of a kind; 0 if the module lacks it.
  uint64_t arenaBytes(qlora_arena_kind kind) const;
  /// Returns the parameter of a name in this stage, or nullptr.
  const qlora_parameter *parameter(std::string_view name) const;
  /// Returns the parameter of a name in any stage, or nullptr. The parameter's
  /// offset is valid in that stage only.
  const qlora_parameter *parameterOfModel(std::string_view name) const;
  /// Returns the entry of a kind and shape (UPDATE has 0, 0), or nullptr.
  const qlora_entry *entry(qlora_entry_kind kind, int64_t batch = 0,
                           int64_t length = 0) const;
  /// Returns nullptr if the entry has no such input or result.
  const qlora_binding *binding(const qlora_entry &entry,
                               qlora_binding_kind kind) const;

private:
  LoadedModule(const qlora_module *module, std::string name,
               std::shared_ptr<void> library)
      : first(module), module(module), sizes(module->mesh),
        name(std::move(name)), library(std::move(library)) {}
  void chooseStage(int64_t number);

  const qlora_module *first;  ///< the module of stage 0
  const qlora_module *module; ///< the selected stage
  GroupSizes sizes;
  std::string name;
  std::shared_ptr<void> library; ///< closes the dlopen handle
  std::vector<qlora_operand> own; ///< this rank's operands; empty: the table's
};

/// Whether a kernel is code of the module, not a row of Kernels.def.
inline bool isGenerated(const qlora_kernel &kernel) {
  return kernel.function || kernel.symbol;
}

/// Blocks of a launch of a generated CUDA kernel.
inline int64_t blocksOf(const qlora_kernel &kernel,
                        const qlora_launch &launch) {
  const int64_t rows = kernel.rows_per_block;
  return launch.rows / rows + (launch.rows % rows != 0);
}

/// Return the names of commands and of ABI enum values, such as "launch",
/// "fill" or "all_reduce", for messages and `--print`.
std::string_view commandName(const qlora_command &command);
std::string_view collectiveName(unsigned kind);
std::string_view groupName(unsigned group);
std::string_view queueName(unsigned queue);
std::string_view arenaKindName(unsigned kind);
/// The group whose ranks have slices of weights (qlora_parameter::slices); DP
/// if there are none.
inline qlora_group sliceGroup(const LoadedModule &module) {
  const MeshAxis *axis = axisWith(module.table().mesh, kSlices);
  return axis ? axis->group : QLORA_GROUP_DP;
}
/// Returns the title of an arena kind for display, such as "optimizer states".
std::string_view arenaTitle(unsigned kind);
std::string_view entryKindName(unsigned kind);
/// Formats a CUDA version: "13.0" for 13000.
inline std::string cudaVersionText(unsigned version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}
/// Group that shards embedding tables and head rows. step.shard is this rank's
/// index in the group.
inline qlora_group shardGroup(const LoadedModule &module) {
  const MeshAxis *axis = axisWith(module.table().mesh, kTables);
  return axis ? axis->group : QLORA_GROUP_FSDP;
}
/// Whether this is an arena of frozen weights, which no command writes.
inline bool isFrozenArena(unsigned kind) {
  return kind == QLORA_ARENA_FROZEN || kind == QLORA_ARENA_HOST;
}
/// Whether the arena is in host memory although the device has its own memory.
inline bool isOnHost(const qlora_arena &arena) {
  return arena.kind == QLORA_ARENA_HOST || arena.kind == QLORA_ARENA_SAVED ||
         arena.on_host != 0;
}
/// Returns the complete tensor's shape, even if the arena has a slice.
inline std::vector<int64_t> wholeShapeOf(const qlora_parameter &parameter) {
  std::vector<int64_t> shape(parameter.shape, parameter.shape + parameter.rank);
  if (parameter.slices > 1)
    shape[parameter.slice_dimension] *= parameter.slices;
  return shape;
}
/// Returns a parameter's bytes in its arena: all of them, or an fsdp shard's.
inline uint64_t arenaBytesOf(const qlora_parameter &parameter) {
  return parameter.piece ? parameter.piece : parameter.bytes;
}

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_MODULELOADER_H
