// SPDX-License-Identifier: MIT

// Data sets as axolotl and LLaMA-Factory name them: their files, the form of
// their rows, and what their columns are called. What else a data set says
// either is what happens here anyway, or is refused by its key.

#ifndef QLORA_TOOLS_QLORA_PEERDATA_H
#define QLORA_TOOLS_QLORA_PEERDATA_H

#include <nlohmann/json.hpp>

#include <map>
#include <set>
#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

struct PeerData {
  /// As train_file takes them, relative to the YAML file, as written.
  nlohmann::ordered_json paths = nlohmann::ordered_json::array();
  std::set<std::string> formats; ///< of row_format; none: any
  /// As dataset_columns has them: "" for a column that is not read, and a name
  /// for itself where it is to be read.
  std::map<std::string, std::string> columns;
  bool hasPieces = false; ///< rows of text are cut into rows, where they are long

  /// Adds another data set, which has to call its columns the same.
  Status add(const PeerData &other);
};

/// axolotl: [{path: data.jsonl, type: chat_template}, {path: json, data_files:
/// [a.jsonl, b.jsonl]}, ...]. `rl`: the objective, as the option has it.
StatusOr<PeerData> dataOfDatasets(const nlohmann::ordered_json &list,
                                  const std::string &rl);

/// LLaMA-Factory: "name, other", which `folder`/dataset_info.json has the files
/// of. `base`: the YAML file's folder.
StatusOr<PeerData> dataOfNames(const std::string &names,
                               const std::string &base,
                               const std::string &folder,
                               const std::string &rl);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_PEERDATA_H
