// SPDX-License-Identifier: MIT

// Sets what a search chooses, with the settings that depend on it.

#include "compiler/Search/PlanSettings.h"

#include <numeric>

#include "runtime/Data/TokenFiles.h"

namespace qlora {

Status recordChoice(const char *name, const std::string &value,
                    PlanSettings &settings) {
  return settings.options.applySetting(name, value, flagSpelling(name));
}

/// Returns the sequence lengths that are compiled for packing short rows
/// (--step-packing, runtime/Data/StepPacking.h), in ascending order. They range
/// from an eighth of `tokens` to `tokens`, in four equal steps per doubling.
/// Lengths below `tokens` are multiples of 64 and of `parts`, the cp ranks.
///
/// More steps reduce the padding, but each length is another compiled variant.
/// Average padding for eight rows of 40 to 512 tokens:
///   2 steps per doubling  17 %
///   4 steps per doubling   9 %
///   6 steps per doubling   6 %
static std::vector<int64_t> tokenBuckets(int64_t tokens, int64_t parts) {
  constexpr int64_t kOctaves = 3, kPerOctave = 4;
  const int64_t tile = std::lcm(64, parts); ///< row multiple that suits kernels
  std::vector<int64_t> buckets;
  for (int64_t octave = kOctaves; octave > 0; --octave)
    for (int64_t share = kPerOctave; share < 2 * kPerOctave; ++share) {
      const int64_t size =
          (tokens * share / (kPerOctave << octave) + tile - 1) / tile * tile;
      if (size > 0 && size < tokens &&
          (buckets.empty() || size > buckets.back()))
        buckets.push_back(size);
    }
  buckets.push_back(tokens);
  return buckets;
}

/// Returns the value of step_packing. If it is auto, returns whether train_file
/// has rows (JSONL, or a rows file of qlora-data), not micro-batches.
static StatusOr<bool> wantsTokenBuckets(const Options &options,
                                        int64_t stages) {
  const std::string choice = options.text("step_packing");
  // Buckets suit neither preference training, with one answer per sequence, nor
  // a pipeline, which splits a micro-batch by rows.
  if (options.text("rl") != "none" || stages > 1)
    return false;
  if (choice != "auto")
    return choice == "true";
  return hasRows(options.paths("train_file"));
}

Status fillShape(const Options &o, CompileOptions &c) {
  c.trains = o.text("entries") != "generate";
  if (!c.trains)
    return Status::ok();
  c.batch = o.integer("per_device_train_batch_size");
  c.lengths = o.lengths("max_length");
  QLORA_RETURN_IF_ERROR(fillChunks(o, c));
  QLORA_ASSIGN_OR_RETURN(const bool packsSteps,
                         wantsTokenBuckets(o, c.mesh.pp));
  if (packsSteps)
    c.buckets = tokenBuckets(
        c.batch * *std::max_element(c.lengths.begin(), c.lengths.end()),
        c.mesh.cp);
  return Status::ok();
}

Status setBatch(PlanSettings &settings, int64_t batch) {
  QLORA_RETURN_IF_ERROR(recordChoice("per_device_train_batch_size",
                                     std::to_string(batch), settings));
  return fillShape(settings.options, settings.compile);
}

void applyMesh(const ParallelMesh &mesh, PlanSettings &settings) {
  settings.compile.mesh = mesh;
  settings.ranks = std::max(settings.ranks, mesh.rowRanks());
}

Status setLayout(PlanSettings &settings, const ParallelMesh &mesh) {
  QLORA_RETURN_IF_ERROR(recordChoice("parallel", mesh.text(), settings));
  applyMesh(mesh, settings);
  return Status::ok();
}

} // namespace qlora
