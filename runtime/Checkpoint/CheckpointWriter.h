// SPDX-License-Identifier: MIT

// Checkpoints: OUTPUT_DIR/checkpoint-N after step N, in Hugging Face's layout.
//
//   adapter_model.safetensors, adapter_config.json, the tokenizer   (Adapter.h)
//   state.safetensors      optimizer states, NAME.exp_avg, ..., where NAME is
//                          the parameter's name in the adapter; the metadata
//                          key "state" has counters and the data cursor
//   residuals.safetensors  quantization error of each rank's compressed
//                          gradients (ArenaTensors.h)
//   trainer_state.json     as transformers writes it (TrainerState.h)
//   metrics.jsonl          up to this step; a resumed run starts with it
//   config.resolved.yaml, gemm_table.json (only on GPUs)
//   MANIFEST.json          size and SHA-256 of each file above; identity of
//                          model, data and program (CheckpointMetadata.h), and
//                          of the run (CheckpointFolder.h)
//
// Everything else that a step depends on is a pure function of seed and step.
//
// Between two steps, all ranks send their arenas to rank 0 window by window
// (ArenaTensors.h). Rank 0 writes the files into a temporary folder next to the
// final one. A background thread does the rest while training continues: small
// files, flush, manifest, rename, and last the removal of older checkpoints. A
// process that is killed at any moment leaves the earlier checkpoints complete.
// A checkpoint needs memory only for the windows and the page cache.
//
// A failed checkpoint is only a warning: training continues, and the disk space
// of the final adapter is already reserved.

#ifndef QLORA_RUNTIME_CHECKPOINT_CHECKPOINTWRITER_H
#define QLORA_RUNTIME_CHECKPOINT_CHECKPOINTWRITER_H

#include <cstdint>
#include <future>

#include <nlohmann/json.hpp>

#include "runtime/Base/Status.h"
#include "runtime/Checkpoint/BestModel.h"
#include "runtime/Checkpoint/Resume.h"
#include "runtime/Checkpoint/Run.h"

namespace qlora {

/// Key of the training state in the metadata of state.safetensors.
inline constexpr const char *kStateKey = "state";

/// Writes checkpoints on rank 0. Only the session's thread may use it.
class CheckpointWriter {
public:
  /// Removes unfinished checkpoints of a killed run. `resumed`: the checkpoint
  /// that this run resumes from, or null. `run` must outlive this object.
  CheckpointWriter(const Run &run, nlohmann::ordered_json facts,
                   const ResumePoint *resumed);
  /// Waits for the checkpoint that is being written.
  ~CheckpointWriter() { finish(); }

  /// Writes a checkpoint after step `step`, with no step in flight, while the
  /// other ranks call send(). `state` is Trainer::state(). Waits for the
  /// previous checkpoint. Returns errors of devices and ranks; a file that
  /// cannot be written is only a warning.
  Status save(int64_t step, const nlohmann::ordered_json &state,
              const BestModel &best);
  /// Sends this rank's bytes to rank 0. The other ranks call it during save().
  static Status send(const Run &run);
  /// Returns this run's latest complete checkpoint, else the checkpoint that it
  /// resumed from, else an empty name. Waits for a checkpoint in progress.
  const CheckpointName &newest();
  /// Warns if the last checkpoint failed. Does not wait.
  void poll();
  /// Waits for the last checkpoint. Warns and returns false if it failed.
  bool finish();

private:
  struct Order;
  Status copyOut(const Order &order, const nlohmann::ordered_json &state,
                 Status &written) const;
  Status writeOut(const Order &order) const;
  Status putInPlace(const Order &order) const;
  void report(const Status &status);

  const Run &run;
  const nlohmann::ordered_json facts;
  std::future<Status> pending;
  int64_t last = 0;      ///< step of the latest checkpoint
  bool isWhole = true; ///< the latest checkpoint is complete, or there is none
  CheckpointName whole;  ///< returned by newest()
};

} // namespace qlora

#endif // QLORA_RUNTIME_CHECKPOINT_CHECKPOINTWRITER_H
