// SPDX-License-Identifier: MIT

// Table of other tools' keys, each with qlora's option and the accepted values.

#include "tools/qlora/ForeignRows.h"

#include <algorithm>

#include "runtime/Base/JsonText.h"
#include "runtime/Options/OptionTable.h"

namespace qlora {

using json = nlohmann::ordered_json;

static constexpr const char *kOff = "false none no 0 0.0 [] {}";
static constexpr const char *kAny = "*";

static const ForeignRow kForeignRows[] = {
    // Keys that are translated to an option.
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
    {"optimizer optim", "optim", kAny, ""},
    {"bf16", "compute_dtype",
     "auto=bfloat16 full=bfloat16 true=bfloat16 false=float32 none=float32",
     "takes auto, true or false"},
    {"report_to", "report_to",
     "wandb=tensorboard all=tensorboard swanlab=none mlflow=none *",
     "writes TensorBoard files instead; upload them with wandb sync "
     "--sync-tensorboard"},
    {"pissa_init", "init_lora_weights", "true=pissa_niter_16 false=true",
     "takes true or false"},
    {"pissa_iter", "", "16",
     "is part of init_lora_weights: replace pissa_init with pissa_niter_N, or "
     "pissa for a full SVD"},
    {"pissa_convert", "", kAny,
     "is always done: the result is a plain LoRA of the model"},
    {"lora_model_dir", "adapter_name_or_path", kAny, ""},
    {"chat_template", "chat_template",
     "tokenizer_default= phi_3=phi3 qwen_25=qwen2.5 mistral_v1=mistral "
     "tokenizer_default_fallback_chatml= *",
     "uses the tokenizer's template, or qlora's template of that name"},
    {"quantization_method", "", "bnb bitsandbytes none",
     "supports only bitsandbytes: write bnb, or quant_method: fp8 or mxfp4"},
    {"lora_modules_to_save", "modules_to_save", kAny, ""},
    {"lora_target_parameters", "target_parameters", kAny, ""},
    {"neat_packing", "packing", kAny, ""},
    {"max_new_tokens", "generation_max_new_tokens", kAny, ""},
    {"eval_on_start", "", "*",
     "is not needed: the first evaluation runs before training"},

    // Ignored keys: choices that qlora's compiler makes for speed and memory,
    // and keys that do not affect the training.
    {"flash_attention flash_attn xformers_attention sdp_attention "
     "attn_implementation use_unsloth enable_liger_kernel liger_rope "
     "liger_rms_norm liger_glu_activation liger_fused_linear_cross_entropy "
     "torch_compile lora_mlp_kernel lora_qkv_kernel lora_o_kernel "
     "use_liger_kernel use_liger",
     "", kAny, "chooses kernels: here the compiler chooses them"},
    {"tf32 ddp ddp_find_unused_parameters gradient_checkpointing_kwargs "
     "dataloader_num_workers dataloader_pin_memory "
     "pad_to_sequence_len eval_sample_packing dataset_prepared_path "
     "overwrite_cache low_cpu_mem_usage device_map use_fast_tokenizer "
     "bnb_4bit_quant_storage remove_unused_columns",
     "", kAny, "tunes speed or memory of the other tool: not needed"},
    {"model_type tokenizer_type is_llama_derived_model "
     "is_mistral_derived_model is_qwen_derived_model trust_remote_code",
     "", kAny, "names classes of transformers: config.json names the model"},
    {"lora_task_type", "", "CAUSAL_LM", "is not supported: write CAUSAL_LM"},
    {"peft_type", "", "LORA lora", "is not supported: write LORA"},
    {"wandb_project wandb_entity wandb_watch wandb_name wandb_run_id "
     "wandb_log_model plot_loss debug "
     "save_only_model save_safetensors",
     "", kAny, "configures logs and files: metrics.jsonl is written"},
    {"hub_strategy", "", kAny,
     "sets when to upload: push_to_hub uploads once, at the end"},
    {"hub_token push_to_hub_token", "", kOff,
     "is a secret, which others may read in a file: run hf auth login, or set "
     "HF_TOKEN"},
    {"do_train", "", "true", "trains nothing: remove it"},
    {"stage", "rl", "sft=none dpo=dpo kto=kto",
     "is not supported: write sft, kto or dpo, or rl: orpo for ORPO"},
    {"pref_loss", "loss_type", "sigmoid hinge ipo",
     "is not supported: write sigmoid, hinge or ipo. LLaMA-Factory's orpo has "
     "only answers in the loss; for TRL's, which also has prompts, replace "
     "stage with rl: orpo"},
    // A list of losses in axolotl and TRL, which add them.
    {"dpo_loss_type loss_type", "loss_type",
     "[\"sigmoid\"]=sigmoid [\"hinge\"]=hinge [\"ipo\"]=ipo *", ""},
    {"rl", "rl", "ipo=dpo *", ""}, // translateObjective()
    {"ref_model ref_model_adapters ref_model_quantization_bit "
     "precompute_ref_log_probs sync_ref_model",
     "", kOff,
     "configures a second model: here the reference is the base without its "
     "adapter"},
    {"max_prompt_length max_completion_length", "", kOff,
     "cuts prompts or answers separately: here rows are cut at max_length"},
    {"enable_thinking", "", "true",
     "removes thoughts from answers, which is not supported: write true"},
    {"mix_strategy", "", "concat",
     "interleaves data sets, which is not supported: write concat, and weights "
     "after the paths of train_file"},

    // Keys that would change the result: accepted only if they are off. The
    // exception is do_eval, which is ignored.
    {"do_eval", "", kAny,
     "is ignored: validation_file and eval_strategy decide"},
    {"fp16", "", kOff, "float16 is not supported: write bf16: true"},
    {"pure_bf16", "", kOff,
     "keeps trainable parameters in bfloat16, which is not supported: write "
     "bf16: true"},
    {"chat_template_jinja", "", kOff,
     "is a Jinja text: write it into a file, and name that file with "
     "chat_template"},
    {"generation_num_beams num_beams", "", "1",
     "searches with several beams, which is not supported: write 1"},
    {"do_sample", "", kOff,
     "samples answers, but training generates greedily: write false"},
    {"do_predict loraplus_lr_embedding use_galore use_badam "
     "mask_history group_by_length interleave_probs default_system tool_format "
     "shift_attn "
     "lora_fan_in_fan_out lr_quadratic_warmup cosine_constant_lr_ratio "
     "resize_vocab unfrozen_parameters relora_steps "
     "auto_resume_from_checkpoints strict label_smoothing dpo_label_smoothing "
     "rl_label_smoothing pref_ftx simpo_gamma rpo_alpha ld_alpha use_weighting "
     "dpo_use_weighting",
     "", kOff, "changes the training in an unsupported way: remove it"},
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

const ForeignRow *findForeignRow(const std::string &key) {
  for (const ForeignRow &row : kForeignRows)
    if (std::ranges::count(splitWords(row.keys), key))
      return &row;
  return nullptr;
}

std::vector<std::string> foreignRowKeys() {
  std::vector<std::string> keys;
  for (const ForeignRow &row : kForeignRows)
    for (const std::string_view key : splitWords(row.keys))
      keys.emplace_back(key);
  return keys;
}

bool isOffWord(const std::string &word) {
  return std::ranges::count(splitWords(kOff), word) != 0;
}

} // namespace qlora
