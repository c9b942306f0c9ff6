// SPDX-License-Identifier: MIT

// Other tools' keys that are translated, each with qlora's option.

#include "tools/qlora/ForeignRows.h"

#include <algorithm>

#include "runtime/Base/JsonText.h"
#include "runtime/Options/OptionTable.h"

namespace qlora {

using json = nlohmann::ordered_json;

static const ForeignRow kTranslatedRows[] = {
    {"adapter", "finetuning_type", "lora=lora qlora=lora none=full",
     "adapters are LoRA: write lora or qlora, or nothing for full "
     "fine-tuning"},
    {"use_peft", "finetuning_type", "true=lora false=full",
     "takes true or false"},
    {"quantization_bit", "load_in_4bit", "4=true",
     "write 4, or load_in_8bit: true instead"},
    {"quantization_type", "bnb_4bit_quant_type", kAny, ""},
    {"use_bnb_nested_quant double_quantization", "bnb_4bit_use_double_quant",
     kAny, ""},
    {"lora_target", "lora_target_modules", "all=all-linear *", ""},
    {"optimizer optim", "optim", "adamw_torch_8bit=adamw_bnb_8bit *",
     "torchao's 8-bit AdamW is replaced by that of bitsandbytes, which has the "
     "same blocks and codes"},
    {"bf16", "compute_dtype",
     "auto=bfloat16 full=bfloat16 true=bfloat16 false=float32 none=float32",
     "takes auto, true or false"},
    {"report_to", "report_to",
     "wandb=tensorboard all=tensorboard swanlab=none mlflow=none *",
     "writes TensorBoard files instead; upload them with wandb sync "
     "--sync-tensorboard"},
    {"pissa_init", "init_lora_weights", "true=pissa_niter_16 false=true",
     "takes true or false"},
    {"lora_model_dir", "adapter_name_or_path", kAny, ""},
    {"chat_template", "chat_template",
     "tokenizer_default= phi_3=phi3 qwen_25=qwen2.5 qwen3=axolotl-qwen3 "
     "mistral_v1=mistral "
     "tokenizer_default_fallback_chatml= *",
     "uses the tokenizer's template, or qlora's template of that name"},
    {"lora_modules_to_save", "modules_to_save", kAny, ""},
    {"lora_target_parameters", "target_parameters", kAny, ""},
    {"neat_packing", "packing", kAny, ""},
    {"max_new_tokens", "generation_max_new_tokens", kAny, ""},
    {"stage", "rl", "sft=none pt=none dpo=dpo kto=kto",
     "is not supported: write sft, pt, kto or dpo, or rl: orpo for ORPO"},
    {"pref_loss", "loss_type", "sigmoid hinge ipo simpo",
     "is not supported: write sigmoid, hinge, ipo or simpo. LLaMA-Factory's "
     "orpo has only answers in the loss; for TRL's, which also has prompts, "
     "replace stage with rl: orpo"},
    {"dpo_loss_type loss_type", "loss_type", "chunked_nll=nll *", ""},
    {"use_dft_loss", "loss_type", "true=dft false! none!",
     "takes true or false"},
    {"rl", "rl", "ipo=dpo simpo=cpo *", ""}, // translateObjective()
    {"additional_target", "modules_to_save", kAny, ""},
    {"peft_use_rslora", "use_rslora", kAny, ""},
    {"peft_layers_pattern", "layers_pattern", kAny, ""},
    {"float32", "compute_dtype", "true=float32 false! none!",
     "takes true or false"},
    {"use_tensorboard", "report_to", "true=tensorboard false! none!",
     "takes true or false"},
    {"activation_checkpointing", "gradient_checkpointing", kAny, ""},
    {"auto_resume_from_checkpoints", "resume_from_checkpoint",
     "true=latest false! none!", "takes true or false"},
    {"disable_gradient_checkpointing", "gradient_checkpointing",
     "true=false false! none!", "takes true or false"},
    {"disable_shuffling", "train_sampling_strategy",
     "true=sequential false! none!", "takes true or false"},
    {"early_stopping_steps", "early_stopping_patience", kAny, ""},
    {"test_split_size", "val_set_size", kAny, ""},
};

std::string foreignNameOf(const json &value) {
  std::string text = value.is_null()     ? "none"
                     : value.is_string() ? value.get<std::string>()
                                         : dumpJson(value);
  if (text.empty() || text == "null" || text == "None" || text == "~")
    return "none";
  if (text == "False" || text == "True" || text == "FALSE" || text == "TRUE")
    std::ranges::transform(text, text.begin(), ::tolower);
  return text;
}

/// Returns the rows of all tables.
static const ForeignTable &allRows() {
  static const ForeignTable rows = [] {
    ForeignTable all{kTranslatedRows};
    for (const ForeignTable &table : {ignoredRows(), refusedRows()})
      all.insert(all.end(), table.begin(), table.end());
    return all;
  }();
  return rows;
}

const ForeignRow *findForeignRow(const std::string &key) {
  for (const auto &rows : allRows())
    for (const ForeignRow &row : rows)
      if (std::ranges::count(splitWords(row.keys), key))
        return &row;
  return nullptr;
}

std::vector<std::string> foreignRowKeys() {
  std::vector<std::string> keys;
  for (const auto &rows : allRows())
    for (const ForeignRow &row : rows)
      for (const std::string_view key : splitWords(row.keys))
        keys.emplace_back(key);
  return keys;
}

bool isOffWord(const std::string &word) {
  return std::ranges::count(splitWords(kOff), word) != 0;
}

} // namespace qlora
