// SPDX-License-Identifier: MIT

// Checks the keys of config.json that nothing else reads. Ignoring a key with
// an effect gives a wrong model; refusing a harmless key makes a model
// unusable.
//
//   Key                                 Action
//   read for this family                accepted
//   known to be harmless                accepted
//   known to change the arithmetic      must have its neutral value
//   unknown, null, false or empty       accepted
//   unknown, but the name suggests      refused
//     arithmetic ("softcap", "expert")
//   any other                           accepted with a warning

#ifndef QLORA_FRONTEND_CONFIGKEYS_H
#define QLORA_FRONTEND_CONFIGKEYS_H

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include "frontend/Families.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Checks every key of the object in config.json; appends to `warnings`.
Status checkConfigKeys(const nlohmann::json &config, const Family &family,
                       std::vector<std::string> &warnings);

} // namespace qlora

#endif // QLORA_FRONTEND_CONFIGKEYS_H
