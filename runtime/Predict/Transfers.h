// SPDX-License-Identifier: MIT

// Transfers between the stages of a pipeline, on one clock (Timeline.h).

#ifndef QLORA_RUNTIME_PREDICT_TRANSFERS_H
#define QLORA_RUNTIME_PREDICT_TRANSFERS_H

#include "runtime/Module/ModuleLoader.h"
#include "runtime/Predict/Timeline.h"

namespace qlora {

/// Returns a collective, RECORD or WAIT of a stage as a timeline item without a
/// duration. A transfer past the ends of the pipeline, or within a stage, does
/// not wait for another stage.
TimelineItem itemOf(const LoadedModule &stage, const qlora_command &command);

/// Checks that in every entry, each stage receives what others send, in an
/// order without deadlock. kDataLoss names the entry and the stages.
Status checkTransfers(const LoadedModule &module);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_TRANSFERS_H
