// SPDX-License-Identifier: MIT

// Translates pretraining on texts, and the order of rows.

#include "tools/qlora/ForeignTranslation.h"

namespace qlora {

using json = nlohmann::ordered_json;

/// Returns whether the file has LLaMA-Factory's stage: pt.
bool Translation::isPretraining() const {
  const json *stage = find("stage");
  return stage && foreignNameOf(*stage) == "pt";
}

/// LLaMA-Factory's pretraining joins texts and cuts them, unless packing is
/// off. Without packing, it cuts the end of long texts.
Status Translation::translateStage(const YamlEntry &entry) {
  if (!isPretraining())
    return translateObjective(entry);
  const json *packing = find("packing");
  if (packing && isOffWord(foreignNameOf(*packing)))
    return add(entry, "excess_length_strategy", "truncate"), Status::ok();
  add(entry, "packing", "true");
  add(entry, "packing_strategy", "llamafactory-wrapped");
  return Status::ok();
}

/// Returns axolotl's first data set for pretraining as one of `datasets`.
static StatusOr<json> pretrainingSet(const json &value) {
  json set = value.is_array() && !value.empty() ? value.front() : value;
  if (set.is_string())
    set = json{{"path", set}};
  if (!set.is_object())
    return Status::invalid("expects a data set, with a path");
  const std::string skipped = foreignNameOf(set.value("skip", json()));
  if (skipped != "0" && !isOffWord(skipped))
    return Status::invalid("'skip' leaves rows out, which is not supported: "
                           "write a file without them");
  for (const char *key : {"text_column", "field"})
    if (const json column = set.value(key, json()); !column.is_null())
      set["field"] = column;
  for (const char *key : {"skip", "text_column"})
    set.erase(key);
  return set;
}

/// Translates axolotl's pretraining: texts become rows that overlap, each with
/// an end token, and rows are packed (utils/data/streaming.py). With type:
/// completion, texts become rows that do not overlap.
Status Translation::translatePretraining(const YamlEntry &entry) {
  const json *packing = find("sample_packing");
  if (!packing || foreignNameOf(*packing) != "true")
    return refused("without sample_packing trains texts without an end token, "
                   "which is not supported: write sample_packing: true");
  QLORA_ASSIGN_OR_RETURN(json set, pretrainingSet(entry.value));
  const std::string type = foreignNameOf(set.value("type", json("pretrain")));
  if (type == "pretrain")
    add(entry, "excess_length_strategy", "windows");
  if (type == "pretrain" || type == "none")
    set["type"] = "completion";
  return translateData({"datasets", json::array({std::move(set)}), entry.line});
}

/// Without multipack_attn, packed texts would attend to each other.
Status Translation::checkPretraining(const YamlEntry &entry) {
  const json *packing = find("sample_packing");
  if (!find("pretraining_dataset") || foreignNameOf(entry.value) == "true" ||
      !packing || foreignNameOf(*packing) != "true")
    return translateRow(entry);
  return refused("lets packed texts attend to each other, which is not "
                 "supported: write true");
}

/// axolotl shuffles several data sets in spite of this key, unless
/// shuffle_merged_datasets is false.
Status Translation::translateCurriculum(const YamlEntry &entry) {
  if (isOffWord(foreignNameOf(entry.value)))
    return Status::ok();
  const json *sets = find("datasets"),
             *merged = find("shuffle_merged_datasets");
  const bool areMerged = sets && sets->is_array() &&
                         distinctSets(*sets).size() > 1 &&
                         !(merged && foreignNameOf(*merged) == "false");
  if (areMerged)
    return note(entry, "has no effect on several data sets, which axolotl "
                       "shuffles: add shuffle_merged_datasets: false"),
           Status::ok();
  return add(entry, "train_sampling_strategy", "sequential"), Status::ok();
}

} // namespace qlora
