// SPDX-License-Identifier: MIT

// Identity of the model that a program was compiled for. With weights of the
// same shapes from another model, the program would run and give wrong results.
// So qlora-import writes a description of the model's arithmetic into
// model.mlir, qloracc copies it into train.so, and qlora-run compares it with
// the model folder.

#ifndef QLORA_FRONTEND_MODELIDENTITY_H
#define QLORA_FRONTEND_MODELIDENTITY_H

#include <nlohmann/json.hpp>

#include <string>

#include "frontend/HfConfig.h"
#include "runtime/Options/Options.h"

namespace qlora {

/// Describes everything in config.json that affects the model's numbers or
/// module names, with config.json's keys where possible. The result is a flat
/// object of numbers, strings and booleans, with null for properties that the
/// model lacks. Differences are reported in its order. Equivalent files, such
/// as one with a default written out, have the same description. No key is the
/// name of an option.
nlohmann::ordered_json describeArithmetic(const ModelConfig &config);

/// Refuses the model `model_name_or_path` unless the program `modulePath` was
/// compiled for it. The error for a different config.json contains both values.
/// Missing or unexpected tensors are refused as by the importer. `options`
/// contains the recorded description. Without one, compares nothing.
Status checkModelIdentity(const Options &options,
                          const std::string &modulePath);

} // namespace qlora

#endif // QLORA_FRONTEND_MODELIDENTITY_H
