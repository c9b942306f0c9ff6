// SPDX-License-Identifier: MIT

// Writes trainer_state.json into a checkpoint as transformers' Trainer does, so
// that TrainerState.load_from_json and related tools can read it. Its
// log_history is metrics.jsonl up to the checkpoint's step.

#ifndef QLORA_RUNTIME_CHECKPOINT_TRAINERSTATE_H
#define QLORA_RUNTIME_CHECKPOINT_TRAINERSTATE_H

#include <cstdint>
#include <string>

#include "runtime/Checkpoint/BestModel.h"
#include "runtime/Checkpoint/Run.h"

namespace qlora {

/// Returns everything except log_history, which withHistory() adds.
nlohmann::ordered_json trainerState(const Run &run, int64_t step,
                                    const BestModel &best);

/// Returns the file's text. `lines`: lines of metrics.jsonl. Skips lines that
/// are not JSON, such as a truncated last line on a full disk.
std::string withHistory(nlohmann::ordered_json state, const std::string &lines);

} // namespace qlora

#endif // QLORA_RUNTIME_CHECKPOINT_TRAINERSTATE_H
