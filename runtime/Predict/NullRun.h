// SPDX-License-Identifier: MIT

// `--device null`: walks every entry on a device that checks each command and
// address and computes nothing, and counts what a step of N ranks would do.
// Needs no weights and no data. `--device null:CARD` also predicts how long a
// step would take on that card (Predict/StepPrediction.h).

#ifndef QLORA_RUNTIME_PREDICT_NULLRUN_H
#define QLORA_RUNTIME_PREDICT_NULLRUN_H

#include <string>
#include <vector>

#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Predict/DeviceChoice.h"

namespace qlora {

/// The plan, the commands and bytes of each entry, and a step on `ranks`
/// ranks, predicted where `device` has a card: tables, or with log_format json one
/// object. `disabledKernels` are rows that the step is predicted without.
StatusOr<std::string>
checkOnNullDevice(const LoadedModule &module, const Options &options, int ranks,
                  const DeviceChoice &device,
                  const std::vector<std::string> &disabledKernels = {});

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_NULLRUN_H
