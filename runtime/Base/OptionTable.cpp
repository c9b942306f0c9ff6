// SPDX-License-Identifier: MIT

// The option table: name, type, default, use, section, help and aliases.

#include "runtime/Base/OptionTable.h"

namespace qlora {

namespace {

using enum OptionType;
constexpr OptionScope kProgram = OptionScope::kProgram;
constexpr OptionScope kRun = OptionScope::kRun;
constexpr OptionScope kOutput = OptionScope::kOutput;

constexpr const char *kFiles = "Files";
constexpr const char *kLora = "LoRA";
constexpr const char *kQuantization = "Quantisation";
constexpr const char *kShape = "Batch, length and memory";
constexpr const char *kSchedule = "Optimizer and schedule";
constexpr const char *kData = "Data";
constexpr const char *kReport = "Evaluation and logging";
constexpr const char *kSaving = "Checkpoints and stopping";

const OptionRow kRows[] = {
    {"model_name_or_path", kPath, "", kRun, kFiles, "Hugging Face model folder",
     "base_model model"},
    {"train_file", kPaths, "", kRun, kFiles,
     "JSONL, JSON, CSV or Parquet file, compressed or not, or a folder of "
     "them; or a safetensors file of tokens that is read in order. Given "
     "several times, all are mixed: with :2 behind it each row comes twice in "
     "an epoch, with :0.5 half of the rows"},
    {"validation_file", kPaths, "", kRun, kFiles,
     "the same, without weights, for evaluation before, during and after "
     "training"},
    {"adapter_name_or_path", kPath, "", kRun, kFiles,
     "PEFT adapter folder to start from"},
    {"output_dir", kPath, "out", kOutput, kFiles,
     "folder for the adapter, metrics and the resolved options",
     "adapter_path out_dir"},
    {"base_model_name_or_path", kString, "", kRun, kFiles,
     "name written into adapter_config.json instead of the model folder"},
    {"push_to_hub", kBool, "false", kOutput, kFiles,
     "upload the adapter to the Hugging Face hub once it is written, with the "
     "token of hf auth login or HF_TOKEN"},
    {"hub_model_id", kString, "", kOutput, kFiles,
     "its name there, NAME or OWNER/NAME; without it the output folder's name"},
    {"hub_private_repo", kBool, "false", kOutput, kFiles,
     "make it a private one where it is not there yet"},

    {"finetuning_type", kChoice, "lora", kProgram, kLora,
     "lora: adapters beside the model; full: all weights of the model, which "
     "has to be one that is not quantised, and a model folder comes out",
     "", "lora full"},
    {"lora_r", kInt, "8", kProgram, kLora, "rank of the adapter's matrices",
     "lora_rank r rank", "", 1, 65536},
    {"lora_alpha", kFloat, "8", kProgram, kLora,
     "the adapter is scaled by alpha / rank", "", "", 0},
    {"lora_dropout", kFloat, "0", kProgram, kLora,
     "probability that an input of an adapter is dropped", "", "", 0, 0.999},
    {"lora_target_modules", kTargets, "all-linear", kProgram, kLora,
     "modules that get an adapter: the ends of their names, a regular "
     "expression for the whole name, or all-linear",
     "target_modules lora_target lora_target_linear=all-linear"},
    {"target_parameters", kNames, "[]", kProgram, kLora,
     "weights of experts that get an adapter: the ends of their names, such as "
     "mlp.experts.gate_up_proj"},
    {"exclude_modules", kTargets, "[]", kProgram, kLora,
     "modules that get none although --lora-target-modules has them, in the "
     "same forms",
     "lora_exclude_modules"},
    {"layers_to_transform", kLengths, "[]", kProgram, kLora,
     "numbers of the layers whose modules get an adapter; without it all do; "
     "for --lora-target-modules as a list of names",
     "peft_layers_to_transform", "", 0, 1 << 20},
    {"layers_pattern", kNames, "[]", kProgram, kLora,
     "what comes before these numbers in the names of modules, such as layers"},
    {"use_rslora", kBool, "false", kProgram, kLora,
     "the adapter is scaled by alpha / sqrt(rank)"},
    {"use_dora", kBool, "false", kProgram, kLora,
     "DoRA: the length of each output's weights is trained apart from their "
     "direction",
     "peft_use_dora lora_use_dora"},
    {"lora_bias", kBool, "false", kProgram, kLora,
     "B of each adapter has a bias"},
    {"bias", kChoice, "none", kProgram, kLora,
     "biases of the model that are trained and saved with the adapter: none, "
     "those of modules with an adapter, or all",
     "", "none lora_only all"},
    {"loraplus_lr_ratio", kFloat, "1", kProgram, kLora,
     "LoRA+: the learning rate of each B, and of what has one dimension, as a "
     "multiple of that of A",
     "", "", 0},
    {"lora_rank_pattern", kNumberMap, "{}", kProgram, kLora,
     "rank of single modules, {name: rank}; the first match counts", "rank_pattern", "", 1, 65536},
    {"lora_alpha_pattern", kNumberMap, "{}", kProgram, kLora,
     "alpha of single modules, {name: alpha}; the first match counts", "alpha_pattern", "", 0},
    {"fan_in_fan_out", kBool, "false", kProgram, kLora,
     "adapted weights are [in, out], as in GPT-2: known without being said, and "
     "what adapter_config.json gets"},
    {"modules_to_save", kNames, "[]", kProgram, kLora,
     "modules trained in full and saved with the adapter"},
    {"trainable_token_indices", kTokens, "[]", kProgram, kLora,
     "words, by their number, whose rows of the input embedding are trained and "
     "saved with the adapter; with tied weights also those of the output head",
     "peft_trainable_token_indices", "", 0, (1 << 24) - 1},
    {"init_lora_weights", kChoice, "true", kProgram, kLora,
     "true: A uniform, B zero; gaussian: A normal, B zero; false: both uniform; "
     "pissa, olora: the largest factors of the weight, by a full SVD (hours for "
     "8B) or by QR, and the base is what is left; pissa_niter_N: PiSSA by N "
     "subspace iterations, in seconds; loftq: factors of what quantisation "
     "leaves. With pissa and olora the adapter at the end is a plain LoRA of "
     "the model, of rank 2 r",
     "peft_init_lora_weights",
     "true false gaussian pissa pissa_niter_N olora loftq"},
    {"loftq_config", kNumberMap, "{}", kProgram, kLora,
     "of LoftQ: {loftq_bits: 4, loftq_iter: 1}, which is what there is", "", "",
     1, 8},
    {"neftune_noise_alpha", kFloat, "0", kProgram, kLora,
     "NEFTune: in training embeddings get uniform noise of alpha / sqrt(tokens "
     "of the longest row in a micro-batch x columns); 0: none",
     "noisy_embedding_alpha", "", 0, 1e6},

    {"load_in_4bit", kBool, "false", kProgram, kQuantization,
     "store frozen linear weights in 4 bits"},
    {"load_in_8bit", kBool, "false", kProgram, kQuantization,
     "store frozen linear weights in 8 bits, as LLM.int8 does"},
    {"llm_int8_activations", kChoice, "dequantized", kProgram, kQuantization,
     "what multiplies with weights of 8 bits. dequantized: activations as they "
     "are, and numbers that the weights stand for; int8: each row of activations "
     "rounded to 8 bits too, forward, as bitsandbytes does on GPUs",
     "", "dequantized int8"},
    {"llm_int8_threshold", kFloat, "6", kProgram, kQuantization,
     "of these, columns in which some activation of a micro-batch is at least so "
     "large are multiplied as they are; 0: none",
     "", "", 0, 65504},
    {"quantize_moe_experts", kBool, "false", kProgram, kQuantization,
     "store the weights of experts in 4 bits too, where linears are"},
    {"bnb_4bit_quant_type", kChoice, "nf4", kProgram, kQuantization,
     "code book of 4-bit weights", "", "nf4 fp4"},
    {"quant_method", kChoice, "none", kProgram, kQuantization,
     "store frozen linear weights in a format that is not bitsandbytes': fp8, "
     "E4M3 with a scale for each row; mxfp4, E2M1 in blocks of 32",
     "", "none fp8 mxfp4"},
    {"bnb_4bit_use_double_quant", kBool, "false", kProgram, kQuantization,
     "quantise the block scales too"},
    {"bnb_4bit_blocksize", kInt, "64", kProgram, kQuantization,
     "elements that share a scale: a power of two", "", "", 64, 4096},
    {"compute_dtype", kChoice, "bfloat16", kProgram, kQuantization,
     "type of activations",
     "bnb_4bit_compute_dtype dtype torch_dtype bf16=bfloat16|float32",
     "bfloat16 float32 bf16=bfloat16 fp32=float32 f32=float32"},
    {"activation_dtype_for_lora", kChoice, "auto", kProgram, kQuantization,
     "what an adapter's input is kept in for its gradient, where nothing else "
     "needs it; auto: as --compute-dtype; int8: 8 bits and a scale per token",
     "", "auto int8"},

    {"per_device_train_batch_size", kInt, "8", kProgram, kShape,
     "rows of a micro-batch, on each rank", "micro_batch_size batch_size", "",
     1, 1 << 20},
    {"auto_find_batch_size", kBool, "false", kProgram, kShape,
     "compile for the batch that the memory plan says is best: within "
     "--memory-limit (without one what is free on this machine), least time a "
     "row, at most --per-device-train-batch-size where that is given"},
    {"per_device_eval_batch_size", kInt, "0", kProgram, kShape,
     "0, or the training batch size: evaluation runs the same program",
     "eval_batch_size", "", 0, 1 << 20},
    {"max_length", kLengths, "1024", kProgram, kShape,
     "tokens of a row at most; with several lengths short rows take less time",
     "sequence_len cutoff_len max_seq_length max_seq_len", "", 1, 1 << 24},
    {"gradient_checkpointing", kBool, "false", kProgram, kShape,
     "keep only the inputs of blocks and compute the rest again: less memory, "
     "more time",
     "grad_checkpoint enable_activation_checkpointing"},
    {"memory_limit", kSize, "0", kProgram, kShape,
     "memory a rank may use, such as 20GiB; auto: what is free on this "
     "machine; 0: no limit",
     "", "auto", 0},
    {"host_memory_limit", kSize, "0", kProgram, kShape,
     "pinned host memory that each rank may use for what --offload puts there; "
     "0: no limit",
     "", "", 0},
    {"offload", kNames, "[]", kProgram, kShape,
     "what lives in pinned host memory: base: frozen weights, copied to the card a "
     "layer ahead of their use; optimizer: its states, updated over the bus; "
     "activations: what is saved for the backward, as much as the bus carries "
     "beside other layers; embedding: as --offload-embedding true"},
    {"offload_embedding", kChoice, "auto", kProgram, kShape,
     "an input embedding that is only read by rows lives in pinned host "
     "memory; auto: where the memory limit asks for it",
     "", "auto true false"},
    {"parallel", kString, "none", kProgram, kShape,
     "how ranks share the model, by one axis or several: fsdp=N: the base, and "
     "weights of it that are trained, in pieces on every N ranks, gathered a layer "
     "ahead; zero1=N: the optimizer's states and work; zero2=N: all that is "
     "trained; tp=N: each product, of the same rows; cp=N: the tokens of each line, "
     "of the same rows; pp=N: the layers, of the same rows; ep=N: the experts of "
     "each layer; what is left of --gpus is data parallel; auto: the fastest of "
     "these, but for tp, cp and pp, that fits the memory limit, as predicted"},
    {"ddp_comm_hook", kChoice, "no", kProgram, kShape,
     "what ranks send of gradients: no, f32 as they are; bf16, rounded, in half of "
     "the bytes; int8, codes of blocks of 256, in a quarter, where what rounding "
     "leaves is added to the next step's gradients; power_sgd, of each matrix two "
     "of few rows, whose product is near it, with the same for what that leaves",
     "", "no bf16 int8 power_sgd"},
    {"powersgd_rank", kInt, "1", kProgram, kShape,
     "rows of these matrices with --ddp-comm-hook power_sgd: more are nearer, and "
     "more to send",
     "matrix_approximation_rank", "", 1, 8},
    {"num_micro_batches", kInt, "0", kProgram, kShape,
     "chunks that --parallel pp divides the rows of a micro-batch into, so that "
     "all stages have something to do; 0: at most four for each stage",
     "", "", 0, 65536},
    {"pipeline_schedule", kChoice, "1f1b", kProgram, kShape,
     "the order of chunks with --parallel pp: 1f1b, each backward as soon as it "
     "can be, which holds as many chunks' activations as there are stages; gpipe, "
     "after all forwards",
     "", "1f1b gpipe"},
    {"num_virtual_stages_per_pipeline_rank", kInt, "1", kProgram, kShape,
     "parts of the layers that a stage of --parallel pp has, each far from the next: "
     "of N, stages wait an N-th as long for each other at the ends of a step, and "
     "send N times as much; chunks are a multiple of the stages then",
     "", "", 1, 1024},

    {"rl", kChoice, "none", kProgram, kSchedule,
     "what is trained for: none, the tokens of the data; dpo: to prefer the "
     "chosen answer to the rejected one more than the base does; orpo: the same "
     "by the odds, and the chosen answers; rows are pairs then; kto: desirable "
     "answers more than the base does, and undesirable ones less, of which a row "
     "has one",
     "", "none dpo orpo kto"},
    {"beta", kFloat, "0.1", kProgram, kSchedule,
     "how strongly --rl weighs preferences: DPO's and KTO's beta, ORPO's lambda",
     "rl_beta dpo_beta pref_beta orpo_alpha kto_beta", "", 0},
    {"loss_type", kChoice, "auto", kProgram, kSchedule,
     "which loss --rl has; auto: sigmoid for dpo, kto for kto, which also has "
     "apo_zero_unpaired, without mismatched answers",
     "", "auto sigmoid kto apo_zero_unpaired"},
    {"desirable_weight", kFloat, "1", kProgram, kSchedule,
     "factor of --rl kto's losses of desirable answers",
     "kto_desirable_weight kto_chosen_weight", "", 0},
    {"undesirable_weight", kFloat, "1", kProgram, kSchedule,
     "the same of undesirable ones", "kto_undesirable_weight kto_rejected_weight",
     "", 0},

    {"max_steps", kInt, "-1", kRun, kSchedule,
     "optimizer steps; overrides --num-train-epochs when positive", "iters",
     "", -1, 1e15},
    {"num_train_epochs", kFloat, "3", kRun, kSchedule,
     "passes over the training file; 0: only evaluate", "epochs num_epochs", "",
     0, 1e9},
    {"global_batch_size", kInt, "0", kRun, kSchedule,
     "rows of a step on all ranks together, which the micro-batches of a step "
     "follow from; 0: what these make",
     "", "", 0, 1e9},
    {"gradient_accumulation_steps", kInt, "1", kRun, kSchedule,
     "micro-batches of a step on each rank; auto: as --global-batch-size asks",
     "grad_accumulation_steps", "auto", 1, 1 << 20},
    {"rank_speeds", kNumbers, "[]", kRun, kSchedule,
     "how fast each rank is beside the others: it gets so many micro-batches of a "
     "step (default: what is known of ranks' cards)",
     "", "", 1, 1000000},
    {"optim", kChoice, "adamw_torch", kProgram, kSchedule,
     "optimizer; adamw_bnb_8bit: states of 8 bits, as bitsandbytes has them",
     "optimizer",
     "adamw_torch adamw_bnb_8bit lion adafactor schedule_free_adamw "
     "muon "
     "adamw=adamw_torch adamw_torch_fused=adamw_torch adamw_hf=adamw_torch "
     "paged_adamw_32bit=adamw_torch paged_adamw=adamw_torch "
     "adamw_8bit=adamw_bnb_8bit paged_adamw_8bit=adamw_bnb_8bit "
     "lion_32bit=lion paged_lion_32bit=lion paged_lion=lion"},
    {"learning_rate", kFloat, "5e-5", kRun, kSchedule, "peak learning rate",
     "lr", "", 0},
    {"lr_scheduler_type", kChoice, "linear", kRun, kSchedule,
     "learning rate over the steps", "lr_scheduler",
     "linear cosine constant constant_with_warmup"},
    {"warmup_steps", kInt, "0", kRun, kSchedule,
     "steps from zero to the peak rate", "", "", 0, 1e15},
    {"warmup_ratio", kFloat, "0", kRun, kSchedule,
     "the same as a share of all steps, when --warmup-steps is 0", "", "", 0,
     1},
    {"warmup_rule", kChoice, "transformers", kRun, kSchedule,
     "how --warmup-ratio becomes steps: transformers, rounded up; axolotl, "
     "rounded down, 2 in place of 1, and without a ratio 3 % of all steps, at "
     "most 100",
     "", "transformers axolotl"},
    {"weight_decay", kFloat, "0", kRun, kSchedule, "decoupled weight decay", "",
     "", 0},
    {"adam_beta1", kFloat, "0.9", kRun, kSchedule, "beta 1", "", "", 0,
     0.9999999},
    {"adam_beta2", kFloat, "0.999", kRun, kSchedule, "beta 2", "", "", 0,
     0.9999999},
    {"adam_epsilon", kFloat, "1e-8", kRun, kSchedule, "epsilon", "", "",
     0},
    {"max_grad_norm", kFloat, "1", kRun, kSchedule,
     "clip gradients to this norm; 0: no clipping",
     "gradient_clipping clip_grad_norm", "", 0},
    {"seed", kInt, "42", kRun, kSchedule,
     "seed of shuffling, dropout and new adapters", "", "", 0, 9e15},

    {"ddp_timeout", kInt, "3600", kRun, kSchedule,
     "seconds that a rank waits for the slowest one before the run is given up",
     "", "", 1, 1e6},

    {"reproducible_reductions", kBool, "false", kRun, kSchedule,
     "sum gradients as a tree over the micro-batches of a step, so that 1, 2, 4 "
     "or 8 ranks with the same rows a step leave the same bytes; slower, and not "
     "with a base in pieces",
     ""},

    {"packing", kBool, "false", kRun, kData,
     "put several short rows of a JSONL file into one: fewer steps",
     "sample_packing"},
    {"padding_free", kChoice, "auto", kRun, kData,
     "deal the rows of a step without their padding, for the same losses in "
     "less time: needs token buckets, which auto compiles where --train-file "
     "has rows",
     "", "auto true false"},
    {"val_set_size", kFloat, "0", kRun, kData,
     "rows of --train-file that are kept for validation, drawn by --seed: "
     "below 1 a share, such as 0.05, else their number",
     "val_size", "", 0, 1e15},
    {"dataset_columns", kTextMap, "{}", kRun, kData,
     "what columns are called in the data, such as prompt=question "
     "completion=answer; system= is a column that is not read",
     "columns"},
    {"row_format", kNames, "[]", kRun, kData,
     "forms that rows may have; without it any. text; completion: prompt and "
     "completion; chat: messages or conversations; alpaca: instruction and "
     "output in the Alpaca prompt; turns: instruction and output as turns of "
     "the chat template"},
    {"excess_length_strategy", kChoice, "truncate", kRun, kData,
     "what becomes of rows of more than --max-length tokens: truncate cuts their "
     "end, drop leaves them out, raise refuses them",
     "", "truncate drop raise"},
    {"dataset_text_field", kString, "text", kRun, kData,
     "the column of plain text", "text_column"},
    {"dataset_num_proc", kInt, "0", kRun, kData,
     "processes that tokenise a large file, at most 16; 0: one for each CPU",
     "preprocessing_num_workers dataset_processes", "", 0, 65536},
    {"completion_only_loss", kBool, "true", kRun, kData,
     "prompt and completion rows: loss on the completion only", "mask_prompt"},
    {"assistant_only_loss", kBool, "true", kRun, kData,
     "conversations: loss on the assistant's turns only"},
    {"allow_template_drops", kBool, "false", kRun, kData,
     "train on conversations of which the chat template leaves out tools, tool "
     "calls, messages or reasoning, instead of refusing them"},
    {"chat_template", kPath, "", kRun, kData,
     "Jinja file to use instead of the tokenizer's chat template, or one of "
     "these tools, for models without one: alpaca, chatml, gemma, gemma3, "
     "llama2, llama3, mistral, phi3, qwen2.5, vicuna, zephyr; qwen3-training: "
     "Qwen3's for several turns and tools; llamafactory-NAME: LLaMA-Factory's "
     "chatml, gemma, llama3, phi, phi4, qwen, qwen3",
     "chat_template_path",
     "alpaca chatml gemma gemma3 llama2 llama3 llamafactory-chatml "
     "llamafactory-gemma llamafactory-llama3 llamafactory-phi "
     "llamafactory-phi4 llamafactory-qwen llamafactory-qwen3 mistral phi3 "
     "qwen2.5 qwen3-training vicuna zephyr"},

    {"eval_strategy", kChoice, "no", kRun, kReport,
     "when to evaluate during training", "evaluation_strategy",
     "no steps epoch"},
    {"eval_steps", kInt, "0", kRun, kReport,
     "evaluate every N steps; 0: as --eval-strategy says", "", "", 0, 1e15},
    {"logging_steps", kInt, "10", kRun, kReport, "log every N steps",
     "log_every_n_steps steps_per_report", "", 1, 1e15},
    {"run_name", kString, "", kOutput, kReport,
     "name of the run's session in sessions/v1 of --output-dir, by which qlora "
     "compare shows it; without it, when the run began"},
    {"log_format", kChoice, "text", kRun, kReport, "lines on standard output",
     "", "text json"},
    {"report_to", kNames, "[]", kOutput, kReport,
     "tensorboard: event files too, which 'wandb sync --sync-tensorboard' reads "
     "as well; metrics.jsonl and trainer_log.jsonl are always written"},
    {"logging_dir", kPath, "", kOutput, kReport,
     "folder for event files; without it runs/DATE_HOST in --output-dir"},

    {"save_strategy", kChoice, "steps", kRun, kSaving,
     "when to write a checkpoint, from which --resume-from-checkpoint goes on; "
     "with steps and epoch also at the end and when a signal stops the run",
     "", "no steps epoch"},
    {"save_steps", kInt, "500", kRun, kSaving,
     "a checkpoint every N steps; 0: only at the end", "save_every", "", 0,
     1e15},
    {"save_total_limit", kInt, "0", kRun, kSaving,
     "how many checkpoints stay, beside the best one where that is loaded at "
     "the end; 0: all",
     "", "", 0, 1e9},
    {"resume_from_checkpoint", kPath, "", kOutput, kSaving,
     "go on from this checkpoint folder; true or latest: from the newest in "
     "--output-dir that is whole, or from the beginning where there is none",
     "resume", "true latest false"},
    {"load_best_model_at_end", kBool, "false", kRun, kSaving,
     "the adapter of the best evaluation is the one that is written at the "
     "end"},
    {"metric_for_best_model", kString, "loss", kRun, kSaving,
     "which evaluation is the best: loss, perplexity, token_accuracy or "
     "argmax_match"},
    {"greater_is_better", kChoice, "auto", kRun, kSaving,
     "whether the best one has the greatest --metric-for-best-model", "",
     "auto true false"},
    {"early_stopping_patience", kInt, "0", kRun, kSaving,
     "end after so many evaluations in a row without a better one; 0: never",
     "", "", 0, 1e9},
    {"early_stopping_threshold", kFloat, "0", kRun, kSaving,
     "by how much an evaluation has to be better to count as one", "", "", 0},
    {"on_nonfinite", kChoice, "abort", kRun, kSaving,
     "what to do when a loss or gradient is not finite: end, leave the step "
     "out, or go back to the newest checkpoint's weights and on after the step",
     "", "abort skip rewind"},
    {"overwrite_output_dir", kBool, "false", kOutput, kSaving,
     "write into --output-dir although it is not empty"},
};

} // namespace

std::span<const OptionRow> optionTable() { return kRows; }

} // namespace qlora
