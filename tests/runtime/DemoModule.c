/* SPDX-License-Identifier: MIT */

/* A train.so written by hand. It shows the format, and lets the runtime be
 * built, tested and sanitised without the compiler. It "trains" 16 values:
 *
 *   evaluate        y := 2 * w + a;  result := y
 *   accumulate_last gradient += ids summed per row; all-reduce it while y is
 *                   computed; wait for both
 *   update          a := a - rate * gradient;  gradient := 0
 *
 * Read it along with runtime/ABI/module.h, from the bottom up.
 */

#include "runtime/ABI/module.h"

#define COUNT(table) ((uint32_t)(sizeof(table) / sizeof((table)[0])))
#define EXPORT __attribute__((visibility("default")))

enum { kElements = 16, kBatch = 2, kLength = 8 };

/* Kernels, as qloracc would print them ------------------------------------ */

/* y[rows] := scale * w + a */
static void scaleAdd(const qlora_kernel_args *args, int64_t begin,
                     int64_t end) {
  const float *w = (const float *)args->buffers[0];
  const float *a = (const float *)args->buffers[1];
  float *y = (float *)args->buffers[2];
  union {
    int64_t bits;
    double value;
  } scale = {args->constants[0]};
  for (int64_t i = begin; i < end; ++i)
    y[i] = (float)scale.value * w[i] + a[i];
}

/* gradient[rows] += ids[rows] */
static void gather(const qlora_kernel_args *args, int64_t begin, int64_t end) {
  const int32_t *ids = (const int32_t *)args->buffers[0];
  float *gradient = (float *)args->buffers[1];
  for (int64_t i = begin; i < end; ++i)
    gradient[i] += (float)ids[i];
}

/* a[rows] -= learning_rate * gradient[rows] */
static void descend(const qlora_kernel_args *args, int64_t begin, int64_t end) {
  float *a = (float *)args->buffers[0];
  const float *gradient = (const float *)args->buffers[1];
  for (int64_t i = begin; i < end; ++i)
    a[i] -= args->step->learning_rate * gradient[i];
}

static const qlora_kernel kernels[] = {
    {.name = "scale_add",
     .function = scaleAdd,
     .operand_count = 3,
     .constant_count = 1},
    {.name = "gather",
     .function = gather,
     .operand_count = 2,
     .constant_count = 0},
    {.name = "descend",
     .function = descend,
     .operand_count = 2,
     .constant_count = 0},
};

/* Tables ------------------------------------------------------------------ */

enum { kFrozen, kTrainable, kGradient, kActivation, kInput, kResult };

static const qlora_arena arenas[] = {
    {QLORA_ARENA_FROZEN, 64, 64, 0, 0},
    {QLORA_ARENA_TRAINABLE, 64, 64, 0, 0},
    {QLORA_ARENA_GRADIENT, 64, 64 + 8, 0, 0},
    {QLORA_ARENA_ACTIVATION, 64, 64, 0, 0},
    {QLORA_ARENA_INPUT, 64, 64, 0, 0},
    {QLORA_ARENA_RESULT, 64, 64, 0, 0},
};

static const qlora_parameter parameters[] = {
    {.name = "demo.weight",
     .role = QLORA_ROLE_FROZEN,
     .dtype = QLORA_DTYPE_F32,
     .init = QLORA_INIT_FILE,
     .arena = kFrozen,
     .rank = 2,
     .shape = {4, 4},
     .bytes = 64,
     .file_dtype = QLORA_DTYPE_BF16},
    {.name = "base_model.model.demo.lora_A.weight",
     .role = QLORA_ROLE_ADAPTER,
     .dtype = QLORA_DTYPE_F32,
     .init = QLORA_INIT_KAIMING,
     .arena = kTrainable,
     .rank = 2,
     .shape = {4, 4},
     .bytes = 64,
     .file_dtype = QLORA_DTYPE_F32},
};

/* 2.0 as the bits of a double. */
static const int64_t constants[] = {0x4000000000000000};

static const qlora_launch launches[] = {
    {"demo/scale_add", 0, 0, 1, 0, kElements},
    {"demo/gather", 1, 0, 0, 0, kElements},
    {"demo/descend", 2, 0, 0, 0, kElements},
};

#define F32 QLORA_DTYPE_F32
static const qlora_operand operands[] = {
    /* 0: scale_add */
    {kFrozen, F32, QLORA_READ, 0, 0, 0, 0, 64, 0, 0},
    {kTrainable, F32, QLORA_READ, 0, 0, 0, 0, 64, 0, 0},
    {kActivation, F32, QLORA_WRITE, 0, 0, 0, 0, 64, 0, 0},
    /* 3: copy */
    {kResult, F32, QLORA_WRITE, 0, 0, 0, 0, 64, 0, 0},
    {kActivation, F32, QLORA_READ, 0, 0, 0, 0, 64, 0, 0},
    /* 5: gather */
    {kInput, QLORA_DTYPE_I32, QLORA_READ, 0, 0, 0, 0, 64, 0, 0},
    {kGradient, F32, QLORA_READ_WRITE, 0, 0, 0, 0, 64, 0, 0},
    /* 7: all_reduce, loss and label count included */
    {kGradient, F32, QLORA_READ_WRITE, 0, 0, 0, 0, 72, 0, 0},
    /* 8: descend */
    {kTrainable, F32, QLORA_READ_WRITE, 0, 0, 0, 0, 64, 0, 0},
    {kGradient, F32, QLORA_READ, 0, 0, 0, 0, 64, 0, 0},
    /* 10: fill */
    {kGradient, F32, QLORA_WRITE, 0, 0, 0, 0, 72, 0, 0},
};

enum { kCompute = QLORA_QUEUE_COMPUTE, kSend = QLORA_QUEUE_COMMUNICATION };

static const qlora_command commands[] = {
    /* 0: evaluate */
    {QLORA_COMMAND_LAUNCH, kCompute, 3, 0, 0, 0, 0, 0},
    {QLORA_COMMAND_COPY, kCompute, 2, 0, 3, 0, 0, 0},
    /* 2: accumulate_last */
    {QLORA_COMMAND_LAUNCH, kCompute, 2, 1, 5, 0, 0, 0},
    {QLORA_COMMAND_RECORD, kCompute, 0, 0, 0, 0, 0, 0},
    {QLORA_COMMAND_WAIT, kSend, 0, 0, 0, 0, 0, 0},
    {QLORA_COMMAND_COLLECTIVE, kSend, 1, 0, 7, 0, 0, 0},
    {QLORA_COMMAND_RECORD, kSend, 0, 1, 0, 0, 0, 0},
    {QLORA_COMMAND_LAUNCH, kCompute, 3, 0, 0, 0, 0, 0},
    {QLORA_COMMAND_WAIT, kCompute, 0, 1, 0, 0, 0, 0},
    /* 9: update */
    {QLORA_COMMAND_LAUNCH, kCompute, 2, 2, 8, 0, 0, 0},
    {QLORA_COMMAND_FILL, kCompute, 1, 0, 10, 0, 0, 0},
};

static const qlora_binding bindings[] = {
    {QLORA_INPUT_IDS, kInput, 0, 64},
    {QLORA_RESULT_CORRECT, kResult, 0, 64},
    {QLORA_INPUT_IDS, kInput, 0, 64},
    {QLORA_RESULT_LOSS_SUM, kGradient, 64, 4},
    {QLORA_RESULT_LABEL_COUNT, kGradient, 68, 4},
};

static const qlora_entry entries[] = {
    {QLORA_ENTRY_EVALUATE, 0, 2, 0, 0, 2, kBatch, kLength},
    {QLORA_ENTRY_ACCUMULATE_LAST, 2, 7, 2, 2, 3, kBatch, kLength},
    {QLORA_ENTRY_UPDATE, 9, 2, 0, 5, 0, 0, 0},
};

static const qlora_module module = {
    .magic = QLORA_MODULE_MAGIC,
    .abi_version = QLORA_ABI_VERSION,
    .module_bytes = sizeof(qlora_module),
    .target = QLORA_TARGET_CPU,
    .producer = "written by hand",
    .cpu_features = "",
    .config_json = "{}",
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
    .mesh.fsdp = 1,
    .mesh.zero1 = 1,
    .mesh.tp = 1,
    .mesh.cp = 1,
    .mesh.zero2 = 1,
    .mesh.ep = 1,
    .mesh.pp = 1,
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

EXPORT const qlora_module *qlora_module_query(uint32_t max_version) {
  return max_version >= QLORA_ABI_VERSION ? &module : NULL;
}
