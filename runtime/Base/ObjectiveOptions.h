// SPDX-License-Identifier: MIT

// Constraints on the options of the training objective (rl).

#ifndef QLORA_RUNTIME_BASE_OBJECTIVEOPTIONS_H
#define QLORA_RUNTIME_BASE_OBJECTIVEOPTIONS_H

#include <string>

#include "runtime/Base/Options.h"

namespace qlora {

/// Returns the name of the loss that `lossType` selects for `rl`; may be empty.
std::string lossOf(const std::string &rl, const std::string &lossType);

/// Checks that the other options work with the objective (rl): its loss, its
/// rows and its reference model.
Status validateObjective(const Options &options);

/// Checks that `ranks` ranks can train for the objective. Groups of `together`
/// ranks have the same rows.
Status checkRanksOf(const Options &options, int64_t ranks, int64_t together);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_OBJECTIVEOPTIONS_H
