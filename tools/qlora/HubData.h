// SPDX-License-Identifier: MIT

// Data sets of the Hugging Face hub as inputs. A name becomes a reference
// (HubReference.h), which all tools accept instead of a path:
//
//   tatsu-lab/alpaca -> hf://datasets/tatsu-lab/alpaca@COMMIT?split=train
//
// qlora-data finds the files of the split in Hugging Face's cache, or fetches
// them.

#ifndef QLORA_TOOLS_QLORA_HUBDATA_H
#define QLORA_TOOLS_QLORA_HUBDATA_H

#include <optional>
#include <span>
#include <string>

#include "runtime/Options/Options.h"

namespace qlora {

/// A split of a data set on the hub.
struct HubDataset {
  std::string name;
  std::string revision = {}; ///< empty: main
  std::string config = {};   ///< subset; empty: the default one
  std::string split = {};    ///< with its slice; empty: train
  std::string files = {}; ///< patterns instead of a split, separated by commas

  std::string reference() const;
};

/// Returns the options of data sets on the hub: dataset_name, ...
std::span<const OptionRow> hubDataRows();

/// Returns those that select rows to evaluate with.
std::span<const OptionRow> hubTestRows();

/// Values of the options; empty if not given.
struct HubDataKeys {
  std::string name, config, trainSplit, testSplit, revision;

  /// Reads each value from the flags, else from the entries of a YAML file.
  static HubDataKeys of(std::span<const OptionSetting> flags,
                        std::span<const YamlEntry> entries = {});
  /// Whether an option is given that only data sets on the hub have.
  bool selectsRows() const;
  /// Returns the data set `word`, OWNER/NAME or OWNER/NAME@REVISION, with these
  /// options. `isTest`: the split is that for evaluation.
  StatusOr<HubDataset> dataset(const std::string &word, bool isTest) const;
};

/// Whether a word for data is a name on the hub, not a path: OWNER/NAME or
/// OWNER/NAME@REVISION, without the ending of a data file, and not in `folder`.
bool isHubDataName(const std::string &word, const std::string &folder);

/// Replaces names by references in flags, and adds --dataset-name as an input.
Status addHubSettings(const HubDataKeys &keys,
                      std::vector<OptionSetting> &settings);

/// Replaces names by references in the entries of a YAML file in `folder`.
Status addHubEntries(const HubDataKeys &keys, const std::string &folder,
                     std::vector<YamlEntry> &entries);

/// Finds or fetches the data sets of the options, and writes their commits into
/// the options. `flags`: options of the command line. `folder`: the YAML
/// file's.
Status findHubData(std::span<const OptionSetting> flags,
                   const HubDataKeys &keys, const std::string &folder,
                   Options &options);

/// Returns the reference with its commit. Its files are in the cache then. A
/// misspelled name of a file in `folder` is pointed out.
StatusOr<std::string> findHubReference(const std::string &reference,
                                       const std::string &folder);

/// Returns the path of a data set's file, which is in the cache then.
StatusOr<std::string> findHubFile(const HubDataset &data);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_HUBDATA_H
