// SPDX-License-Identifier: MIT

// trainer_state.json as transformers' Trainer writes it into a checkpoint, so
// that TrainerState.load_from_json and the tools around it read ours. Its
// log_history is metrics.jsonl up to the checkpoint's step.

#ifndef QLORA_RUNTIME_SESSION_TRAINERSTATE_H
#define QLORA_RUNTIME_SESSION_TRAINERSTATE_H

#include <cstdint>
#include <string>

#include "runtime/Session/BestModel.h"
#include "runtime/Session/Run.h"

namespace qlora {

/// Everything but log_history; to be finished by withHistory().
nlohmann::ordered_json trainerState(const Run &run, int64_t step,
                                    const BestModel &best);

/// The file's text. `lines`: of metrics.jsonl; one that is no JSON, such as
/// the last of a disk that was full, is left out.
std::string withHistory(nlohmann::ordered_json state, const std::string &lines);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_TRAINERSTATE_H
