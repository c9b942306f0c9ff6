// SPDX-License-Identifier: MIT

// Writes README.md next to an adapter: base model, data, options, results and
// how to load it, in the Hub's format (YAML front matter, then Markdown).
//
// The file can be published: a path is shortened to the name of the file or
// folder. It has no times, so the same run writes the same bytes. Markdown
// characters in user-defined names are escaped.

#ifndef QLORA_RUNTIME_EXTRAS_MODELCARD_H
#define QLORA_RUNTIME_EXTRAS_MODELCARD_H

#include "runtime/Session/RunExtra.h"

namespace qlora {

class RunCard : public RunExtra {
public:
  /// Writes the model card into the output folder. Warns if it cannot be
  /// written, or if qlora did not write the README.md that is there.
  Status end(const Run &run, const DataSummary &data,
             const TrainingResult &result) override;
};

} // namespace qlora

#endif // QLORA_RUNTIME_EXTRAS_MODELCARD_H
