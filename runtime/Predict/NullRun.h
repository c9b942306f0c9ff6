// SPDX-License-Identifier: MIT

// `--device null`: runs every entry of a program (accumulate, update, ...) on a
// device that computes nothing. It checks each command and address, and counts
// the work of a step of N ranks. Needs no weights and no data. With
// `--simulate`, also predicts a step's time on a known GPU, or on the device
// that a device.json describes (Predict/StepPrediction.h).

#ifndef QLORA_RUNTIME_PREDICT_NULLRUN_H
#define QLORA_RUNTIME_PREDICT_NULLRUN_H

#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Options/Options.h"
#include "runtime/Predict/DeviceChoice.h"

namespace qlora {

/// Returns the plan, the commands and bytes of each entry, and the totals of a
/// step on `ranks` ranks, with predicted times if `device` has a GPU. The text
/// has tables, or is a JSON object if log_format is json. The prediction does
/// not use the rows of Kernels.def in `disabledKernels`.
StatusOr<std::string>
checkOnNullDevice(const LoadedModule &module, const Options &options, int ranks,
                  const DeviceChoice &device,
                  const std::vector<std::string> &disabledKernels = {});

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_NULLRUN_H
