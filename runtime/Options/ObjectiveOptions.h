// SPDX-License-Identifier: MIT

// Constraints on the options of the training objective (rl).

#ifndef QLORA_RUNTIME_OPTIONS_OBJECTIVEOPTIONS_H
#define QLORA_RUNTIME_OPTIONS_OBJECTIVEOPTIONS_H

#include <string>

#include "runtime/Options/Options.h"

namespace qlora {

/// Returns the loss that `lossType` selects for the objective `rl`; empty for
/// objectives other than dpo and kto.
std::string lossOf(const std::string &rl, const std::string &lossType);

/// Checks that the other options work with the objective (rl).
Status validateObjective(const Options &options);

/// Checks that `ranks` ranks can train for the objective. `together`: number of
/// ranks that share the same rows.
Status checkRanksOf(const Options &options, int64_t ranks, int64_t together);

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_OBJECTIVEOPTIONS_H
