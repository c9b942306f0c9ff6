// SPDX-License-Identifier: MIT

// What a run says of itself: what is about to be trained, before step 1, and
// where the adapter is and what to do with it, at the end. Pure functions to
// text of lines that fit into 80 columns, but for names of the user's.

#ifndef QLORA_RUNTIME_SESSION_RUNSUMMARY_H
#define QLORA_RUNTIME_SESSION_RUNSUMMARY_H

#include <string>

#include "runtime/Data/DataFiles.h"
#include "runtime/Session/Run.h"
#include "runtime/Session/Training.h"

namespace qlora {

/// The base model's name for people: --base-model-name-or-path unless that is a
/// path, "Qwen/Qwen3-0.6B" of a snapshot in Hugging Face's cache, else the last
/// name of the folder.
std::string modelName(const Options &options);

/// model, base, adapter, data, batch, steps, device, memory, output: a line
/// each.
/// `data`: of what is trained on.
std::string runHeader(const Run &run, const DataSummary &data);

/// The last line of metrics.jsonl.
nlohmann::ordered_json runTotals(const Run &run, const TrainingResult &result);

/// How the run ended, and where its adapter is.
std::string runEnding(const Run &run, const TrainingResult &result);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RUNSUMMARY_H
