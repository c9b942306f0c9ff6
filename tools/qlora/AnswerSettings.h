// SPDX-License-Identifier: MIT

// Defaults of the options that let a program for training also generate, for
// --predict-with-generate.

#ifndef QLORA_TOOLS_QLORA_ANSWERSETTINGS_H
#define QLORA_TOOLS_QLORA_ANSWERSETTINGS_H

#include "runtime/Base/Status.h"
#include "runtime/Options/Options.h"

namespace qlora {

/// Sets the options of generation that are not given, if `options` request
/// answers. Reads config.json of the model, if one is named.
Status addAnswerSettings(Options &options);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_ANSWERSETTINGS_H
