// SPDX-License-Identifier: MIT

// Data sets as axolotl and LLaMA-Factory name them, as what train_file takes: a
// path, or a list of them. Paths are relative to the YAML file, as written.

#ifndef QLORA_TOOLS_QLORA_PEERDATA_H
#define QLORA_TOOLS_QLORA_PEERDATA_H

#include <nlohmann/json.hpp>

#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

/// axolotl: [{path: data.jsonl, type: chat_template}, {path: json, data_files:
/// [a.jsonl, b.jsonl]}, ...].
StatusOr<nlohmann::json> pathsOfDatasets(const nlohmann::json &list);

/// LLaMA-Factory: "name, other", which `folder`/dataset_info.json has the files
/// of. `base`: the YAML file's folder.
StatusOr<nlohmann::json> pathsOfNames(const std::string &names,
                                      const std::string &base,
                                      const std::string &folder);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_PEERDATA_H
