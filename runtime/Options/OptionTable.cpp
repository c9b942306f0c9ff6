// SPDX-License-Identifier: MIT

// The option table: name, type, default, use, section, help and aliases.
// RunOptions.def has the rows that follow.

#include "runtime/Options/OptionTable.h"

namespace qlora {

namespace {

using enum OptionType;
constexpr OptionScope kProgram = OptionScope::kProgram;
constexpr OptionScope kRun = OptionScope::kRun;
constexpr OptionScope kOutput = OptionScope::kOutput;

constexpr const char *kFiles = "Files";
constexpr const char *kLora = "LoRA";
constexpr const char *kQuantization = "Quantization";
constexpr const char *kShape = "Batch, length and memory";
constexpr const char *kGeneration = "Generation";
constexpr const char *kSchedule = "Optimizer and schedule";
constexpr const char *kData = "Data";
constexpr const char *kReport = "Evaluation and logging";
constexpr const char *kSaving = "Checkpoints and stopping";

const OptionRow kRows[] = {
    {"model_name_or_path", kPath, "", kRun, kFiles,
     "Hugging Face model: a folder, or with qlora a name on the hub",
     "base_model model"},
    {"train_file", kPaths, "", kRun, kFiles,
     "training data: a JSONL, JSON, CSV or Parquet file, compressed or not, a "
     "folder of such files, or a safetensors file of tokens, which is read in "
     "order. Repeat the option to mix files; :2 after a name repeats each row "
     "twice per epoch, :0.5 takes half of the rows"},
    {"validation_file", kPaths, "", kRun, kFiles,
     "data to evaluate with before, during and after training, in the formats "
     "of --train-file, without weights"},
    {"adapter_name_or_path", kPath, "", kRun, kFiles,
     "folder of the PEFT adapter to start from; with qlora its rank, alpha, "
     "patterns and modules are used unless they are given"},
    {"output_dir", kPath, "out", kOutput, kFiles,
     "folder for the adapter, checkpoints, metrics and the resolved options",
     "out_dir !adapter_path"},
    {"adapter_base_name", kString, "", kRun, kFiles,
     "name of the base model in adapter_config.json; empty: the model "
     "folder's path, or its name on the hub", "!base_model_name_or_path"},
    {"push_to_hub", kBool, "false", kOutput, kFiles,
     "upload the adapter to the Hugging Face hub after training, with the "
     "token of hf auth login or HF_TOKEN"},
    {"hub_model_id", kString, "", kOutput, kFiles,
     "hub repository of --push-to-hub, NAME or OWNER/NAME; empty: the output "
     "folder's name"},
    {"hub_private_repo", kBool, "false", kOutput, kFiles,
     "create the repository of --push-to-hub as a private one if it does not "
     "exist"},

    {"finetuning_type", kChoice, "lora", kProgram, kLora,
     "lora: train adapters of a frozen model; full: train all weights of a "
     "model that is not quantized, and write a model folder", "", "lora full"},
    {"unfrozen_parameters", kNames, "[]", kProgram, kLora,
     "with --finetuning-type full, train only the parameters whose names begin "
     "with a match of one of these regular expressions, in which a dot is "
     "itself unless a + follows it; empty: all"},
    {"lora_r", kInt, "8", kProgram, kLora, "rank of LoRA's matrices A and B",
     "lora_rank r rank", "", 1, 65536},
    {"lora_alpha", kFloat, "8", kProgram, kLora,
     "scale of adapters: their output is multiplied by alpha / rank", "", "",
     0},
    {"lora_dropout", kFloat, "0", kProgram, kLora,
     "probability of dropping an input value of an adapter", "", "", 0, 0.999},
    {"lora_target_modules", kTargets, "all-linear", kProgram, kLora,
     "modules that get an adapter: all-linear, name endings such as q_proj "
     "v_proj, or a regular expression for whole names",
     "target_modules lora_target lora_target_linear=all-linear"},
    {"target_parameters", kNames, "[]", kProgram, kLora,
     "expert weights that get an adapter: name endings such as "
     "mlp.experts.gate_up_proj"},
    {"exclude_modules", kTargets, "[]", kProgram, kLora,
     "modules that get no adapter even if --lora-target-modules matches: name "
     "endings or a regular expression for whole names", "lora_exclude_modules"},
    {"layers_to_transform", kLengths, "[]", kProgram, kLora,
     "indices, from 0, of the layers that get adapters, if "
     "--lora-target-modules is a list of names; empty: all layers",
     "peft_layers_to_transform", "", 0, 1 << 20},
    {"layers_pattern", kNames, "[]", kProgram, kLora,
     "what precedes the layer's index in module names, such as layers, for "
     "--layers-to-transform"},
    {"use_rslora", kBool, "false", kProgram, kLora,
     "rsLoRA: scale adapters by alpha / sqrt(rank)"},
    {"use_dora", kBool, "false", kProgram, kLora,
     "DoRA: train magnitude and direction of each output's weights separately",
     "peft_use_dora lora_use_dora"},
    {"lora_bias", kBool, "false", kProgram, kLora,
     "add a bias to matrix B of each adapter"},
    {"bias", kChoice, "none", kProgram, kLora,
     "biases of the model to train and save with the adapter: none, those of "
     "modules with an adapter (lora_only), or all", "", "none lora_only all"},
    {"loraplus_lr_ratio", kFloat, "1", kProgram, kLora,
     "LoRA+: learning rate of B matrices and one-dimensional parameters, as a "
     "multiple of the rate of A matrices", "", "", 0},
    {"lora_rank_pattern", kNumberMap, "{}", kProgram, kLora,
     "ranks of single modules, {name: rank}; the first match counts",
     "rank_pattern", "", 1, 65536},
    {"lora_alpha_pattern", kNumberMap, "{}", kProgram, kLora,
     "alphas of single modules, {name: alpha}; the first match counts",
     "alpha_pattern", "", 0},
    {"fan_in_fan_out", kBool, "false", kProgram, kLora,
     "adapted weights are stored as [in, out], as in GPT-2; detected from the "
     "model and written to adapter_config.json"},
    {"modules_to_save", kNames, "[]", kProgram, kLora,
     "modules to train in full and save with the adapter"},
    {"trainable_token_indices", kTokens, "[]", kProgram, kLora,
     "token ids whose rows of the input embedding are trained and saved with "
     "the adapter; with tied embeddings also the rows of the LM head",
     "peft_trainable_token_indices", "", 0, (1 << 24) - 1},
    {"init_lora_weights", kChoice, "true", kProgram, kLora,
     "initial adapters. true: A uniform, B zero; gaussian: A normal, B zero; "
     "false: both uniform; pissa: largest singular vectors of the weight by a "
     "full SVD (hours for 8B); pissa_niter_N: PiSSA by N subspace iterations "
     "(seconds); olora: QR factors of the weight; loftq: factors of the "
     "quantization error. pissa and olora change the base; the final adapter "
     "is a plain LoRA of rank 2 r for the original model",
     "peft_init_lora_weights",
     "true false gaussian pissa pissa_niter_N olora loftq"},
    {"loftq_config", kNumberMap, "{}", kProgram, kLora,
     "parameters of --init-lora-weights loftq; only {loftq_bits: 4, "
     "loftq_iter: 1} is supported", "", "", 1, 8},
    {"neftune_noise_alpha", kFloat, "0", kProgram, kLora,
     "NEFTune: in training add uniform noise to embeddings, of alpha / "
     "sqrt(tokens of the longest row in a micro-batch x hidden size); 0: no "
     "noise", "noisy_embedding_alpha", "", 0, 1e6},

    {"load_in_4bit", kBool, "false", kProgram, kQuantization,
     "store frozen linear weights in 4 bits"},
    {"load_in_8bit", kBool, "false", kProgram, kQuantization,
     "store frozen linear weights in 8 bits, as LLM.int8 does"},
    {"llm_int8_activations", kChoice, "dequantized", kProgram, kQuantization,
     "forward matmuls with --load-in-8bit. dequantized: unchanged activations "
     "and dequantized weights; int8: each token's activations rounded to 8 "
     "bits, as bitsandbytes does on GPUs", "", "dequantized int8"},
    {"llm_int8_threshold", kFloat, "6", kProgram, kQuantization,
     "with --llm-int8-activations int8: columns of activations in which some "
     "value of the micro-batch has at least this magnitude are not rounded; 0: "
     "every column is rounded", "", "", 0, 65504},
    {"quantize_moe_experts", kBool, "false", kProgram, kQuantization,
     "with --load-in-4bit, store the weights of MoE experts in 4 bits too"},
    {"bnb_4bit_quant_type", kChoice, "nf4", kProgram, kQuantization,
     "4-bit data type of --load-in-4bit", "", "nf4 fp4"},
    {"quant_method", kChoice, "none", kProgram, kQuantization,
     "store frozen linear weights in a format other than bitsandbytes': fp8 "
     "(E4M3, a scale per row) or mxfp4 (E2M1, a scale per 32 elements)", "",
     "none fp8 mxfp4"},
    {"bnb_4bit_use_double_quant", kBool, "false", kProgram, kQuantization,
     "quantize the scales of 4-bit blocks too"},
    {"bnb_4bit_blocksize", kInt, "64", kProgram, kQuantization,
     "number of elements in a 4-bit block, which have one scale; must be a "
     "power of two", "", "", 64, 4096},
    {"compute_dtype", kChoice, "bfloat16", kProgram, kQuantization,
     "data type of activations",
     "bnb_4bit_compute_dtype dtype torch_dtype bf16=bfloat16|float32",
     "bfloat16 float32 bf16=bfloat16 fp32=float32 f32=float32"},
    {"activation_dtype_for_lora", kChoice, "auto", kProgram, kQuantization,
     "data type in which inputs of adapters are saved for the backward, "
     "unless another gradient needs them too; auto: --compute-dtype; int8: 8 "
     "bits and a scale per token, for less memory", "", "auto int8"},

    {"per_device_train_batch_size", kInt, "8", kProgram, kShape,
     "rows of a micro-batch on each rank", "micro_batch_size batch_size", "", 1,
     1 << 20},
    {"auto_find_batch_size", kBool, "false", kProgram, kShape,
     "compile for the largest batch size that fits the memory and is predicted "
     "to take at most 1 % more time per row than the fastest. The memory is "
     "--memory-limit, or else what --memory-limit auto finds; a given "
     "--per-device-train-batch-size is the maximum"},
    {"per_device_eval_batch_size", kInt, "0", kProgram, kShape,
     "rows of a micro-batch in evaluations. 0: the training batch size; no "
     "other size is accepted, because evaluations run the training program",
     "eval_batch_size", "", 0, 1 << 20},
    {"max_length", kLengths, "1024", kProgram, kShape,
     "maximum tokens of a row; with several lengths, short rows take less "
     "time", "sequence_len cutoff_len max_seq_length max_seq_len", "", 1,
     1 << 24},
    {"gradient_checkpointing", kBool, "false", kProgram, kShape,
     "save only the inputs of layers and recompute the rest in the backward: "
     "less memory, more time",
     "grad_checkpoint enable_activation_checkpointing"},
    {"memory_limit", kSize, "0", kProgram, kShape,
     "maximum memory of a rank, such as 20GiB; auto: what is free on this "
     "machine or its first GPU, less a reserve; 0: no limit", "", "auto", 0},
    {"host_memory_limit", kSize, "0", kProgram, kShape,
     "maximum pinned host memory of a rank for --offload, such as 32GiB; 0: "
     "no limit", "", "", 0},
    {"offload", kNames, "[]", kProgram, kShape,
     "tensors to keep in pinned host memory. base: frozen weights, copied to "
     "the GPU a layer ahead; optimizer: its states, updated over the bus; "
     "activations: those saved for the backward "
     "(--offload-activations-policy); embedding: sets --offload-embedding "
     "true"},
    {"offload_embedding", kChoice, "auto", kProgram, kShape,
     "keep the input embedding in pinned host memory, unless it is also the LM "
     "head; auto: only if --memory-limit requires it", "", "auto true false"},
    {"parallel", kString, "none", kProgram, kShape,
     "how ranks share the model, by one axis or several. fsdp=N: N ranks shard "
     "the weights of the model, frozen or trained, and gather each layer ahead "
     "of its use; zero1=N: shard optimizer states and updates; zero2=N: shard "
     "all trainable parameters; tp=N: tensor parallel; cp=N: context parallel, "
     "for long rows; pp=N: pipeline of layers; ep=N: shard the experts of each "
     "layer. Other ranks are data-parallel. auto: the fastest predicted layout "
     "within --memory-limit, without tp, cp and pp"},
    {"ddp_comm_hook", kChoice, "no", kProgram, kShape,
     "how ranks send gradients. no: float32; bf16: half of the bytes; int8: a "
     "quarter, in blocks of 256, with error feedback; power_sgd: two low-rank "
     "factors of each matrix, with error feedback", "",
     "no bf16 int8 power_sgd"},
    {"powersgd_rank", kInt, "1", kProgram, kShape,
     "rank of the factors of --ddp-comm-hook power_sgd: a higher rank is more "
     "exact and sends more", "matrix_approximation_rank", "", 1, 8},
    {"num_micro_batches", kInt, "0", kProgram, kShape,
     "chunks into which --parallel pp splits a micro-batch, to keep all "
     "stages busy; 0: at most four per stage", "", "", 0, 65536},
    {"pipeline_schedule", kChoice, "1f1b", kProgram, kShape,
     "order of chunks with --parallel pp. 1f1b: each backward as early as "
     "possible, with activations of as many chunks as stages; gpipe: all "
     "forwards first", "", "1f1b gpipe"},
    {"num_virtual_stages_per_pipeline_rank", kInt, "1", kProgram, kShape,
     "virtual stages of a rank with --parallel pp: N make the idle time at "
     "the ends of a step N times shorter, and send N times as much; chunks "
     "must be a multiple of the stages", "", "", 1, 1024},

    {"entries", kChoice, "auto", kProgram, kGeneration,
     "what the program does. train, generate (without memory for training), or "
     "both; auto: train, and also generate if --generation-batch is given", "",
     "auto train generate both"},
    {"generation_batch", kInt, "0", kProgram, kGeneration,
     "rows that are generated at the same time; 0: the program does not "
     "generate. qlora generate, serve and eval use 8 instead of 0, chat 1", "",
     "", 0, 4096},
    {"generation_length", kInt, "2048", kProgram, kGeneration,
     "maximum tokens of a generated row, prompt included",
     "generation_max_length", "", 1, 1 << 24},
    {"kv_cache_dtype", kChoice, "auto", kProgram, kGeneration,
     "data type of cached keys and values in generation; int8: 8 bits, with a "
     "scale for each head of a token; auto: --compute-dtype", "",
     "auto bfloat16 float16 float32 int8 bf16=bfloat16 fp16=float16 "
     "fp32=float32"},
    {"prefill_chunk_size", kInt, "256", kProgram, kGeneration,
     "tokens of a prompt that generation processes at a time", "", "", 1,
     65536},
    {"max_loras", kInt, "0", kProgram, kGeneration,
     "LoRA adapters among which each row of a generation chooses, in a program "
     "of --entries generate; 0: all rows use one adapter, which the other LoRA "
     "options describe", "", "", 0, 4096},
    {"max_lora_rank", kInt, "16", kProgram, kGeneration,
     "maximum rank of the adapters of --max-loras", "", "", 1, 65536},

    {"rl", kChoice, "none", kProgram, kSchedule,
     "training objective. none: next tokens; dpo: prefer the chosen answer of "
     "a pair to the rejected one, relative to the base; cpo, orpo: prefer it "
     "without a reference, by probability or by odds; kto: rows with one "
     "answer, desirable or undesirable", "", "none dpo cpo orpo kto"},
    {"beta", kFloat, "0.1", kProgram, kSchedule,
     "strength of the preference loss of --rl: beta of DPO, CPO and KTO, "
     "lambda of ORPO, tau of IPO",
     "rl_beta dpo_beta pref_beta orpo_alpha kto_beta", "", 0},
    {"loss_type", kChoices, "auto", kProgram, kSchedule,
     "loss of tokens: nll, or dft (Dynamic Fine-Tuning: each token's loss "
     "times its probability); or loss of --rl, with --rl dpo also several "
     "losses, which are added: "
#define QLORA_PAIR_LOSS(WORD, ...) #WORD ", "
#include "runtime/ABI/PairLosses.def"
     "or for kto: kto, apo_zero_unpaired (without a KL estimate from "
     "mismatched answers). auto: nll, or for --rl sigmoid, or kto for kto", "",
#define QLORA_PAIR_LOSS(WORD, ...) #WORD " "
     "auto nll dft "
#include "runtime/ABI/PairLosses.def"
     "kto apo_zero_unpaired"},
    {"loss_weights", kFloats, "[]", kProgram, kSchedule,
     "weights of the losses of --loss-type; empty: 1 each",
     "dpo_loss_weights"},
    {"label_smoothing", kFloat, "0", kProgram, kSchedule,
     "probability that a pair's answers are exchanged, for the losses exo_pair "
     "and robust, and sigmoid and simpo of --rl cpo", "dpo_label_smoothing", "",
     0, 0.5},
    {"label_smoothing_factor", kFloat, "0", kProgram, kSchedule,
     "share of the loss nll that all tokens of the vocabulary have in place of "
     "the label, in equal parts", "", "", 0, 1},
    {"discopop_tau", kFloat, "0.05", kProgram, kSchedule,
     "temperature of the loss discopop", "", "", 1e-6},
    {"simpo_gamma", kFloat, "0.5", kProgram, kSchedule,
     "margin of rewards that the loss simpo subtracts"},
    {"cpo_alpha", kFloat, "1", kProgram, kSchedule,
     "weight of the mean loss of chosen tokens in CPO", "", "", 0},
    {"desirable_weight", kFloat, "1", kProgram, kSchedule,
     "loss weight of desirable answers in KTO",
     "kto_desirable_weight kto_chosen_weight", "", 0},
    {"undesirable_weight", kFloat, "1", kProgram, kSchedule,
     "loss weight of undesirable answers in KTO",
     "kto_undesirable_weight kto_rejected_weight", "", 0},

    {"max_steps", kInt, "-1", kRun, kSchedule,
     "optimizer steps; if positive, overrides --num-train-epochs", "iters", "",
     -1, 1e15},
    {"num_train_epochs", kFloat, "3", kRun, kSchedule,
     "passes over the training data; 0: only evaluate", "epochs num_epochs", "",
     0, 1e9},
    {"global_batch_size", kInt, "0", kRun, kSchedule,
     "rows of an optimizer step on all ranks together; determines "
     "--gradient-accumulation-steps. 0: not set", "", "", 0, 1e9},
    {"gradient_accumulation_steps", kInt, "1", kRun, kSchedule,
     "micro-batches of an optimizer step on each rank: rows per step = batch "
     "size x this x data-parallel ranks; auto: from --global-batch-size",
     "grad_accumulation_steps", "auto", 1, 1 << 20},
    {"rank_speeds", kNumbers, "[]", kRun, kSchedule,
     "relative speeds of the data-parallel ranks, such as 3 1: a rank gets "
     "micro-batches in proportion; empty: from the ranks' GPU models, if "
     "known", "", "", 1, 1000000},
    {"optim", kChoice, "adamw_torch", kProgram, kSchedule,
     "optimizer: adamw_torch, lion, adafactor, schedule_free_adamw, muon, "
     "rmsprop, or adamw_bnb_8bit with 8-bit states, as in bitsandbytes",
     "optimizer",
     "adamw_torch adamw_bnb_8bit lion adafactor schedule_free_adamw muon "
     "rmsprop "
     "adamw=adamw_torch adamw_torch_fused=adamw_torch adamw_hf=adamw_torch "
     "paged_adamw_32bit=adamw_torch paged_adamw=adamw_torch "
     "adamw_8bit=adamw_bnb_8bit paged_adamw_8bit=adamw_bnb_8bit "
     "lion_32bit=lion paged_lion_32bit=lion paged_lion=lion"},
    {"learning_rate", kFloat, "5e-5", kRun, kSchedule, "peak learning rate",
     "lr", "", 0},
    {"lr_scheduler_type", kChoice, "linear", kRun, kSchedule,
     "learning rate schedule", "lr_scheduler",
     "linear cosine cosine_with_restarts cosine_with_min_lr "
     "cosine_warmup_with_min_lr polynomial inverse_sqrt warmup_stable_decay "
     "rex constant constant_with_warmup"},
    {"lr_scheduler_kwargs", kTextMap, "{}", kRun, kSchedule,
     "parameters of --lr-scheduler-type, such as min_lr_rate=0.1"},
    {"warmup_steps", kSteps, "0", kRun, kSchedule,
     "optimizer steps from a learning rate of 0 to the peak; below 1: a "
     "fraction of all steps", "", "", 0, 1e15},
    {"warmup_ratio", kFloat, "0", kRun, kSchedule,
     "warmup as a fraction of all steps, if --warmup-steps is 0", "", "", 0, 1},
    {"warmup_rule", kChoice, "transformers", kRun, kSchedule,
     "how --warmup-ratio becomes a number of steps. transformers: rounded up; "
     "axolotl: rounded down, but 1 becomes 2; if the ratio is 0, 3 % of all "
     "steps, at most 100", "", "transformers axolotl"},
    {"weight_decay", kFloat, "0", kRun, kSchedule,
     "weight decay: decoupled; with --optim rmsprop, part of the gradient", "",
     "", 0},
    {"adam_beta1", kFloat, "0.9", kRun, kSchedule,
     "decay rate of the optimizer's first moment", "", "", 0, 0.9999999},
    {"adam_beta2", kFloat, "0.999", kRun, kSchedule,
     "decay rate of the optimizer's second moment", "", "", 0, 0.9999999},
    {"adam_epsilon", kFloat, "1e-8", kRun, kSchedule,
     "term that keeps the optimizer's divisor above zero", "", "", 0},
    {"max_grad_norm", kFloat, "1", kRun, kSchedule,
     "clip the global gradient norm to this; 0: no clipping",
     "gradient_clipping clip_grad_norm", "", 0},
    {"seed", kInt, "42", kRun, kSchedule,
     "seed of shuffling, dropout, new adapters and sampling", "", "", 0, 9e15},
    {"ddp_timeout", kInt, "3600", kRun, kSchedule,
     "seconds that a rank waits for the slowest rank before the run fails", "",
     "", 1, 1e6},
    {"reproducible_reductions", kBool, "false", kRun, kSchedule,
     "add gradients as a tree over the micro-batches of a step, so that 1, 2, "
     "4 or 8 ranks with the same rows per step give equal bits; slower; not "
     "with a sharded base"},

#include "runtime/Options/RunOptions.def"
};

} // namespace

std::span<const OptionRow> optionTable() { return kRows; }

} // namespace qlora
