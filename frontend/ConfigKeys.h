// SPDX-License-Identifier: MIT

// Decides for every key of config.json: read it, ignore it because it is known
// to be harmless, or refuse it because it changes the arithmetic. Ignoring a
// key with an effect gives a wrong model; refusing one without makes a model
// unusable. So:
//
//   read for this family           ignored here
//   known to be harmless           ignored
//   known to change the maths      must have its neutral value, or is refused
//   unknown, null/false/empty      ignored: it is off
//   unknown, with a telling name   refused ("softcap", "expert", ...)
//   unknown otherwise              a warning

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
