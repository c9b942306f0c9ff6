// SPDX-License-Identifier: MIT

// The keys as a table, and the few whose values have structure.

#include "tools/qlora/PeerKeys.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "runtime/Base/OptionTable.h"
#include "tools/qlora/PeerData.h"

namespace qlora {

using nlohmann::json;

namespace {
struct PeerRow {
  const char *keys; ///< separated by spaces
  /// What the values are for; empty: the key is passed over.
  const char *option;
  /// Separated by spaces: "a=b" is b for us, "a" stays a, "*" is any other,
  /// which stays what it is. What is not among them is refused.
  const char *values;
  const char *words; ///< what it would do, and why not or what else to do
};
} // namespace

static constexpr const char *kOff = "false none no 0 0.0 [] {}";
static constexpr const char *kAny = "*";

static const PeerRow kRows[] = {
    // Translated.
    {"adapter", "finetuning_type", "lora=lora qlora=lora none=full",
     "adapters are LoRA: write lora or qlora, or nothing for full "
     "fine-tuning"},
    {"quantization_bit", "load_in_4bit", "4=true none=false",
     "write 4, or load_in_8bit: true in its place"},
    {"quantization_type", "bnb_4bit_quant_type", kAny, ""},
    {"double_quantization", "bnb_4bit_use_double_quant", kAny, ""},
    {"lora_target", "lora_target_modules", "all=all-linear *", ""},
    {"optimizer optim", "optim", kAny, ""},
    {"bf16", "compute_dtype",
     "auto=bfloat16 full=bfloat16 true=bfloat16 false=float32 none=float32",
     "takes auto, true or false"},
    {"pure_bf16", "compute_dtype", "true=bfloat16 false=float32", ""},
    {"ddp_timeout", "ddp_timeout", "180000000=1000000 *", ""},
    {"report_to", "report_to",
     "wandb=tensorboard all=tensorboard swanlab=none mlflow=none *",
     "nothing is sent: TensorBoard's files are written, which wandb sync "
     "--sync-tensorboard sends"},
    {"pissa_init", "init_lora_weights",
     "true=pissa_niter_16 false=true none=true", "takes true or false"},
    {"pissa_iter", "", "16",
     "is the number in init_lora_weights: write pissa_niter_N, or pissa for a "
     "full SVD, in the place of pissa_init"},
    {"pissa_convert", "", kAny,
     "is always done: what comes out is a plain LoRA of the model"},
    {"lora_model_dir", "adapter_name_or_path", kAny, ""},
    {"chat_template", "chat_template",
     "tokenizer_default= phi_3=phi3 qwen_25=qwen2.5 mistral_v1=mistral "
     "tokenizer_default_fallback_chatml= *",
     "the template of the tokenizer, or qlora's of that name, is used"},
    {"quantization_method", "", "bnb bitsandbytes none",
     "only formats of bitsandbytes are quantised to under this key: write bnb, "
     "or quant_method: fp8 or mxfp4"},
    {"lora_modules_to_save", "modules_to_save", kAny, ""},
    {"train_on_inputs", "completion_only_loss", "true=false false=true", ""},
    {"evals_per_epoch", "eval_strategy", "1=epoch 0=no none=no",
     "several evaluations of an epoch are set in steps: eval_strategy: steps "
     "and eval_steps"},
    {"saves_per_epoch", "save_strategy", "1=epoch 0=no none=no",
     "several checkpoints of an epoch are set in steps: save_steps"},
    {"eval_on_start", "", "*",
     "the first evaluation is before training "
     "anyway"},

    // Passed over: speed and memory that are decided here by the compiler, or
    // what is not a property of the training.
    {"flash_attention flash_attn xformers_attention sdp_attention "
     "attn_implementation use_unsloth enable_liger_kernel liger_rope "
     "liger_rms_norm liger_glu_activation liger_fused_linear_cross_entropy "
     "torch_compile lora_mlp_kernel lora_qkv_kernel lora_o_kernel "
     "use_liger_kernel use_liger",
     "", kAny, "chooses kernels: the compiler chooses them here"},
    {"tf32 ddp ddp_find_unused_parameters gradient_checkpointing_kwargs "
     "dataloader_num_workers dataloader_pin_memory group_by_length "
     "pad_to_sequence_len eval_sample_packing dataset_prepared_path "
     "overwrite_cache low_cpu_mem_usage device_map use_fast_tokenizer "
     "bnb_4bit_quant_storage remove_unused_columns "
     "dataset_train_split dataset_test_split",
     "", kAny, "is about speed or memory of another program: not needed here"},
    {"model_type tokenizer_type is_llama_derived_model "
     "is_mistral_derived_model is_qwen_derived_model trust_remote_code",
     "", kAny,
     "names classes of transformers: config.json says what the "
     "model is"},
    {"use_peft lora_task_type peft_type", "", kAny,
     "asks for an adapter of a language model: nothing else is trained here"},
    {"template chat_template_strategy", "", kAny,
     "names a chat template: the tokenizer's own is used; chat_template gives "
     "another one, as chat_template: llama3 for a model without one"},
    {"wandb_project wandb_entity wandb_watch wandb_name wandb_run_id "
     "wandb_log_model plot_loss debug "
     "save_only_model save_safetensors",
     "", kAny, "is about logs and files: metrics.jsonl is written"},
    {"hub_strategy", "", kAny,
     "is when to upload: with push_to_hub it is done once, at the end"},
    {"hub_token push_to_hub_token", "", kOff,
     "a token in a file is read by others: run hf auth login, or set HF_TOKEN"},
    {"do_train", "", "true", "trains nothing: leave it out"},
    {"stage", "rl", "sft=none dpo=dpo kto=kto",
     "is trained by other programs: write sft, kto or dpo, with pref_loss orpo "
     "for ORPO"},
    {"pref_loss", "loss_type", "sigmoid",
     "is a loss that is not there: write sigmoid or orpo"},
    {"ref_model ref_model_adapters ref_model_quantization_bit "
     "precompute_ref_log_probs sync_ref_model",
     "", kOff,
     "is about a second model: the reference is the base without its adapter"},
    {"max_prompt_length max_completion_length", "", kOff,
     "cuts parts of a row: rows are cut at max_length"},
    {"deepspeed fsdp fsdp_config", "", kOff,
     "shards the model over GPUs, which is not supported: leave it out, and "
     "say --gpus N for data parallelism"},

    // What changes the result, and is allowed only where it is off.
    {"do_eval", "", kAny, "is decided by validation_file and eval_strategy"},
    {"fp16", "", kOff, "float16 is not supported: write bf16: true"},
    {"dataset_name dataset_config", "", kOff,
     "names a data set of the hub: download it and name its JSONL file with "
     "train_file"},
    {"max_samples", "", kOff,
     "would train on the first rows alone: write "
     "them into a file of their own, or give "
     "max_steps"},
    {"do_predict predict_with_generate "
     "loraplus_lr_embedding use_galore use_badam "
     "lora_fan_in_fan_out resize_vocab unfrozen_parameters relora_steps "
     "auto_resume_from_checkpoints strict label_smoothing dpo_label_smoothing "
     "rl_label_smoothing pref_ftx simpo_gamma rpo_alpha ld_alpha use_weighting "
     "dpo_use_weighting",
     "", kOff,
     "changes the training in a way that is not supported: leave it "
     "out"},
};

/// As the table's lists have it: false, not False.
static std::string wordOf(const json &value) {
  std::string text = value.is_null()     ? "none"
                     : value.is_string() ? value.get<std::string>()
                                         : value.dump();
  if (text.empty() || text == "null" || text == "None" || text == "~")
    return "none";
  if (text == "False" || text == "True" || text == "FALSE" || text == "TRUE")
    std::ranges::transform(text, text.begin(), ::tolower);
  return text;
}

static const PeerRow *findRow(const std::string &key) {
  for (const PeerRow &row : kRows)
    if (std::ranges::count(splitWords(row.keys), key))
      return &row;
  return nullptr;
}

static bool isOff(const std::string &word) {
  return std::ranges::count(splitWords(kOff), word) != 0;
}

namespace {
/// One file's translation.
class Translation {
public:
  Translation(std::span<const YamlEntry> entries, const std::string &path,
              std::vector<std::string> &notes)
      : entries(entries), path(path), notes(notes) {}

  StatusOr<std::vector<YamlEntry>> run();

private:
  Status translate(const YamlEntry &entry);
  Status translateBy(const PeerRow &row, const YamlEntry &entry);
  Status translateNames(const YamlEntry &entry);
  Status translateData(const YamlEntry &entry, const char *option);
  void dropUnset();
  Status refused(std::string_view words) const {
    return Status::invalid("{}", words);
  }
  void add(const YamlEntry &entry, const char *option, json value) {
    translated.push_back({option, std::move(value), entry.line});
  }
  const json *find(std::string_view key) const;

  std::span<const YamlEntry> entries;
  const std::string &path;
  std::vector<std::string> &notes;
  std::vector<YamlEntry> translated;
};
} // namespace

const json *Translation::find(std::string_view key) const {
  const auto found = std::ranges::find(entries, key, &YamlEntry::key);
  return found == entries.end() ? nullptr : &found->value;
}

Status Translation::translateBy(const PeerRow &row, const YamlEntry &entry) {
  const std::string word = wordOf(entry.value);
  const bool isPassedOver = !*row.option;
  const bool takesOthers = std::ranges::count(splitWords(row.values), "*") > 0;
  for (const std::string_view value : splitWords(row.values)) {
    const size_t equals = value.find('=');
    if (value.substr(0, equals) != word)
      continue;
    if (!isPassedOver && equals != value.npos)
      add(entry, row.option, std::string(value.substr(equals + 1)));
    else if (!isPassedOver)
      add(entry, row.option, entry.value);
    if (!isPassedOver && takesOthers && *row.words && equals != value.npos)
      notes.push_back(fmt::format("{}:{}: '{}: {}': {}", path, entry.line,
                                  entry.key, word, row.words));
    return Status::ok();
  }
  if (!takesOthers)
    return refused(row.words);
  if (!isPassedOver)
    add(entry, row.option, entry.value);
  else if (!isOff(word))
    notes.push_back(
        fmt::format("{}:{}: '{}' {}", path, entry.line, entry.key, row.words));
  return Status::ok();
}

/// LLaMA-Factory: "q_proj,v_proj", where a text alone is a regular expression.
Status Translation::translateNames(const YamlEntry &entry) {
  std::string names = wordOf(entry.value);
  std::ranges::replace(names, ',', ' ');
  json list = json::array();
  for (const std::string_view name : splitWords(names))
    list.push_back(name);
  return add(entry, "lora_target_modules", std::move(list)), Status::ok();
}

Status Translation::translateData(const YamlEntry &entry, const char *option) {
  const auto base = std::filesystem::path(path).parent_path().string();
  const json *folder = find("dataset_dir");
  QLORA_ASSIGN_OR_RETURN(
      json paths,
      entry.key.ends_with("datasets")
          ? pathsOfDatasets(entry.value)
          : pathsOfNames(wordOf(entry.value), base,
                         folder && folder->is_string()
                             ? folder->get<std::string>()
                             : "data"));
  add(entry, option, std::move(paths));
  if (entry.value.is_array() && std::ranges::any_of(entry.value, [](auto &set) {
        return set.is_object() && set.contains("type");
      }))
    notes.push_back(fmt::format("{}:{}: 'type' of a data set is not needed: "
                                "the form of a row is seen from its keys",
                                path, entry.line));
  return Status::ok();
}

Status Translation::translate(const YamlEntry &entry) {
  if (entry.key == "dataset_dir")
    return Status::ok(); // read with 'dataset'
  if (entry.key == "datasets" || entry.key == "dataset")
    return translateData(entry, "train_file");
  if (entry.key == "test_datasets" || entry.key == "eval_dataset")
    return translateData(entry, "validation_file");
  // LLaMA-Factory has ORPO as a loss of its stage dpo.
  const json *loss = find("pref_loss");
  if (loss && wordOf(*loss) == "orpo") {
    if (entry.key == "stage" && wordOf(entry.value) == "dpo")
      return add(entry, "rl", "orpo"), Status::ok();
    if (entry.key == "pref_loss")
      return Status::ok();
  }
  if (entry.key == "special_tokens") {
    for (const auto &[token, text] : entry.value.items())
      if (token != "pad_token")
        return Status::invalid("would change the tokenizer ({}): write it "
                               "into tokenizer_config.json",
                               token);
    return Status::ok(); // nothing is padded with a token
  }
  if (entry.key == "lora_target" &&
      wordOf(entry.value).find(',') != std::string::npos)
    return translateNames(entry);
  if (const PeerRow *row = findRow(entry.key))
    return translateBy(*row, entry);
  if (findOption(optionTable(), entry.key))
    return translated.push_back(entry), Status::ok();
  std::vector<std::string> known;
  for (const PeerRow &row : kRows)
    for (const std::string_view key : splitWords(row.keys))
      known.emplace_back(key);
  const std::span<const OptionRow> tables[] = {optionTable()};
  std::ranges::move(allOptionNames(tables), std::back_inserter(known));
  const std::string nearest = nearestName(entry.key, known);
  if (nearest.empty())
    return Status::invalid("is not an option");
  return Status::invalid("is not an option; did you mean '{}'?", nearest);
}

StatusOr<std::vector<YamlEntry>> Translation::run() {
  for (const YamlEntry &entry : entries)
    if (Status status = translate(entry); !status.isOk())
      return status.withContext(
          fmt::format("{}:{}: '{}'", path, entry.line, entry.key));
  dropUnset();
  return std::move(translated);
}

/// A key without a value sets nothing, there, where another one does.
void Translation::dropUnset() {
  const std::span<const OptionRow> table = optionTable();
  std::map<const OptionRow *, int> given;
  for (const YamlEntry &entry : translated)
    ++given[findOption(table, entry.key)];
  std::erase_if(translated, [&](const YamlEntry &entry) {
    return entry.value.is_null() && given[findOption(table, entry.key)] > 1;
  });
}

StatusOr<std::vector<YamlEntry>>
translatePeerKeys(std::span<const YamlEntry> entries, const std::string &path,
                  std::vector<std::string> &notes) {
  return Translation(entries, path, notes).run();
}

} // namespace qlora
