// SPDX-License-Identifier: MIT

// README.md beside an adapter: what it is of, what it was trained on and how,
// what came of it, and how to load it, in the form that the Hugging Face hub
// shows (YAML between two lines of dashes, then Markdown). It is for others
// than who trained: no paths of this machine are in it, a folder is its last
// name. Neither are times, so that the same run writes the same bytes. Names
// of the user's are text in it, never markup.

#ifndef QLORA_RUNTIME_SESSION_MODELCARD_H
#define QLORA_RUNTIME_SESSION_MODELCARD_H

#include <string>
#include <string_view>

#include "runtime/Data/DataFiles.h"
#include "runtime/Session/Run.h"
#include "runtime/Session/Training.h"

namespace qlora {

inline constexpr const char *kCardFile = "README.md";

/// `metrics`: the text of metrics.jsonl, of which the evaluations are taken.
std::string modelCard(const Run &run, const DataSummary &data,
                      const TrainingResult &result, std::string_view metrics);

/// Writes it into the output folder. A README.md there that no run has written
/// stays, with an error that says so.
Status writeModelCard(const Run &run, const DataSummary &data,
                      const TrainingResult &result);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_MODELCARD_H
