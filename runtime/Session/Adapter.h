// SPDX-License-Identifier: MIT

// PEFT adapter folders: adapter_model.safetensors and adapter_config.json,
// with the tokenizer's files of the base model beside them.
//
// A folder is written whole or not at all: first into a staging folder inside
// it, then each file is renamed into place. When the disk is full, or the
// process is killed before the renames, an earlier adapter is unharmed.

#ifndef QLORA_RUNTIME_SESSION_ADAPTER_H
#define QLORA_RUNTIME_SESSION_ADAPTER_H

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/Core/ModuleLoader.h"
#include "runtime/Core/Options.h"
#include "runtime/Core/Status.h"

namespace qlora {

/// A trained parameter's name in a PEFT file: adapters carry it already,
/// weights of the model get "base_model.model." in front.
std::string peftName(const qlora_parameter &parameter);

/// The parameters of the TRAINABLE arena, in table order.
std::vector<const qlora_parameter *>
trainedParameters(const LoadedModule &module);

/// adapter_config.json for what the module trains, with PEFT's keys.
/// target_modules is the list that was given; for all-linear the last names
/// of the modules; for a regular expression their full names, since not every
/// reader of adapters knows regular expressions.
nlohmann::json adapterConfig(const LoadedModule &module,
                             const Options &options);

/// Writes the adapter whose TRAINABLE arena is `trained` into `folder`
/// (created when missing).
Status writeAdapter(const LoadedModule &module, const Options &options,
                    std::span<const uint8_t> trained,
                    const std::string &folder);

/// Whether an adapter folder can continue under these options: PEFT's LoRA
/// with the same r, alpha, patterns and scaling, and nothing switched on that
/// we do not do. Names and shapes of its tensors are checked when they are
/// read (Parameters.h). Errors name the file, the key and both values.
Status checkAdapterConfig(const std::string &folder, const Options &options);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_ADAPTER_H
