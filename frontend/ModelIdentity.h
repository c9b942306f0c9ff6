// SPDX-License-Identifier: MIT

// Identity of the model that a program was compiled for. A program is valid for
// one config.json: with weights of the same shapes from another model, it would
// run and give wrong results. So qlora-import writes a description of the
// model's arithmetic into model.mlir, qloracc records it in train.so, and
// qlora-run compares it with the model folder.

#ifndef QLORA_FRONTEND_MODELIDENTITY_H
#define QLORA_FRONTEND_MODELIDENTITY_H

#include <nlohmann/json.hpp>

#include <string>

#include "frontend/HfConfig.h"
#include "runtime/Base/Options.h"

namespace qlora {

/// Describes everything in config.json that affects the model's numbers or
/// module names, with config.json's keys where possible. The result is a flat
/// object of numbers, strings and booleans, with null for properties that the
/// model lacks. Its order is the order in which differences are reported. Two
/// spellings of one model (rope_theta or rope_parameters, a default written out
/// or left out) give the same description. No key is the name of an option.
nlohmann::ordered_json describeArithmetic(const ModelConfig &config);

/// Refuses a `model_name_or_path` that is not the model which the program
/// `modulePath` was compiled for. The error for a different config.json names
/// both values. Missing or unexpected tensors are refused as by the importer.
/// `options` contains the recorded description; without it nothing is compared.
Status checkModelIdentity(const Options &options,
                          const std::string &modulePath);

} // namespace qlora

#endif // QLORA_FRONTEND_MODELIDENTITY_H
