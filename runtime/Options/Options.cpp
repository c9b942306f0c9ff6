// SPDX-License-Identifier: MIT

// Resolves options from defaults, train.so, YAML and the command line.

#include "runtime/Options/Options.h"

#include <fmt/format.h>

#include <cassert>
#include <cmath>
#include <filesystem>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Options/DataValues.h"
#include "runtime/Options/OptionValue.h"
#include "runtime/Options/ParallelMesh.h"

namespace qlora {

using json = nlohmann::ordered_json;
namespace fs = std::filesystem;

/// Resolves paths in an option's value; returns other values unchanged.
static StatusOr<json> resolvedValue(const OptionRow &row, json value,
                                    const std::string &folder) {
  if (row.type == OptionType::kPaths)
    return resolvedPaths(value, folder);
  if (row.type != OptionType::kPath)
    return value;
  const std::string path = value.get<std::string>();
  for (std::string_view choice : splitWords(row.choices))
    if (path == choice)
      return value;
  return json(
      absolutePath(path, row.scope == OptionScope::kOutput ? "" : folder));
}

/// Formats a value as on a command line.
static std::string plainText(const json &value) {
  if (value.is_string())
    return value.get<std::string>();
  if (!value.is_array())
    return dumpJson(value);
  std::string text;
  for (const json &element : value)
    text += (text.empty() ? "" : ",") + plainText(element);
  return text;
}

/// Whether the option is an input file. A command line with two different files
/// for it is refused. For other options the last value wins, as in argparse.
static bool isInput(const OptionRow &row) {
  return row.type == OptionType::kPath && row.scope == OptionScope::kRun;
}

static constexpr const char *kFoundBatch = "per_device_train_batch_size";

static Status twoPaths(const std::string &first, const std::string &second) {
  return Status::invalid("takes one path, but got '{}' and '{}'; remove one",
                         first, second);
}

Status unknownOption(std::string_view name,
                     std::span<const std::string> known) {
  const std::string nearest = nearestName(name, known);
  if (nearest.empty())
    return Status::invalid("is not an option");
  return Status::invalid("is not an option; did you mean '{}'?", nearest);
}

Status refusedOption(const OptionName &name) {
  return Status::invalid(
      "has another meaning in other tools. Fix: write {}",
      name.row->scope == OptionScope::kOutput
          ? "--output-dir (the adapter to write) or --adapter-name-or-path "
            "(the adapter to start from)"
          : "--adapter-base-name (name of the base in adapter_config.json) or "
            "--model-name-or-path (the model to train)");
}

Options::Options(std::span<const OptionRow> table) : table(table) {
  for (const OptionRow &row : table) {
    auto value = parseOptionText(row, row.initial);
    assert(value.isOk() && "a default of the table does not parse");
    values[row.name].value = std::move(*value);
  }
}

Status Options::set(const OptionRow &row, json value, Source source) {
  Value &slot = values.find(std::string_view(row.name))->second;
  // For "auto", keep the value that the compiler chose.
  if (isCompiled && row.type == OptionType::kSize && value == kAutoSize)
    return Status::ok();
  if (isCompiled && row.name == std::string_view("parallel") &&
      value == std::string(kAutoParallel))
    return Status::ok();
  // The compiled batch size was found by auto_find_batch_size. The requested
  // batch size was the upper bound of that search.
  if (isCompiled && row.name == std::string_view(kFoundBatch) &&
      boolean("auto_find_batch_size") && value > slot.value)
    return Status::ok();
  if (isCompiled && row.scope == OptionScope::kProgram && value != slot.value)
    return Status::invalid(
        "the program was compiled with {} and cannot run with {}; compile it "
        "again with {} {}, or run it with {} {}",
        plainText(slot.value), plainText(value), flagSpelling(row.name),
        plainText(value), flagSpelling(row.name), plainText(slot.value));
  slot = {std::move(value), source};
  return Status::ok();
}

Status Options::applyRecorded(std::string_view text) {
  const json object = parseExact<json>(text);
  if (!object.is_object())
    return Status::dataLoss("the options recorded in the program are not a "
                            "JSON object; compile it again");
  for (const auto &[key, raw] : object.items()) {
    const OptionRow *row = findOption(table, key);
    if (!row) {
      facts[key] = raw;
      continue;
    }
    if (row->scope == OptionScope::kOutput)
      continue;
    auto value = parseOptionValue(*row, raw);
    if (!value.isOk())
      return value.status().withContext(
          fmt::format("option {} recorded in the program", key));
    QLORA_RETURN_IF_ERROR(set(*row, std::move(*value), Source::kRecorded));
  }
  isCompiled = true;
  return Status::ok();
}

Status Options::applyYamlEntry(YamlEntry entry, const std::string &folder,
                               const std::string &where,
                               std::map<std::string, std::string> &given) {
  const OptionName name = findOptionName(table, entry.key);
  const OptionRow *row = name.row;
  if (!row)
    return unknownOption(entry.key, allOptionNames({&table, 1}));
  if (name.isSwitch()) {
    std::string text =
        entry.value.is_string() ? entry.value.get<std::string>() : "";
    QLORA_ASSIGN_OR_RETURN(entry.value, switchText(name, text, row->name));
  }
  QLORA_ASSIGN_OR_RETURN(json value, parseOptionValue(*row, entry.value));
  if (!entry.value.is_null()) {
    QLORA_ASSIGN_OR_RETURN(value,
                           resolvedValue(*row, std::move(value), folder));
  }
  const auto [first, isNew] = given.emplace(
      row->name, fmt::format("'{}' in line {}", entry.spelling(), entry.line));
  if (!isNew && !contradictions.contains(row->name) &&
      value != this->value(row->name))
    return Status::invalid("is {}, but {} is {}, and both set {}; remove one",
                           plainText(value), first->second,
                           plainText(this->value(row->name)), row->name);
  // Report a conflict with the program later, unless a flag overrides it.
  if (Status status = set(*row, std::move(value), Source::kYaml);
      !status.isOk())
    contradictions[row->name] = status.withContext(where);
  return Status::ok();
}

Status Options::applyYaml(const std::string &path) {
  QLORA_ASSIGN_OR_RETURN(const auto entries, readYamlMap(path));
  return applyEntries(entries, path);
}

Status Options::applyEntries(std::span<const YamlEntry> entries,
                             const std::string &path, Problems problems) {
  std::string folder = fs::path(path).parent_path().string();
  std::map<std::string, std::string> given;
  // A file with most options was written by resolvedYaml(): users set only a
  // few. Earlier versions wrote names that are refused now.
  const bool isResolved = entries.size() > table.size() / 2;
  for (const YamlEntry &entry : entries) {
    std::string where =
        fmt::format("{}:{}: '{}'", path, entry.line, entry.spelling());
    const OptionName name = findOptionName(table, entry.key);
    Status status = name.isRefused() && !isResolved
                        ? refusedOption(name)
                        : applyYamlEntry(entry, folder, where, given);
    problems.add(status.withContext(where), entry.line);
  }
  return problems.status(path);
}

Status Options::applySettings(std::span<const OptionSetting> settings) {
  std::map<const OptionRow *, const OptionSetting *> paths;
  for (const OptionSetting &setting : settings) {
    bool isOurs = setting.row >= table.data() &&
                  setting.row < table.data() + table.size();
    if (!isOurs)
      continue;
    auto value = parseOptionText(*setting.row, setting.text);
    if (!value.isOk())
      return value.status().withContext(setting.written);
    value = resolvedValue(*setting.row, std::move(*value), "");
    if (!value.isOk())
      return value.status().withContext(setting.written);
    Status status;
    if (setting.row->type == OptionType::kPaths) {
      const bool isNew = paths.emplace(setting.row, &setting).second;
      if (!isNew)
        *value = joinedPaths(this->value(setting.row->name), *value);
    }
    if (isInput(*setting.row)) {
      auto [first, isNew] = paths.emplace(setting.row, &setting);
      if (!isNew && *value != this->value(setting.row->name))
        status = twoPaths(first->second->text, setting.text);
    }
    if (status.isOk())
      status = set(*setting.row, std::move(*value), Source::kCommandLine);
    if (!status.isOk())
      return status.withContext(setting.written);
    contradictions.erase(setting.row->name);
  }
  return Status::ok();
}

std::string Options::quantizedFormat() const {
  if (boolean("load_in_8bit"))
    return "llm_int8";
  if (boolean("load_in_4bit"))
    return text("bnb_4bit_quant_type");
  const std::string method = text("quant_method");
  return method == "none" ? "" : method;
}

const Options::Value &Options::find(std::string_view name) const {
  auto found = values.find(name);
  assert(found != values.end() && "no such option in the table");
  return found->second;
}

const json &Options::value(std::string_view name) const {
  return find(name).value;
}
Options::Source Options::source(std::string_view name) const {
  return find(name).source;
}
std::string Options::spelling(std::string_view name) const {
  return source(name) == Source::kYaml ? std::string(name) : flagSpelling(name);
}
bool Options::boolean(std::string_view name) const {
  return value(name).get<bool>();
}
int64_t Options::integer(std::string_view name) const {
  return value(name).get<int64_t>();
}
int64_t Options::steps(std::string_view name, int64_t totalSteps) const {
  const double number = this->number(name);
  return static_cast<int64_t>(
      number < 1 ? std::ceil(static_cast<double>(totalSteps) * number)
                 : number);
}
double Options::number(std::string_view name) const {
  return value(name).get<double>();
}
std::string Options::text(std::string_view name) const {
  return value(name).get<std::string>();
}
std::vector<std::string> Options::names(std::string_view name) const {
  return value(name).get<std::vector<std::string>>();
}
std::vector<int64_t> Options::lengths(std::string_view name) const {
  return value(name).get<std::vector<int64_t>>();
}
std::map<std::string, double> Options::numberMap(std::string_view name) const {
  return value(name).get<std::map<std::string, double>>();
}
std::map<std::string, std::string>
Options::textMap(std::string_view name) const {
  return value(name).get<std::map<std::string, std::string>>();
}
std::vector<WeightedPath> Options::paths(std::string_view name) const {
  return weightedPaths(value(name));
}

json Options::recorded(const json &facts) const {
  json object = facts.is_object() ? facts : json::object();
  for (const OptionRow &row : table) {
    const Value &option = find(row.name);
    bool isUnsetPath = isPath(row.type) && option.source == Source::kDefault;
    if (!isUnsetPath && row.scope != OptionScope::kOutput)
      object[row.name] = option.value;
  }
  return object;
}

const json &Options::recordedMetadata(std::string_view key) const {
  static const json none;
  auto found = facts.find(key);
  return found == facts.end() ? none : *found;
}

std::string Options::resolvedYaml() const {
  // JSON is valid YAML, and JSON quotes every text. dumpExact() preserves paths
  // that are not UTF-8, so that --config can read them again.
  std::string text;
  for (const OptionRow &row : table)
    text += fmt::format("{}: {}\n", row.name, dumpExact(find(row.name).value));
  return text;
}

} // namespace qlora
