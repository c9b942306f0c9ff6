// SPDX-License-Identifier: MIT

// Checkpoints: OUTPUT_DIR/checkpoint-N after step N, in Hugging Face's layout.
//
//   adapter_model.safetensors, adapter_config.json, the tokenizer   (Adapter.h)
//   state.safetensors      what the optimizer keeps, by the parameter's name in
//                          the adapter: NAME.exp_avg, ...; counters and the
//                          cursor in the data are "state" in its metadata
//   residuals.safetensors  where gradients are sent in fewer bits, what each
//                          rank has left (ArenaTensors.h)
//   trainer_state.json     as transformers writes it (TrainerState.h)
//   metrics.jsonl          up to here, which a run that is resumed begins with
//   config.resolved.yaml, gemm_table.json (of a GPU)
//   MANIFEST.json          sizes and SHA-256 of all of these, and what the
//                          checkpoint is of (CheckpointFacts.h), the run
//                          included (CheckpointFolder.h)
//
// What a step depends on beside these is a pure function of seed and step.
//
// Between two steps all ranks send what is in their arenas to rank 0, which
// writes it into files of a folder beside the checkpoint's name, window by window
// (ArenaTensors.h). All else is done by a thread while the training goes on: the
// small files, flushing, the manifest, the rename, and only then the removal of
// older checkpoints. A process that is killed at any moment leaves the
// checkpoints of before, each whole. Beside the windows only the copies in the
// system's page cache are added to the memory of the run.
//
// A checkpoint that cannot be written is a warning; the training goes on, and
// the last adapter has its space.

#ifndef QLORA_RUNTIME_SESSION_CHECKPOINT_H
#define QLORA_RUNTIME_SESSION_CHECKPOINT_H

#include <cstdint>
#include <future>

#include <nlohmann/json.hpp>

#include "runtime/Base/Status.h"
#include "runtime/Session/BestModel.h"
#include "runtime/Session/Resume.h"
#include "runtime/Session/Run.h"

namespace qlora {

/// In the metadata of the state's file.
inline constexpr const char *kStateKey = "state";

/// Rank 0's. Used by the session's thread; `run` outlives it.
class CheckpointWriter {
public:
  /// Removes what a run that was killed has left of its last one. `resumed`: the
  /// checkpoint that the run goes on from, or null.
  CheckpointWriter(const Run &run, nlohmann::ordered_json facts,
                   const ResumePoint *resumed);
  /// Waits for the last one.
  ~CheckpointWriter() { finish(); }

  /// After step `step`, with no step in flight, while the other ranks call
  /// send(); `state` is what Trainer::state() says. Waits for the checkpoint
  /// before. An error is of a device or a rank; a file that cannot be written is
  /// a warning.
  Status save(int64_t step, const nlohmann::ordered_json &state,
              const BestModel &best);
  /// The other ranks' part of save().
  static Status send(const Run &run);
  /// The last checkpoint of this run that is whole, or else the one that it was
  /// resumed from; without a folder: none. Waits for one that is being written.
  const CheckpointName &newest();
  /// Warns where the last one could not be written. Does not wait.
  void poll();
  /// The same after waiting for it; false where it could not be written.
  bool finish();

private:
  struct Order;
  Status copyOut(const Order &order, const nlohmann::ordered_json &state,
                 Status &written) const;
  Status writeOut(const Order &order) const;
  Status putInPlace(const Order &order) const;
  void prune(const Order &order) const;
  void report(const Status &status);

  const Run &run;
  const nlohmann::ordered_json facts;
  std::future<Status> pending;
  int64_t last = 0;      ///< step of the last one
  bool isWhole = true;   ///< the last one, or there is none
  CheckpointName whole;  ///< of newest()
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_CHECKPOINT_H
