// SPDX-License-Identifier: MIT

// A predicted step for people and for programs, with every rate that it
// assumes.

#ifndef QLORA_RUNTIME_PREDICT_PREDICTIONTEXT_H
#define QLORA_RUNTIME_PREDICT_PREDICTIONTEXT_H

#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "runtime/Predict/StepPrediction.h"

namespace qlora {

/// The parts of a step as a table, then tokens per second and the buckets.
/// `low` is the same step as a GPU's low figure; nullptr for a CPU.
std::string predictionText(const StepPrediction &step,
                           const StepPrediction *low,
                           const DeviceProfile &device);

/// How tokens per second grow with the ranks; the first step has one.
std::string scalingText(std::span<const StepPrediction> curve,
                        const GpuRates &gpu);

/// The rates, one line for each, and what the prediction leaves out.
std::string assumptionText(const DeviceProfile &device);

/// Seconds, bytes and FLOPs, unrounded; of the low figure, if there is one,
/// what differs, under "low".
nlohmann::ordered_json predictionJson(const StepPrediction &step,
                                      const StepPrediction *low,
                                      const DeviceProfile &device);

/// A row for each step of the curve.
nlohmann::ordered_json scalingJson(std::span<const StepPrediction> curve,
                                   const GpuRates &gpu);

/// With the keys of device.json.
nlohmann::ordered_json profileJson(const DeviceProfile &device);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_PREDICTIONTEXT_H
