// SPDX-License-Identifier: MIT

// What the stages of a pipeline send each other, on one clock (Timeline.h).

#ifndef QLORA_RUNTIME_PREDICT_TRANSFERS_H
#define QLORA_RUNTIME_PREDICT_TRANSFERS_H

#include "runtime/Module/ModuleLoader.h"
#include "runtime/Predict/Timeline.h"

namespace qlora {

/// A collective, RECORD or WAIT of a stage, which takes no time so far. What is
/// sent beyond the ends of the pipeline, or within a stage, waits for no other
/// one.
TimelineItem itemOf(const LoadedModule &stage, const qlora_command &command);

/// Whether stages receive, in every entry, what others send, in an order in
/// which none waits for ever. kDataLoss names the entry and the stages.
Status checkTransfers(const LoadedModule &module);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_TRANSFERS_H
