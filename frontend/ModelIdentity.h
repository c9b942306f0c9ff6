// SPDX-License-Identifier: MIT

// Which model a program is for. A program's numbers are those of one
// config.json: with the weights of another model of the same shapes it would
// run, and be wrong. So qlora-import writes what decides the numbers into
// model.mlir, qloracc records it in train.so, and qlora-run compares it with
// the folder that it is about to read.

#ifndef QLORA_FRONTEND_MODELIDENTITY_H
#define QLORA_FRONTEND_MODELIDENTITY_H

#include <nlohmann/json.hpp>

#include <string>

#include "frontend/HfConfig.h"
#include "runtime/Base/Options.h"

namespace qlora {

/// Everything of a config.json that decides the model's numbers or the names of
/// its modules, by the names that config.json has for it, where it has one: a flat object of numbers,
/// texts, booleans, and nulls for what the model does not have, in the order
/// in which a reader wants to hear of differences. Two spellings of one model
/// (rope_theta or rope_parameters, a default written out or left out) have one
/// description. No key is the name of an option.
nlohmann::ordered_json describeArithmetic(const ModelConfig &config);

/// Refuses a `model_name_or_path` that is not the model which `modulePath` was
/// compiled for: another config.json, with both values, or tensors that the
/// program would miss or leave out, as the importer does. `options` hold what
/// was recorded; a program that records no model is not compared.
Status checkModelIdentity(const Options &options,
                          const std::string &modulePath);

} // namespace qlora

#endif // QLORA_FRONTEND_MODELIDENTITY_H
