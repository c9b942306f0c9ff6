// SPDX-License-Identifier: MIT

// Refuses keys of config.json that would change the model's arithmetic in a way
// that the importer does not implement. Ignoring such a key would give a wrong
// model. Refusing a harmless key would make a model unusable.

#ifndef QLORA_FRONTEND_CONFIGKEYS_H
#define QLORA_FRONTEND_CONFIGKEYS_H

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include "frontend/Families.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Checks every key of config.json. Appends to `warnings`.
Status checkConfigKeys(const nlohmann::json &config, const Family &family,
                       std::vector<std::string> &warnings);

} // namespace qlora

#endif // QLORA_FRONTEND_CONFIGKEYS_H
