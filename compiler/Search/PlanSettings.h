// SPDX-License-Identifier: MIT

// Settings of a plan: the options of a run, the compile options that follow
// from them, and the choices that options leave to a search. Each group of
// options has its own file, which also refuses those that conflict.

#ifndef QLORA_COMPILER_SEARCH_PLANSETTINGS_H
#define QLORA_COMPILER_SEARCH_PLANSETTINGS_H

#include <algorithm>

#include "compiler/Pipeline.h"
#include "runtime/Options/Options.h"
#include "runtime/Options/ParallelMesh.h"

namespace qlora {

struct PlanSettings {
  Options options;
  CompileOptions compile;
  /// Candidates of --auto-find-batch-size, ascending; else empty, and the batch
  /// of `compile` was given.
  std::vector<int64_t> batches;
  int64_t ranks = 1; ///< ranks that share a global batch
  /// Returns how many ranks have their own rows.
  int64_t rowRanks() const {
    return std::max<int64_t>(1, ranks / compile.mesh.rowRanks());
  }
  bool findsLayout = false; ///< --parallel auto
  // GPUs of a machine and its network; 0 and empty: as in the device profile.
  int64_t gpusPerNode = 0;
  std::string network;
};

/// Records the value that the compiler chose for an option.
Status recordChoice(const char *name, const std::string &value,
                    PlanSettings &settings);

/// Sets the batch, the row lengths, and the sequence lengths for packing. A
/// program that only generates has none of them.
Status fillShape(const Options &options, CompileOptions &compile);

/// Sets the number of chunks of a micro-batch. With virtual stages it is a
/// multiple of the stages, as Megatron's interleaved schedule needs.
Status fillChunks(const Options &options, CompileOptions &compile);

/// Checks --stage-speeds, which determines the layers of each of the `stages`.
Status checkStageSpeeds(const CompileOptions &compile, int64_t stages);

/// Sets the shapes of generation (--generation-batch). Its functions run on
/// whole rows and whole weights. Refuses options that only training has if the
/// program does not train.
Status fillGeneration(const Options &options, CompileOptions &compile);

/// Sets the shape of adapters that rows choose (--max-loras): plain LoRA, whose
/// B the runtime multiplies by alpha / rank. Call it after the settings of
/// LoRA.
Status fillAdapterChoice(const Options &options, CompileOptions &compile);

/// Enables the kinds of offloading that --offload names.
Status fillOffload(const Options &options, CompileOptions &compile);

/// Refuses offloading that the target or the parallel layout rules out.
Status checkOffload(const PlanSettings &settings);

/// Sets the batch and the settings that depend on it, and records the batch as
/// an option.
Status setBatch(PlanSettings &settings, int64_t batch);

/// Sets the mesh that --parallel names.
void applyMesh(const ParallelMesh &mesh, PlanSettings &settings);

/// Sets the mesh, and records it as --parallel.
Status setLayout(PlanSettings &settings, const ParallelMesh &mesh);

} // namespace qlora

#endif // QLORA_COMPILER_SEARCH_PLANSETTINGS_H
