// SPDX-License-Identifier: MIT

// Translates the keys in order, most of them with the table in ForeignRows.h.
// Adds the tool's defaults for absent keys.

#include "tools/qlora/ForeignConfigKeys.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "runtime/Options/OptionTable.h"
#include "tools/qlora/ForeignTranslation.h"

namespace qlora {

using json = nlohmann::ordered_json;

const json *Translation::find(std::string_view key) const {
  const auto found = std::ranges::find(entries, key, &YamlEntry::key);
  return found == entries.end() || found->value.is_null() ? nullptr
                                                          : &found->value;
}

/// Returns the option's value on the command line, or an empty text.
std::string Translation::flagOf(std::string_view option) const {
  std::string text;
  for (const OptionSetting &setting : request.flags)
    if (setting.row->name == option)
      text = setting.text;
  return text;
}

/// Returns the option's value from a flag, else from the entries translated so
/// far, else an empty text.
std::string Translation::valueOf(std::string_view option) const {
  std::string text = flagOf(option);
  const OptionRow *row = findOption(optionTable(), option);
  for (const YamlEntry &entry : file.entries)
    if (text.empty() && !entry.value.is_null() &&
        findOption(optionTable(), entry.key) == row)
      text = foreignNameOf(entry.value);
  return text;
}

/// Returns the objective as a value of --rl, from a flag, `rl` or `stage`.
std::string Translation::objective() const {
  if (const std::string flag = flagOf("rl"); !flag.empty())
    return flag;
  const json *rl = find("rl"), *loss = find("pref_loss");
  if (!rl)
    rl = find("stage");
  const std::string word = rl ? foreignNameOf(*rl) : "none";
  const bool isSimpo = loss && foreignNameOf(*loss) == "simpo";
  if (word == "simpo" || (word == "dpo" && isSimpo))
    return "cpo";
  if (word == "sft" || word == "pt")
    return "none";
  return word == "ipo" ? "dpo" : word;
}

Status Translation::translateBy(const ForeignRow &row, const YamlEntry &entry) {
  const std::string word = foreignNameOf(entry.value);
  const bool isPassedOver = !*row.option;
  const bool takesOthers = std::ranges::count(splitWords(row.values), "*") > 0;
  for (const std::string_view value : splitWords(row.values)) {
    if (value.ends_with('!') && value.substr(0, value.size() - 1) == word)
      return Status::ok();
    const size_t equals = value.find('=');
    if (value.substr(0, equals) != word)
      continue;
    if (!isPassedOver && equals != value.npos)
      add(entry, row.option, std::string(value.substr(equals + 1)));
    else if (!isPassedOver)
      add(entry, row.option, entry.value);
    if (!isPassedOver && takesOthers && *row.words && equals != value.npos)
      file.notes.push_back(fmt::format("{}:{}: '{}: {}': {}", path, entry.line,
                                       entry.key, word, row.words));
    return Status::ok();
  }
  if (!takesOthers)
    return refused(row.words);
  if (!isPassedOver)
    add(entry, row.option, entry.value);
  else if (!isOffWord(word))
    note(entry, "{}", row.words);
  return Status::ok();
}

/// Treats a key with value null as absent, unless null has a meaning there.
Status Translation::translateNull(const YamlEntry &entry) {
  if (entry.key == "max_length" && isOf(ForeignTool::kTrl))
    return refused("is null, with which TRL cuts no row: write the length of "
                   "the longest row");
  // transformers does not clip gradients if the value is null.
  if (entry.key == "max_grad_norm" &&
      (isOf(ForeignTool::kTrl) || isOf(ForeignTool::kLlamaFactory)))
    return add(entry, "max_grad_norm", "0"), Status::ok();
  // axolotl's resolve_dtype() (utils/config) detects the type if bf16 is null.
  if (entry.key == "bf16" && isOf(ForeignTool::kAxolotl))
    return translateRow(entry);
  return Status::ok();
}

Status Translation::translateRow(const YamlEntry &entry) {
  if (const ForeignRow *row = findForeignRow(entry.key))
    return translateBy(*row, entry);
  if (findOption(optionTable(), entry.key))
    return file.entries.push_back(entry), Status::ok();
  std::vector<std::string> known = translatedKeys();
  const std::span<const OptionRow> tables[] = {optionTable()};
  std::ranges::move(allOptionNames(tables), std::back_inserter(known));
  return unknownOption(entry.key, known);
}

std::vector<std::string> Translation::translatedKeys() {
  std::vector<std::string> keys = foreignRowKeys();
  for (const auto &[key, handler] : kHandlers)
    keys.emplace_back(key);
  return keys;
}

bool isForeignKey(const std::string &key) {
  return std::ranges::count(Translation::translatedKeys(), key) != 0;
}

/// Removes the underscores of an integer, as the tools' YAML reader does.
static json plainNumber(const json &value) {
  std::string text = value.is_string() ? value.get<std::string>() : "";
  if (text.find('_') == text.npos || !std::isdigit(text.front()) ||
      text.find_first_not_of("0123456789_") != text.npos)
    return value;
  std::erase(text, '_');
  return text;
}

Status Translation::translate(const YamlEntry &written) {
  if (written.value.is_null())
    return translateNull(written);
  YamlEntry entry = written;
  entry.value = plainNumber(entry.value);
  if (isParallelKey(entry.key))
    return Status::ok(); // translateParallel()
  const auto handler = kHandlers.find(entry.key);
  return handler == kHandlers.end() ? translateRow(entry)
                                    : (this->*handler->second)(entry);
}

/// Adds the tool's default, unless the file or a flag sets the option.
Status Translation::addDefault(const ForeignDefault &initial) {
  std::string value(initial.value);
  // axolotl does not drop long texts, but splits them into several rows.
  if (value == "drop" && data.hasPieces)
    value = data.formats.size() == 1 ? "split" : "raise";
  if (value == "2*lora_rank") {
    const std::string rank = valueOf("lora_r");
    int64_t number = 8;
    std::from_chars(rank.data(), rank.data() + rank.size(), number);
    value = std::to_string(2 * number);
  }
  const size_t before = file.entries.size();
  QLORA_RETURN_IF_ERROR(translate({std::string(initial.key), value, 0}));
  const auto isGiven = [&](const YamlEntry &entry) {
    const OptionRow *row = findOption(optionTable(), entry.key);
    return !flagOf(row->name).empty() ||
           std::any_of(file.entries.begin(), file.entries.begin() + before,
                       [&](const YamlEntry &other) {
                         return findOption(optionTable(), other.key) == row;
                       });
  };
  if (std::any_of(file.entries.begin() + before, file.entries.end(), isGiven))
    file.entries.resize(before);
  else if (file.entries.size() > before)
    taken.push_back(fmt::format("{} {}", initial.key, value));
  return Status::ok();
}

Status Translation::addDefaults() {
  for (const ForeignDefault &initial : defaultsOf(tool->tool, objective())) {
    const bool isLora = initial.key.starts_with("lora_");
    const bool findsBatch = valueOf("auto_find_batch_size") == "true";
    const bool isOfSteps = initial.key == "save_strategy";
    const bool isOfBlocks = initial.key == "bnb_4bit_use_double_quant";
    // The adapter from which a training starts decides its own shape.
    const bool isOfStart = isLora && initial.key != "lora_dropout" &&
                           !valueOf("adapter_name_or_path").empty();
    if ((isLora && valueOf("finetuning_type") == "full") || isOfStart ||
        (isOfBlocks && valueOf("load_in_4bit") != "true") ||
        (isOfSteps && !valueOf("save_steps").empty()) ||
        (findsBatch && initial.key == "micro_batch_size"))
      continue;
    QLORA_RETURN_IF_ERROR(addDefault(initial));
  }
  return Status::ok();
}

/// Refuses adapter options if the tool would train all weights. axolotl and TRL
/// do so unless the file asks for an adapter.
Status Translation::checkAdapter() const {
  static constexpr std::string_view kOfAdapters[] = {
      "lora_r", "lora_alpha", "lora_target_modules", "load_in_4bit",
      "load_in_8bit"};
  const bool isAxolotl = isOf(ForeignTool::kAxolotl);
  const json *adapter = find("adapter");
  if (isAxolotl && adapter && foreignNameOf(*adapter) == "qlora" &&
      valueOf("load_in_4bit") != "true")
    return Status::invalid("{}: 'adapter: qlora' needs 'load_in_4bit: true'; "
                           "add that, or write adapter: lora",
                           path);
  if ((!isAxolotl && !isOf(ForeignTool::kTrl)) ||
      find(isAxolotl ? "adapter" : "use_peft") ||
      !valueOf("finetuning_type").empty())
    return Status::ok();
  for (const YamlEntry &entry : file.entries) {
    const OptionRow *row = findOption(optionTable(), entry.key);
    if (entry.line != 0 && std::ranges::count(kOfAdapters, row->name) &&
        !isOffWord(foreignNameOf(entry.value)))
      return Status::invalid(
          "{}:{}: '{}' needs an adapter, but without {} {} trains all weights; "
          "add {} for an adapter, or remove '{}'",
          path, entry.line, entry.spelling(),
          isAxolotl ? "'adapter'" : "'use_peft'", nameOf(tool->tool),
          isAxolotl ? "adapter: lora" : "use_peft: true", entry.spelling());
  }
  return Status::ok();
}

/// Sets dropout to 0 for preference training, as the trainers of axolotl,
/// LLaMA-Factory and TRL do (TRL's disable_dropout).
void Translation::turnOffDropout() {
  const json *isOff = find("disable_dropout");
  if (objective() == "none" || (isOff && foreignNameOf(*isOff) == "false") ||
      !flagOf("lora_dropout").empty())
    return;
  for (YamlEntry &entry : file.entries)
    if (entry.key == "lora_dropout" && !isOffWord(foreignNameOf(entry.value))) {
      if (entry.line != 0)
        note(entry, "is turned off, as in preference training with {}",
             nameOf(tool->tool));
      entry.value = "0";
    }
  std::erase_if(taken, [](const std::string &text) {
    return text.starts_with("lora_dropout");
  });
}

void Translation::noteTool() {
  std::string text =
      fmt::format("{}: is read as a file for {} ('{}' in line {})", path,
                  nameOf(tool->tool), tool->key, tool->line);
  if (!taken.empty())
    text += fmt::format(", with its defaults: {}", fmt::join(taken, ", "));
  file.notes.insert(file.notes.begin(), text);
}

/// Applies what holds for all files of the tool.
Status Translation::applyTool() {
  QLORA_RETURN_IF_ERROR(checkAdapter());
  QLORA_RETURN_IF_ERROR(addDefaults());
  turnOffDropout();
  file.hasPeftTargets = isOf(ForeignTool::kTrl) &&
                        valueOf("finetuning_type") != "full" &&
                        valueOf("lora_target_modules").empty() &&
                        valueOf("adapter_name_or_path").empty();
  noteTool();
  file.isOfTool = true;
  return checkShards();
}

/// Adds the options of DeepSpeed and FSDP. FSDP's activation_checkpointing
/// replaces gradient_checkpointing: false, as in the tools.
void Translation::addParallel(std::vector<YamlEntry> options) {
  const auto isCheckpointing = [](const YamlEntry &entry) {
    return entry.key == "gradient_checkpointing";
  };
  if (std::ranges::any_of(options, isCheckpointing))
    std::erase_if(file.entries, isCheckpointing);
  file.hasOffload = std::ranges::any_of(
      options, [](const YamlEntry &entry) { return entry.key == "offload"; });
  std::ranges::move(options, std::back_inserter(file.entries));
}

ForeignFile Translation::run() {
  auto found = toolOf(entries, path);
  if (found.isOk())
    tool = *found;
  for (const YamlEntry &entry : entries)
    file.problems.add(translate(entry).withContext(fmt::format(
                          "{}:{}: '{}'", path, entry.line, entry.key)),
                      entry.line);
  // A refused key often decides to which tool the file belongs.
  if (file.problems.isEmpty())
    file.problems.add(found.status());
  auto parallel = translateParallel(entries, path, request.ranks);
  file.problems.add(parallel.status());
  if (parallel.isOk())
    addParallel(std::move(*parallel));
  addData();
  // What is wrong with a tool's file as a whole may follow from a refused key.
  if (tool && file.problems.isEmpty())
    file.problems.add(applyTool());
  return std::move(file);
}

ForeignFile translateForeignConfigKeys(const ForeignRequest &request) {
  return Translation(request).run();
}

} // namespace qlora
