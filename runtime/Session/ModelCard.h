// SPDX-License-Identifier: MIT

// Writes README.md next to an adapter: base model, data, options, results and
// how to load it, in the Hub's format (YAML front matter, then Markdown).
//
// The file can be published: a path is shortened to the name of the file or
// folder. It has no times, so the same run writes the same bytes. Markdown
// characters in user-defined names are escaped.

#ifndef QLORA_RUNTIME_SESSION_MODELCARD_H
#define QLORA_RUNTIME_SESSION_MODELCARD_H

#include <string>
#include <string_view>

#include "runtime/Checkpoint/Run.h"
#include "runtime/Data/DataFiles.h"
#include "runtime/Session/Training.h"

namespace qlora {

inline constexpr const char *kCardFile = "README.md";

/// Returns the model card. `metrics`: text of metrics.jsonl, with evaluations.
std::string modelCard(const Run &run, const DataSummary &data,
                      const TrainingResult &result, std::string_view metrics);

/// Writes the model card, README.md, into the output folder. Keeps a README.md
/// that qlora did not write, and returns an error.
Status writeModelCard(const Run &run, const DataSummary &data,
                      const TrainingResult &result);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_MODELCARD_H
