// SPDX-License-Identifier: MIT

// Identity of the model that a program was compiled for. A program is valid for
// one config.json: with weights of another model of the same shapes it would
// run and give wrong results. So qlora-import writes what decides the numbers
// into model.mlir, qloracc records it in train.so, and qlora-run compares it
// with the model folder.

#ifndef QLORA_FRONTEND_MODELIDENTITY_H
#define QLORA_FRONTEND_MODELIDENTITY_H

#include <nlohmann/json.hpp>

#include <string>

#include "frontend/HfConfig.h"
#include "runtime/Base/Options.h"

namespace qlora {

/// Returns everything in config.json that decides the model's numbers or its
/// module names, under config.json's key if there is one. A flat object of
/// numbers, strings, booleans, and nulls for what the model lacks, in the order
/// in which differences are reported. Two spellings of one model (rope_theta or
/// rope_parameters, a default written out or left out) give one description. No
/// key is the name of an option.
nlohmann::ordered_json describeArithmetic(const ModelConfig &config);

/// Refuses a `model_name_or_path` that is not the model which `modulePath` was
/// compiled for: another config.json, with both values, or, as the importer
/// does, tensors that the program would miss or ignore. `options` hold the
/// recorded description; a program without one is not compared.
Status checkModelIdentity(const Options &options,
                          const std::string &modulePath);

} // namespace qlora

#endif // QLORA_FRONTEND_MODELIDENTITY_H
