/* SPDX-License-Identifier: MIT */

/* UnigramModule.c's program in two stages. The first has w, sends it to the
 * second, and receives it back; the second computes everything with the
 * received w. The second stage's own w, at another offset in an arena of
 * another size, is unused. */

#define qlora_module_query unigram_query
#include "tests/runtime/Session/UnigramModule.c"
#undef qlora_module_query

enum { kSent = 6 }; /* the activation arena */

#define ARENAS(frozen)                                                         \
  {QLORA_ARENA_FROZEN, 64, frozen, 0, 0},                                      \
      {QLORA_ARENA_TRAINABLE, 64, 128, 0, 0},                                  \
      {QLORA_ARENA_GRADIENT, 64, 136, 0, 0},                                   \
      {QLORA_ARENA_STATE, 64, 256, 0, 0}, {QLORA_ARENA_INPUT, 64, 256, 0, 0},  \
      {QLORA_ARENA_RESULT, 64, 64 + 12, 0, 0}, {                               \
    QLORA_ARENA_ACTIVATION, 64, 64, 0, 0                                       \
  }
static const qlora_arena first_arenas[] = {ARENAS(64)};
static const qlora_arena second_arenas[] = {ARENAS(128)};
static const qlora_parameter second_parameters[] = {PARAMETERS(64)};

#define MEET(number, operand, kind, places)                                    \
  {QLORA_COMMAND_COLLECTIVE, SEND, 1, number, operand,                         \
   QLORA_COLLECTIVE_##kind,  QLORA_GROUP_PP, places}
#define EVENT(kind, queue, number)                                             \
  { QLORA_COMMAND_##kind, queue, 0, number, 0, 0, 0, 0 }
#define SUM(number)                                                            \
  {QLORA_COMMAND_COLLECTIVE, SEND, 1, number, 30, 0, 0, 0}
#define UPDATE                                                                 \
  {QLORA_COMMAND_LAUNCH, COMPUTE, 6, 4, 31, 0, 0, 0}, {                        \
    QLORA_COMMAND_FILL, COMPUTE, 1, 0, 37, 0, 0, 0                             \
  }

/* The first stage --------------------------------------------------------- */

static const qlora_operand first_operands[] = {
    OPERANDS,
    /* 38: w, 39: w sent back */
    {kFrozen, QLORA_DTYPE_U8, QLORA_READ, 0, 0, 0, 0, 64, 0, 0},
    {kSent, QLORA_DTYPE_U8, QLORA_WRITE, 0, 0, 0, 0, 64, 0, 0},
    /* 40: its results */
    {kResult, F32, QLORA_WRITE, 0, 0, 0, 0, 72, 0, 0},
};

static const qlora_command first_commands[] = {
    /* 0: accumulate, for both lengths */
    MEET(0, 38, SEND, 1),
    MEET(1, 39, RECV, 1),
    /* 2: accumulate_last */
    MEET(0, 38, SEND, 1),
    MEET(1, 39, RECV, 1),
    SUM(0),
    EVENT(RECORD, SEND, 0),
    EVENT(WAIT, COMPUTE, 0),
    /* 7: evaluate */
    {QLORA_COMMAND_FILL, COMPUTE, 1, 0, 40, 0, 0, 0},
    MEET(0, 38, SEND, 1),
    UPDATE, /* 9 */
};

static const qlora_entry first_entries[] = {
    {QLORA_ENTRY_ACCUMULATE, 0, 2, 0, 0, 6, kBatch, 4},
    {QLORA_ENTRY_ACCUMULATE, 0, 2, 0, 6, 6, kBatch, 8},
    {QLORA_ENTRY_ACCUMULATE_LAST, 2, 5, 1, 0, 6, kBatch, 4},
    {QLORA_ENTRY_ACCUMULATE_LAST, 2, 5, 1, 6, 6, kBatch, 8},
    {QLORA_ENTRY_EVALUATE, 7, 2, 0, 12, 7, kBatch, 4},
    {QLORA_ENTRY_EVALUATE, 7, 2, 0, 19, 7, kBatch, 8},
    {QLORA_ENTRY_UPDATE, 9, 2, 0, 26, 1, 0, 0},
};

/* The second stage -------------------------------------------------------- */

#undef WEIGHTS
#define WEIGHTS kSent
static const qlora_operand second_operands[] = {
    OPERANDS,
    /* 38: w, 39: w sent back */
    {kSent, QLORA_DTYPE_U8, QLORA_WRITE, 0, 0, 0, 0, 64, 0, 0},
    {kSent, QLORA_DTYPE_U8, QLORA_READ, 0, 0, 0, 0, 64, 0, 0},
};

#define TAKE                                                                   \
  MEET(0, 38, RECV, -1), EVENT(RECORD, SEND, 0), EVENT(WAIT, COMPUTE, 0)
#define ACCUMULATE(launch, operands)                                           \
  TAKE, {QLORA_COMMAND_LAUNCH, COMPUTE, 8, launch, operands, 0, 0, 0},         \
      EVENT(RECORD, COMPUTE, 1), EVENT(WAIT, SEND, 1), MEET(1, 39, SEND, -1)
#define LAST SUM(0), EVENT(RECORD, SEND, 2), EVENT(WAIT, COMPUTE, 2)

static const qlora_command second_commands[] = {
    ACCUMULATE(0, 0),       /* 0 */
    ACCUMULATE(1, 8),       /* 7 */
    ACCUMULATE(0, 0), LAST, /* 14 */
    ACCUMULATE(1, 8), LAST, /* 24 */
    TAKE,                   /* 34 */
    {QLORA_COMMAND_LAUNCH, COMPUTE, 7, 2, 16, 0, 0, 0},
    TAKE, /* 38 */
    {QLORA_COMMAND_LAUNCH, COMPUTE, 7, 3, 23, 0, 0, 0},
    UPDATE, /* 42 */
};

static const qlora_entry second_entries[] = {
    {QLORA_ENTRY_ACCUMULATE, 0, 7, 2, 0, 6, kBatch, 4},
    {QLORA_ENTRY_ACCUMULATE, 7, 7, 2, 6, 6, kBatch, 8},
    {QLORA_ENTRY_ACCUMULATE_LAST, 14, 10, 3, 0, 6, kBatch, 4},
    {QLORA_ENTRY_ACCUMULATE_LAST, 24, 10, 3, 6, 6, kBatch, 8},
    {QLORA_ENTRY_EVALUATE, 34, 4, 1, 12, 7, kBatch, 4},
    {QLORA_ENTRY_EVALUATE, 38, 4, 1, 19, 7, kBatch, 8},
    {QLORA_ENTRY_UPDATE, 42, 2, 0, 26, 1, 0, 0},
};

/* Both stages ------------------------------------------------------------- */

#define STAGE(which, number, of, next)                                         \
  {                                                                            \
    .magic = QLORA_MODULE_MAGIC, .abi_version = QLORA_ABI_VERSION,             \
    .module_bytes = sizeof(qlora_module), .target = QLORA_TARGET_CPU,          \
    .producer = "written by hand", .cpu_features = "", .config_json = CONFIG,  \
    .plan_json = "{}", .arena_count = COUNT(which##_arenas),                   \
    .parameter_count = COUNT(parameters), .kernel_count = COUNT(kernels),      \
    .launch_count = COUNT(launches), .operand_count = COUNT(which##_operands), \
    .constant_count = COUNT(constants),                                        \
    .command_count = COUNT(which##_commands),                                  \
    .entry_count = COUNT(which##_entries), .binding_count = COUNT(bindings),   \
    .mesh.fsdp = 1, .mesh.zero1 = 1, .mesh.tp = 1, .mesh.cp = 1, .mesh.pp = 2, \
    .mesh.zero2 = 1, .mesh.ep = 1, .stage = number, .arenas = which##_arenas,  \
    .parameters = of, .kernels = kernels, .launches = launches,                \
    .operands = which##_operands, .constants = constants,                      \
    .commands = which##_commands, .entries = which##_entries,                  \
    .bindings = bindings, .next_stage = next                                   \
  }

static const qlora_module second = STAGE(second, 1, second_parameters, NULL);
static const qlora_module first = STAGE(first, 0, parameters, &second);

__attribute__((visibility("default"))) const qlora_module *
qlora_module_query(uint32_t max_version) {
  return max_version >= QLORA_ABI_VERSION ? &first : NULL;
}
