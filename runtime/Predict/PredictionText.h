// SPDX-License-Identifier: MIT

// Formats a predicted step as text or JSON, with every rate that it assumes.

#ifndef QLORA_RUNTIME_PREDICT_PREDICTIONTEXT_H
#define QLORA_RUNTIME_PREDICT_PREDICTIONTEXT_H

#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "runtime/Predict/StepPrediction.h"

namespace qlora {

/// Formats a step: a table of its parts, then tokens per second and
/// collectives. `low`: the same step with a GPU's low rates; nullptr for a CPU.
std::string predictionText(const StepPrediction &step,
                           const StepPrediction *low,
                           const DeviceProfile &device);

/// Formats tokens per second against the number of ranks; the first step of
/// `curve` has the fewest ranks.
std::string scalingText(std::span<const StepPrediction> curve,
                        const GpuRates &gpu);

/// Formats the rates, one per line, and the costs that predictions leave out.
std::string assumptionText(const DeviceProfile &device);

/// Returns seconds, bytes and FLOPs, unrounded. With `low`, the key "low" has
/// the values that differ at low rates.
nlohmann::ordered_json predictionJson(const StepPrediction &step,
                                      const StepPrediction *low,
                                      const DeviceProfile &device);

/// Returns an array with an element for each step of the curve.
nlohmann::ordered_json scalingJson(std::span<const StepPrediction> curve,
                                   const GpuRates &gpu);

/// Returns the rates, with the keys of device.json.
nlohmann::ordered_json profileJson(const DeviceProfile &device);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_PREDICTIONTEXT_H
