/* SPDX-License-Identifier: MIT */

/* A training program written by hand, for tests of the session. Its
 * "model" is a score for each of 16 tokens.
 *
 *   p[t] = w[t] + a[t] + b[t]          w frozen, a and b the "adapter"
 *   loss = sum over targets t of (1 - p[t])^2 / 2
 *
 * Two variants (length 4 and 8), batch 2, AdamW with clipping. Read it along
 * with runtime/ABI/module.h, from the bottom up.
 *
 * UNIGRAM_SHARDS, UNIGRAM_TENSOR_RANKS and UNIGRAM_CONTEXT_RANKS are the ranks
 * of a group FSDP, TP or CP, which all-gathers w in every entry of a
 * micro-batch: once for length 4, twice for length 8, so that ranks that run
 * different variants fail. Nothing reads the result. Ranks of CP have a cp
 * shard of each sequence. */

#ifndef UNIGRAM_SHARDS
#define UNIGRAM_SHARDS 1
#endif
#ifndef UNIGRAM_TENSOR_RANKS
#define UNIGRAM_TENSOR_RANKS 1
#endif
#ifndef UNIGRAM_CONTEXT_RANKS
#define UNIGRAM_CONTEXT_RANKS 1
#endif
/* Numbers of ranks per axis; at most one of the three is not 1. */
#define UNIGRAM_GROUP                                                          \
  (UNIGRAM_SHARDS * UNIGRAM_TENSOR_RANKS * UNIGRAM_CONTEXT_RANKS)
/* Number of tokens on one context-parallel rank. */
#define OWN(tokens) ((tokens) / UNIGRAM_CONTEXT_RANKS)

#include "runtime/ABI/module.h"

#define COUNT(table) ((uint32_t)(sizeof(table) / sizeof((table)[0])))

#define UNIGRAM_ARGS qlora_kernel_args
#define UNIGRAM_FUNCTION static
#include "tests/runtime/Session/UnigramKernels.h"

static const qlora_kernel kernels[] = {
    {.name = "accumulate",
     .function = accumulate,
     .operand_count = 8,
     .constant_count = 1},
    {.name = "evaluate",
     .function = evaluate,
     .operand_count = 7,
     .constant_count = 1},
    {.name = "adamw",
     .function = adamw,
     .operand_count = 6,
     .constant_count = 0},
};

/* Tables ------------------------------------------------------------------ */

enum { kFrozen, kAdapter, kGradient, kState, kInput, kResult, kGathered };

static const qlora_arena arenas[] = {
    {QLORA_ARENA_FROZEN, 64, 64, 0, 0},
    {QLORA_ARENA_TRAINABLE, 64, 128, 0, 0},
    {QLORA_ARENA_GRADIENT, 64, 136, 0, 0},
    {QLORA_ARENA_STATE, 64, 256, 0, 0},
    {QLORA_ARENA_INPUT, 64, 256, 0, 0},
    {QLORA_ARENA_RESULT, 64, 64 + 12, 0, 0},
#if UNIGRAM_GROUP > 1
    {QLORA_ARENA_ACTIVATION, 64, 64 * UNIGRAM_GROUP, 0, 0},
#endif
};

#define ADAPTER(which, rows, columns, at, kind)                                \
  {                                                                            \
    .name = "base_model.model.model.scores.lora_" which ".weight",             \
    .role = QLORA_ROLE_ADAPTER, .dtype = QLORA_DTYPE_F32, .init = kind,        \
    .arena = kAdapter, .rank = 2, .shape = {rows, columns}, .offset = at,      \
    .bytes = 64, .file_dtype = QLORA_DTYPE_F32                                 \
  }

#define STATE(of, rows, columns, at)                                           \
  {                                                                            \
    .name = "base_model.model.model.scores.lora_" of,                          \
    .role = QLORA_ROLE_STATE, .dtype = QLORA_DTYPE_F32,                        \
    .init = QLORA_INIT_ZERO, .arena = kState, .rank = 2,                       \
    .shape = {rows, columns}, .offset = at, .bytes = 64,                       \
    .file_dtype = QLORA_DTYPE_F32                                              \
  }

/* `at`: offset of w in its arena, in bytes. */
#define PARAMETERS(at)                                                         \
  {.name = "model.scores.weight",                                              \
   .role = QLORA_ROLE_FROZEN,                                                  \
   .dtype = QLORA_DTYPE_F32,                                                   \
   .init = QLORA_INIT_FILE,                                                    \
   .arena = kFrozen,                                                           \
   .rank = 2,                                                                  \
   .shape = {1, kVocab},                                                       \
   .offset = at,                                                               \
   .bytes = 64,                                                                \
   .file_dtype = QLORA_DTYPE_F32},                                             \
      ADAPTER("A", 1, kVocab, 0, QLORA_INIT_KAIMING),                          \
      ADAPTER("B", kVocab, 1, 64, QLORA_INIT_ZERO),                            \
      STATE("A.weight.exp_avg", 1, kVocab, 0),                                 \
      STATE("B.weight.exp_avg", kVocab, 1, 64),                                \
      STATE("A.weight.exp_avg_sq", 1, kVocab, 128),                            \
      STATE("B.weight.exp_avg_sq", kVocab, 1, 192)

static const qlora_parameter parameters[] = {PARAMETERS(0)};

static const int64_t constants[] = {OWN(kBatch * 4), OWN(kBatch * 8)};

static const qlora_launch launches[] = {
    {"accumulate 4", 0, 0, 1, 0, 1}, {"accumulate 8", 0, 1, 1, 0, 1},
    {"evaluate 4", 1, 0, 1, 0, 1},   {"evaluate 8", 1, 1, 1, 0, 1},
    {"adamw", 2, 0, 0, 0, 1},
};

#define F32 QLORA_DTYPE_F32
#define I32 QLORA_DTYPE_I32
/* The arena from which w is read. */
#define WEIGHTS kFrozen
/* Byte offsets: ids 0, targets 64, positions 128, segments 192. */
#define MODEL_INPUTS(tokens)                                                   \
  {kInput, I32, QLORA_READ, 0, 0, 0, 64, 4 * OWN(tokens), 0, 0},               \
      {WEIGHTS, F32, QLORA_READ, 0, 0, 0, 0, 64, 0, 0},                        \
      {kAdapter, F32, QLORA_READ, 0, 0, 0, 0, 64, 0, 0}, {                     \
    kAdapter, F32, QLORA_READ, 0, 0, 0, 64, 64, 0, 0                           \
  }
#define ACCUMULATE_OPERANDS(tokens)                                            \
  MODEL_INPUTS(tokens),                                                        \
      {kGradient, F32, QLORA_READ_WRITE, 0, 0, 0, 0, 64, 0, 0},                \
      {kGradient, F32, QLORA_READ_WRITE, 0, 0, 0, 64, 64, 0, 0},               \
      {kGradient, F32, QLORA_READ_WRITE, 0, 0, 0, 128, 4, 0, 0}, {             \
    kGradient, F32, QLORA_READ_WRITE, 0, 0, 0, 132, 4, 0, 0                    \
  }
/* Byte offsets: correct 0, loss 64, count 68, norm 72. */
#define EVALUATE_OPERANDS(tokens)                                              \
  MODEL_INPUTS(tokens), {kResult, F32, QLORA_WRITE, 0, 0, 0, 64, 4, 0, 0},     \
      {kResult, F32, QLORA_WRITE, 0, 0, 0, 68, 4, 0, 0}, {                     \
    kResult, I32, QLORA_WRITE, 0, 0, 0, 0, 4 * OWN(tokens), 0, 0               \
  }

/* 8 operands of accumulate at 0 and at 8, 7 of evaluate at 16 and at 23;
 * 30: all-reduce; 31: adamw; 37: clear. */
#define OPERANDS                                                               \
  ACCUMULATE_OPERANDS(kBatch * 4), ACCUMULATE_OPERANDS(kBatch * 8),            \
      EVALUATE_OPERANDS(kBatch * 4), EVALUATE_OPERANDS(kBatch * 8),            \
      {kGradient, F32, QLORA_READ_WRITE, 0, 0, 0, 0, 136, 0, 0},               \
      {kAdapter, F32, QLORA_READ_WRITE, 0, 0, 0, 0, 128, 0, 0},                \
      {kGradient, F32, QLORA_READ, 0, 0, 0, 0, 128, 0, 0},                     \
      {kState, F32, QLORA_READ_WRITE, 0, 0, 0, 0, 128, 0, 0},                  \
      {kState, F32, QLORA_READ_WRITE, 0, 0, 0, 128, 128, 0, 0},                \
      {kGradient, F32, QLORA_READ, 0, 0, 0, 132, 4, 0, 0},                     \
      {kResult, F32, QLORA_WRITE, 0, 0, 0, 72, 4, 0, 0}, {                     \
    kGradient, F32, QLORA_WRITE, 0, 0, 0, 0, 136, 0, 0                         \
  }

static const qlora_operand operands[] = {
    OPERANDS,
#if UNIGRAM_GROUP > 1
    /* 38: all-gather */
    {kGathered, QLORA_DTYPE_U8, QLORA_WRITE, 0, 0, 0, 0, 64 * UNIGRAM_GROUP, 0,
     0},
    {kFrozen, QLORA_DTYPE_U8, QLORA_READ, 0, 0, 0, 0, 64, 0, 0},
#endif
};

#define COMPUTE QLORA_QUEUE_COMPUTE
#define SEND QLORA_QUEUE_COMMUNICATION
#define ACCUMULATE_LAST_COMMANDS(launch, operands)                             \
  {QLORA_COMMAND_LAUNCH, COMPUTE, 8, launch, operands, 0, 0, 0},               \
      {QLORA_COMMAND_RECORD, COMPUTE, 0, 0, 0, 0, 0, 0},                       \
      {QLORA_COMMAND_WAIT, SEND, 0, 0, 0, 0, 0, 0},                            \
      {QLORA_COMMAND_COLLECTIVE, SEND, 1, 0, 30, 0, 0, 0},                     \
      {QLORA_COMMAND_RECORD, SEND, 0, 1, 0, 0, 0, 0}, {                        \
    QLORA_COMMAND_WAIT, COMPUTE, 0, 1, 0, 0, 0, 0                              \
  }

#if UNIGRAM_GROUP > 1
#define GATHER                                                                 \
  {QLORA_COMMAND_COLLECTIVE,                                                   \
   SEND,                                                                       \
   2,                                                                          \
   0,                                                                          \
   38,                                                                         \
   QLORA_COLLECTIVE_ALL_GATHER,                                                \
   UNIGRAM_SHARDS > 1         ? QLORA_GROUP_FSDP                               \
   : UNIGRAM_TENSOR_RANKS > 1 ? QLORA_GROUP_TP                                 \
                              : QLORA_GROUP_CP,                                \
   0},
enum { kGathers4 = 1, kGathers8 = 2 };
#else
#define GATHER
enum { kGathers4 = 0, kGathers8 = 0 };
#endif

static const qlora_command commands[] = {
    GATHER {QLORA_COMMAND_LAUNCH, COMPUTE, 8, 0, 0, 0, 0, 0},
    GATHER GATHER {QLORA_COMMAND_LAUNCH, COMPUTE, 8, 1, 8, 0, 0, 0},
    GATHER ACCUMULATE_LAST_COMMANDS(0, 0),
    GATHER GATHER ACCUMULATE_LAST_COMMANDS(1, 8),
    GATHER {QLORA_COMMAND_LAUNCH, COMPUTE, 7, 2, 16, 0, 0, 0},
    GATHER GATHER {QLORA_COMMAND_LAUNCH, COMPUTE, 7, 3, 23, 0, 0, 0},
    {QLORA_COMMAND_LAUNCH, COMPUTE, 6, 4, 31, 0, 0, 0},
    {QLORA_COMMAND_FILL, COMPUTE, 1, 0, 37, 0, 0, 0},
};

/* Number of each entry's commands, and index of its first command. */
enum {
  kOwn4 = 1 + kGathers4,
  kOwn8 = 1 + kGathers8,
  kLast4 = 6 + kGathers4,
  kLast8 = 6 + kGathers8,
  kAtLast4 = kOwn4 + kOwn8,
  kAtLast8 = kAtLast4 + kLast4,
  kAtEvaluate = kAtLast8 + kLast8,
  kAtUpdate = kAtEvaluate + kOwn4 + kOwn8
};

#define INPUTS(tokens)                                                         \
  {QLORA_INPUT_IDS, kInput, 0, 4 * OWN(tokens)},                               \
      {QLORA_INPUT_TARGETS, kInput, 64, 4 * OWN(tokens)},                      \
      {QLORA_INPUT_POSITIONS, kInput, 128, 4 * OWN(tokens)}, {                 \
    QLORA_INPUT_SEGMENTS, kInput, 192, 4 * OWN(tokens)                         \
  }
#define TRAIN_BINDINGS(tokens)                                                 \
  INPUTS(tokens), {QLORA_RESULT_LOSS_SUM, kGradient, 128, 4}, {                \
    QLORA_RESULT_LABEL_COUNT, kGradient, 132, 4                                \
  }
#define EVALUATE_BINDINGS(tokens)                                              \
  INPUTS(tokens), {QLORA_RESULT_LOSS_SUM, kResult, 64, 4},                     \
      {QLORA_RESULT_LABEL_COUNT, kResult, 68, 4}, {                            \
    QLORA_RESULT_CORRECT, kResult, 0, 4 * OWN(tokens)                          \
  }

static const qlora_binding bindings[] = {
    TRAIN_BINDINGS(kBatch * 4),               /* 0 */
    TRAIN_BINDINGS(kBatch * 8),               /* 6 */
    EVALUATE_BINDINGS(kBatch * 4),            /* 12 */
    EVALUATE_BINDINGS(kBatch * 8),            /* 19 */
    {QLORA_RESULT_GRAD_NORM, kResult, 72, 4}, /* 26 */
};

static const qlora_entry entries[] = {
    {QLORA_ENTRY_ACCUMULATE, 0, kOwn4, 0, 0, 6, kBatch, 4},
    {QLORA_ENTRY_ACCUMULATE, kOwn4, kOwn8, 0, 6, 6, kBatch, 8},
    {QLORA_ENTRY_ACCUMULATE_LAST, kAtLast4, kLast4, 2, 0, 6, kBatch, 4},
    {QLORA_ENTRY_ACCUMULATE_LAST, kAtLast8, kLast8, 2, 6, 6, kBatch, 8},
    {QLORA_ENTRY_EVALUATE, kAtEvaluate, kOwn4, 0, 12, 7, kBatch, 4},
    {QLORA_ENTRY_EVALUATE, kAtEvaluate + kOwn4, kOwn8, 0, 19, 7, kBatch, 8},
    {QLORA_ENTRY_UPDATE, kAtUpdate, 2, 0, 26, 1, 0, 0},
};

#define CONFIG                                                                 \
  "{\"vocab_size\": 16, \"lora_r\": 1, \"lora_alpha\": 1,"                     \
  " \"lora_target_modules\": [\"scores\"], \"max_length\": [4, 8],"            \
  " \"per_device_train_batch_size\": 2,"                                       \
  " \"compute_dtype\": \"float32\", \"logging_steps\": 1}"

static const qlora_module module = {
    .magic = QLORA_MODULE_MAGIC,
    .abi_version = QLORA_ABI_VERSION,
    .module_bytes = sizeof(qlora_module),
    .target = QLORA_TARGET_CPU,
    .producer = "written by hand",
    .cpu_features = "",
    .config_json = CONFIG,
    .plan_json = "{}",
    .arena_count = COUNT(arenas),
    .parameter_count = COUNT(parameters),
    .kernel_count = COUNT(kernels),
    .launch_count = COUNT(launches),
    .operand_count = COUNT(operands),
    .constant_count = COUNT(constants),
    .command_count = COUNT(commands),
    .entry_count = COUNT(entries),
    .binding_count = COUNT(bindings),
    .mesh.fsdp = UNIGRAM_SHARDS,
    .mesh.zero1 = 1,
    .mesh.tp = UNIGRAM_TENSOR_RANKS,
    .mesh.cp = UNIGRAM_CONTEXT_RANKS,
    .mesh.pp = 1,
    .mesh.zero2 = 1,
    .mesh.ep = 1,
    .arenas = arenas,
    .parameters = parameters,
    .kernels = kernels,
    .launches = launches,
    .operands = operands,
    .constants = constants,
    .commands = commands,
    .entries = entries,
    .bindings = bindings,
};

__attribute__((visibility("default"))) const qlora_module *
qlora_module_query(uint32_t max_version) {
  return max_version >= QLORA_ABI_VERSION ? &module : NULL;
}
