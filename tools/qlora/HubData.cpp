// SPDX-License-Identifier: MIT

// Recognises names of data sets, and asks qlora-data for their files.

#include "tools/qlora/HubData.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "runtime/Base/HubReference.h"
#include "runtime/Base/Subprocess.h"
#include "runtime/Base/UserFiles.h"
#include "tools/qlora/HubCache.h"
#include "tools/qlora/Tools.h"

namespace qlora {

namespace fs = std::filesystem;

static const OptionRow kHubDataOptions[] = {
    {"dataset_name", OptionType::kString, "", kRun, "Data on the hub",
     "train on a data set of the Hugging Face hub, OWNER/NAME"},
    {"dataset_train_split", OptionType::kString, "", kRun, "Data on the hub",
     "rows to train on: a split, such as train, or a part of it, such as "
     "train[:500] or train[10%:20%]; empty: train"},
    // hubTestRows() begins here.
    {"dataset_config", OptionType::kString, "", kRun, "Data on the hub",
     "subset of the data set; empty: its default"},
    {"dataset_test_split", OptionType::kString, "", kRun, "Data on the hub",
     "rows to evaluate with: a split, or a part of it, such as test[:500]; "
     "empty: none, and test for a data set that is only for evaluation"},
    {"dataset_revision", OptionType::kString, "", kRun, "Data on the hub",
     "branch, tag or commit of the data set, also written OWNER/NAME@REVISION; "
     "empty: main"},
};

std::span<const OptionRow> hubDataRows() { return kHubDataOptions; }

std::span<const OptionRow> hubTestRows() {
  return std::span(kHubDataOptions).subspan(2);
}

std::string HubDataset::reference() const {
  std::string text(kHubPrefix);
  text += name + (revision.empty() ? "" : "@" + revision);
  const char *separator = "?";
  for (const auto &[key, value] :
       {std::pair("config", config), std::pair("split", split),
        std::pair("files", files)})
    if (!value.empty()) {
      text += fmt::format("{}{}={}", separator, key, value);
      separator = "&";
    }
  return text;
}

HubDataKeys HubDataKeys::of(std::span<const OptionSetting> flags,
                            std::span<const YamlEntry> entries) {
  const auto valueOf = [&](std::string_view name) {
    std::string text;
    for (const YamlEntry &entry : entries)
      if (entry.key == name && entry.value.is_string())
        text = entry.value.get<std::string>();
    for (const OptionSetting &flag : flags)
      if (flag.row->name == name)
        text = flag.text;
    return text;
  };
  return {valueOf("dataset_name"), valueOf("dataset_config"),
          valueOf("dataset_train_split"), valueOf("dataset_test_split"),
          valueOf("dataset_revision")};
}

bool HubDataKeys::selectsRows() const {
  return !config.empty() || !revision.empty() ||
         (!trainSplit.empty() && trainSplit != "train");
}

StatusOr<HubDataset> HubDataKeys::dataset(const std::string &word,
                                          bool isTest) const {
  const auto name = parseHubName(word, revision);
  if (!name)
    return Status::invalid("'{}' is no name of a data set on the Hugging Face "
                           "hub; write OWNER/NAME",
                           word);
  std::string split = isTest ? testSplit : trainSplit;
  if (split.empty())
    split = isTest ? "test" : "train";
  return HubDataset{name->id, name->revision, config, split, ""};
}

bool isHubDataName(const std::string &word, const std::string &folder) {
  static constexpr std::string_view kEndings[] = {
      ".jsonl", ".json", ".csv", ".tsv", ".parquet", ".safetensors", ".gz",
      ".zst",   ".bz2",  ".xz",  ".zip", ".txt",     ".arrow",       ".xlsx"};
  std::error_code ignored;
  return std::ranges::count(word, '/') >= 1 && parseHubName(word) &&
         std::ranges::none_of(
             kEndings,
             [&](std::string_view ending) { return word.ends_with(ending); }) &&
         !fs::exists(absolutePath(word, folder), ignored);
}

/// Returns the reference for a word if it is a name, else the word. The word
/// may end with a weight.
static StatusOr<std::string> withReference(const HubDataKeys &keys,
                                           const std::string &word,
                                           const std::string &folder,
                                           bool isTest) {
  const size_t colon = word.rfind(':');
  const std::string name = word.substr(0, colon);
  if (!isHubDataName(name, folder))
    return word;
  QLORA_ASSIGN_OR_RETURN(const HubDataset set, keys.dataset(name, isTest));
  return set.reference() + (colon == word.npos ? "" : word.substr(colon));
}

static const OptionRow *rowOf(bool isTest) {
  return findOption(optionTable(), isTest ? "validation_file" : "train_file");
}

Status addHubSettings(const HubDataKeys &keys,
                      std::vector<OptionSetting> &settings) {
  for (OptionSetting &setting : settings)
    for (const bool isTest : {false, true})
      if (setting.row == rowOf(isTest)) {
        QLORA_ASSIGN_OR_RETURN(setting.text,
                               withReference(keys, setting.text, "", isTest));
      }
  const std::string name = HubDataKeys::of(settings).name;
  if (name.empty())
    return Status::ok();
  std::error_code ignored;
  if (fs::exists(name, ignored))
    return Status::invalid("--dataset-name: '{}' is here, not on the Hugging "
                           "Face hub; name it with --train-file",
                           name);
  auto set = keys.dataset(name, /*isTest=*/false);
  if (!set.isOk())
    return set.status().withContext("--dataset-name");
  settings.push_back({rowOf(false), set->reference(), "--dataset-name"});
  return Status::ok();
}

Status addHubEntries(const HubDataKeys &keys, const std::string &folder,
                     std::vector<YamlEntry> &entries) {
  for (YamlEntry &entry : entries)
    for (const bool isTest : {false, true}) {
      if (findOption(optionTable(), entry.key) != rowOf(isTest))
        continue;
      const bool isList = entry.value.is_array();
      nlohmann::ordered_json items =
          isList ? entry.value : nlohmann::ordered_json::array({entry.value});
      for (nlohmann::ordered_json &item : items) {
        nlohmann::ordered_json &path =
            item.is_object() && item.contains("path") ? item["path"] : item;
        if (!path.is_string())
          continue;
        QLORA_ASSIGN_OR_RETURN(
            path, withReference(keys, path.get<std::string>(), folder, isTest));
      }
      entry.value = isList ? items : items[0];
    }
  return Status::ok();
}

StatusOr<std::string> findHubReference(const std::string &reference,
                                       const std::string &folder) {
  QLORA_ASSIGN_OR_RETURN(std::string tool, findTool("qlora-data"));
  QLORA_ASSIGN_OR_RETURN(const ProcessOutput output,
                         runProgram({tool, "find-dataset", reference,
                                     folder.empty() ? "." : folder},
                                    {}, {}, ErrorOutput::kShared));
  if (output.exitCode != 0)
    return Status::invalid("the data set '{}' cannot be used: see above",
                           dataTitle(reference));
  return output.out.substr(0, output.out.find('\n'));
}

StatusOr<std::string> findHubFile(const HubDataset &data) {
  QLORA_ASSIGN_OR_RETURN(const std::string found,
                         findHubReference(data.reference(), ""));
  const size_t at = found.find('@'), end = found.find('?', at);
  return hubDataPath(data.name, found.substr(at + 1, end - at - 1), data.files);
}

/// Evaluates with --dataset-test-split of the data set that is trained on.
static Status addTestSplit(const std::string &split, Options &options) {
  if (split.empty() || !options.paths("validation_file").empty())
    return Status::ok();
  const auto paths = options.paths("train_file");
  if (paths.size() != 1 || !isHubReference(paths[0].path))
    return Status::invalid("--dataset-test-split needs one data set on the "
                           "Hugging Face hub to train on; name the rows with "
                           "--validation-file");
  const std::string &text = paths[0].path;
  const size_t begin = text.find("split="), end = text.find('&', begin);
  const std::string reference =
      begin == text.npos
          ? text + (text.find('?') == text.npos ? "?" : "&") + "split=" + split
          : text.substr(0, begin) + "split=" + split +
                (end == text.npos ? "" : text.substr(end));
  return options.applySetting("validation_file", reference,
                              "--dataset-test-split");
}

Status findHubData(std::span<const OptionSetting> flags,
                   const HubDataKeys &keys, const std::string &folder,
                   Options &options) {
  // qlora eval has data of its own, and no training data.
  const bool trains = !options.paths("train_file").empty();
  if (trains)
    QLORA_RETURN_IF_ERROR(
        addTestSplit(HubDataKeys::of(flags).testSplit, options));
  bool isOfHub = false;
  for (const bool isTest : {false, true}) {
    const OptionRow &row = *rowOf(isTest);
    std::vector<OptionSetting> found;
    for (const auto &[path, weight] : options.paths(row.name)) {
      std::string text = path;
      if (isHubReference(path)) {
        isOfHub = true;
        const bool isYaml = options.source(row.name) == Options::Source::kYaml;
        QLORA_ASSIGN_OR_RETURN(text,
                               findHubReference(path, isYaml ? folder : ""));
      }
      found.push_back({&row,
                       weight == 1 ? text : fmt::format("{}:{}", text, weight),
                       options.spelling(row.name)});
    }
    if (isOfHub)
      QLORA_RETURN_IF_ERROR(options.applySettings(found));
  }
  if (trains && !isOfHub && keys.selectsRows())
    return Status::invalid(
        "dataset_config, dataset_revision and dataset_train_split are for data "
        "sets on the Hugging Face hub, but none is named; add --dataset-name, "
        "or remove them");
  return Status::ok();
}

} // namespace qlora
