// SPDX-License-Identifier: MIT

// Text summaries of a run. The header is shown before step 1 and describes the
// training. The ending names the adapter's folder and how to load it. Lines fit
// into 80 columns, except for user-defined names.

#ifndef QLORA_RUNTIME_SESSION_RUNSUMMARY_H
#define QLORA_RUNTIME_SESSION_RUNSUMMARY_H

#include <string>

#include "runtime/Checkpoint/Run.h"
#include "runtime/Data/DataFiles.h"
#include "runtime/Session/Training.h"

namespace qlora {

/// Returns the base model's display name: --base-model-name-or-path unless it
/// is a path; "Qwen/Qwen3-0.6B" for a snapshot in Hugging Face's cache; else
/// the name of the model folder, without its path.
std::string modelName(const Options &options);

/// Returns one line each for model, base, adapter, data, batch, steps, device,
/// memory and output. `data`: summary of the training data.
std::string runHeader(const Run &run, const DataSummary &data);

/// Returns the last line of metrics.jsonl, with the totals of the run.
nlohmann::ordered_json runTotals(const Run &run, const TrainingResult &result);

/// Returns how the run ended and where its adapter is.
std::string runEnding(const Run &run, const TrainingResult &result);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RUNSUMMARY_H
