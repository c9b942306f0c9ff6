// SPDX-License-Identifier: MIT

// Data sets of axolotl and LLaMA-Factory configurations: their files, row
// formats and column names. Other keys must match qlora's behaviour, or they
// are refused by name.

#ifndef QLORA_TOOLS_QLORA_FOREIGNDATA_H
#define QLORA_TOOLS_QLORA_FOREIGNDATA_H

#include <nlohmann/json.hpp>

#include <map>
#include <set>
#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

struct ForeignData {
  /// Value of train_file or validation_file.
  nlohmann::ordered_json paths = nlohmann::ordered_json::array();
  std::set<std::string> formats; ///< values of row_format; empty: any
  /// Maps fields to their columns, as dataset_columns does. "": the field is
  /// not read. A field that maps to itself has its default column.
  std::map<std::string, std::string> columns;
  bool hasPieces = false; ///< axolotl splits long rows of text into several
  bool dropsSystem = false; ///< leaves out system messages

  /// Adds another data set. Fails if both map a field to different columns.
  Status add(const ForeignData &other);
};

/// Translates axolotl's list of data sets: [{path: data.jsonl, type:
/// chat_template}, {path: json, data_files: [a.jsonl, b.jsonl]}, {path:
/// OWNER/NAME, name: SUBSET, split: train}, ...]. `base`: the YAML file's
/// folder. `rl`: the objective, a value of --rl. `isTest`: the default split on
/// the hub is test.
StatusOr<ForeignData> dataOfDatasets(const nlohmann::ordered_json &list,
                                     const std::string &base,
                                     const std::string &rl, bool isTest);

/// Translates LLaMA-Factory's names of data sets, "name, other", which
/// `folder`/dataset_info.json describes. With the folder ONLINE, they are names
/// on the hub. `base` is the YAML file's folder. `rl` may also be pt: the
/// prompts are texts of pretraining.
StatusOr<ForeignData> dataOfNames(const std::string &names,
                                  const std::string &base,
                                  const std::string &folder,
                                  const std::string &rl);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_FOREIGNDATA_H
