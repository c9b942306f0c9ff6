/* SPDX-License-Identifier: MIT */

/* The contract between qloracc, which writes train.so, and qlora-run, which
 * executes it.
 *
 * A train.so exports one symbol, `qlora_module_query`. It returns a constant
 * `qlora_module`: counted tables, strings and the addresses of the generated
 * kernels, and nothing else. There are no constructors and no imports. The
 * runtime checks the file's seal (a checksum), its version and its library
 * kernels before use (runtime/Module/ModuleLoader.h). The null device also
 * checks the tables (ModuleCheck.h).
 *
 * Enums.def defines the values of the enums.
 *
 * This header is C and C++, and depends on nothing but <stdint.h> and
 * <stddef.h>. compiler/Codegen/ModuleTables makes the tables, runtime/Module
 * reads them. A change here is a change of format: raise QLORA_ABI_VERSION.
 *
 * The life of a step
 * ------------------
 * The runtime allocates each arena once and fills the frozen, host and
 * trainable arenas from the parameter table. The entry INITIALIZE computes the
 * parameters that depend on other parameters. An optimizer step of K
 * micro-batches is then
 *
 *     K-1 times   write the inputs, run the entry ACCUMULATE
 *     once        write the inputs, run the entry ACCUMULATE_LAST, which is
 *                 ACCUMULATE plus the collectives over the gradient arena
 *     once        run UPDATE
 *
 * and nothing else: no allocation, no decision. A collective runs over a group
 * of ranks. The program does not depend on the group's size if no operand's
 * shape does, as for an all_reduce.
 *
 * Gradients are those of the *sum* of the loss over labelled tokens. The loss
 * sum and the label count are two more elements of the gradient arena (outputs
 * LOSS_SUM and LABEL_COUNT), so that they are reduced with it. UPDATE divides
 * by the count, clips, updates the trainable parameters and clears the
 * arena. */

#ifndef QLORA_RUNTIME_ABI_MODULE_H
#define QLORA_RUNTIME_ABI_MODULE_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/ABI/collective.h"
#include "runtime/ABI/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QLORA_MODULE_MAGIC 0x41524c51u /* "QLRA", little endian */
#define QLORA_ABI_VERSION 27u
#define QLORA_MAX_RANK 4
#define QLORA_PIECE_ALIGNMENT 64 /* alignment of sharded data: a cache line */

/* An index that refers to no table row. */
#define QLORA_NONE 0xffffffffu

/* Arenas ----------------------------------------------------------------- */

enum qlora_arena_kind {
#define QLORA_ARENA_KIND(NAME, NUMBER, CASE, WORD, TITLE) \
  QLORA_ARENA_##NAME = NUMBER,
#include "runtime/ABI/Enums.def"
  QLORA_ARENA_KIND_COUNT
};

typedef struct qlora_arena {
  uint32_t kind;      /* enum qlora_arena_kind; each kind at most once */
  uint32_t alignment; /* bytes, a power of two */
  uint64_t bytes;
  uint32_t on_host; /* 1: host memory, like the arena HOST; only for STATE.
                       Kernels access it over the bus. A step accesses each
                       value once, so copies to the GPU would move as many
                       bytes and need GPU memory */
  uint32_t reserved;
} qlora_arena;

/* Parameters -------------------------------------------------------------- */

enum qlora_role {
#define QLORA_ROLE(NAME, NUMBER, CASE, WORD) QLORA_ROLE_##NAME = NUMBER,
#include "runtime/ABI/Enums.def"
};

enum qlora_init {
#define QLORA_INIT(NAME, NUMBER, CASE, WORD) QLORA_INIT_##NAME = NUMBER,
#include "runtime/ABI/Enums.def"
};

enum qlora_quantization {
#define QLORA_QUANTIZATION(NAME, NUMBER, CASE, WORD) \
  QLORA_QUANTIZATION_##NAME = NUMBER,
#include "runtime/ABI/Enums.def"
};

/* One named tensor. Kernels read it at `offset` as `dtype`. If `quantization`
 * is not NONE and `dtype` is not `format`, the tensor is quantized and decoded
 * again when loaded ("resident": full width, quantized values). */
typedef struct qlora_parameter {
  const char *name; /* Hugging Face's for weights, PEFT's for adapters */
  uint32_t role;    /* enum qlora_role */
  uint32_t dtype;   /* enum qlora_dtype, in the arena */
  uint32_t init;    /* enum qlora_init */
  uint32_t quantization; /* enum qlora_quantization */
  uint32_t block;        /* elements that share a scale, or 0 */
  uint32_t double_quant; /* 1: scales are codes; 2, only with
                            slices: the whole tensor's scales are codes, and
                            a slice's are decoded; its layout has no double
                            quantization */
  uint32_t arena;        /* index into arenas */
  uint32_t rank;         /* number of dimensions */
  int64_t shape[QLORA_MAX_RANK];
  uint64_t offset; /* bytes from the start of the arena */
  uint64_t bytes;
  uint32_t file_dtype; /* enum qlora_dtype expected in the file */
  uint32_t parts; /* 0: the file has one tensor, with this name. Else the file
                     has that many tensors with equal numbers of rows, which are
                     stacked and quantized as one. Their names follow `name`,
                     each after the zero that ends the previous name */
  uint32_t format;   /* enum qlora_dtype, of few bits; 0 if it is not
                        quantized */
  uint32_t reserved;
  uint64_t piece; /* bytes of an fsdp shard. 0: the arena has all of the tensor.
                     Else the arena of rank r has at `offset` the tensor's bytes
                     from (r % shards) * piece on, and zeros after the last of
                     `bytes`. `parts` are stacked for every quantization. In
                     TRAINABLE and STATE, the shards at `offset`, concatenated
                     over ranks, are a range that holds several tensors;
                     GRADIENT has the same layout */
  uint64_t first; /* TRAINABLE and STATE: first byte of the tensor in the range
                     of shards; else 0 */
  uint32_t slices; /* 0: every rank has the whole tensor. Else the size of
                      the axis with the trait kSlices, and `shape` is that of
                      one slice. The whole tensor is quantized before it is cut,
                      and its dimension `slice_dimension` is `slices` times as
                      long. That dimension consists of `segments` runs, whose
                      lengths are constants from `first_segment` on; rank i of
                      the group has the i-th of equal parts of each. For TP,
                      `piece` may shard it further */
  uint32_t slice_dimension;
  uint32_t segments;
  uint32_t first_segment;
} qlora_parameter;

/* Kernels and launches ---------------------------------------------------- */

/* Device code for one kind of GPU. A program has one or more units, whose
 * functions do not call each other. For each unit the runtime loads the image
 * that fits the GPU best: a CUBIN of the same major version and at most its
 * minor version, else PTX of at most its version. Without such an image, the
 * runtime refuses the GPU. */
enum qlora_image_kind { QLORA_IMAGE_CUBIN = 0, QLORA_IMAGE_PTX = 1 };

typedef struct qlora_image {
  const uint8_t *bytes;
  uint64_t size;
  uint32_t unit; /* 0, 1, ... without gaps */
  uint32_t kind; /* enum qlora_image_kind */
  uint32_t arch; /* 10 * major + minor: 90 for sm_90 */
  uint32_t reserved;
} qlora_image;

/* A generated kernel has a `function` (CPU) or a `symbol` (CUDA). A library
 * kernel has neither and is found by name in the runtime's Kernels.def. A
 * symbol is a __global__ function of exactly one unit. It takes one
 * qlora_cuda_args, and is launched with `threads` threads per block and one
 * block per `rows_per_block` rows. */
typedef struct qlora_kernel {
  const char *name;
  qlora_kernel_function function;
  const char *symbol;
  uint32_t operand_count;
  uint32_t constant_count; /* of a launch, at least: see Kernels.def */
  uint32_t threads;        /* a multiple of 32, at most 1024; 0 on a CPU */
  uint32_t rows_per_block; /* 0 on a CPU */
} qlora_kernel;

/* The target of a LAUNCH command. `rows` is the range over which a generated
 * kernel is split, and 0 for a library kernel. */
typedef struct qlora_launch {
  const char *label; /* the ops that the launch computes, for traces and
                        errors */
  uint32_t kernel;
  uint32_t first_constant;
  uint32_t constant_count;
  uint32_t reserved;
  int64_t rows;
} qlora_launch;

enum qlora_access {
#define QLORA_ACCESS(NAME, NUMBER, CASE, WORD) QLORA_##NAME = NUMBER,
#include "runtime/ABI/Enums.def"
};

/* A range of an arena as one command sees it. */
typedef struct qlora_operand {
  uint16_t arena;
  uint8_t dtype;  /* enum qlora_dtype */
  uint8_t access; /* enum qlora_access */
  uint16_t pieces; /* 0: the range is the same on all ranks. Else the size of
                      group `pieces_of`; each rank's range begins `step` bytes
                      after the previous rank's */
  uint8_t pieces_of; /* enum qlora_group */
  uint8_t reserved;
  uint64_t offset; /* the group's first rank's */
  uint64_t bytes; /* 0: an optional operand that is absent */
  uint64_t skipped; /* bytes of gaps between rows, which are not accessed */
  uint64_t step;
} qlora_operand;

/* Commands ---------------------------------------------------------------- */

enum qlora_command_kind {
  QLORA_COMMAND_LAUNCH = 0,    /* target: launch; operands: its buffers */
  QLORA_COMMAND_FILL = 1,      /* operand 0 := zero bytes */
  QLORA_COMMAND_COPY = 2,      /* operand 0 := operand 1 */
  QLORA_COMMAND_COLLECTIVE = 3, /* see enum qlora_collective; target: a number
                                   for messages, such as the bucket */
  QLORA_COMMAND_RECORD = 4,    /* event `target` happens on this queue */
  QLORA_COMMAND_WAIT = 5,      /* this queue waits for event `target` */
  QLORA_COMMAND_KIND_COUNT = 6
};

enum qlora_queue {
#define QLORA_QUEUE(NAME, NUMBER, CASE, WORD) QLORA_QUEUE_##NAME = NUMBER,
#include "runtime/ABI/Enums.def"
  QLORA_QUEUE_COUNT
};

/* 16 bytes, so that four are one cache line. */
typedef struct qlora_command {
  uint8_t kind;
  uint8_t queue;
  uint16_t operand_count;
  uint32_t target;
  uint32_t first_operand;
  uint8_t collective; /* enum qlora_collective; 0 for other commands, as are
                         `group` and `peer` */
  uint8_t group;      /* enum qlora_group */
  int16_t peer;       /* BROADCAST, SEND and RECV; else 0 */
} qlora_command;

/* Entries ----------------------------------------------------------------- */

enum qlora_binding_kind {
#define QLORA_BINDING(NAME, NUMBER, CASE, WORD) QLORA_##NAME = NUMBER,
#include "runtime/ABI/Enums.def"
};

/* Values of an input or result: one; one per token or per sequence of the
 * micro-batch; or one per sequence and token of the vocabulary. */
enum qlora_per {
  QLORA_PER_STEP = 0,
  QLORA_PER_TOKEN = 1,
  QLORA_PER_SEQUENCE = 2,
  QLORA_PER_LOGIT = 3
};

/* Place of an entry's input or result. */
typedef struct qlora_binding {
  uint32_t kind; /* enum qlora_binding_kind */
  uint32_t arena;
  uint64_t offset;
  uint64_t bytes;
} qlora_binding;

enum qlora_entry_kind {
#define QLORA_ENTRY(NAME, NUMBER, CASE, WORD) QLORA_ENTRY_##NAME = NUMBER,
#include "runtime/ABI/Enums.def"
  QLORA_ENTRY_KIND_COUNT
};

/* A range of commands. A program that trains has one UPDATE, and for each
 * compiled length (a variant) an ACCUMULATE, an ACCUMULATE_LAST and an EVALUATE
 * over the same arenas. A program that generates has one PREFILL and one
 * DECODE; if it does not train, it has no arenas GRADIENT and STATE. Other
 * entries exist only if they have commands. */
typedef struct qlora_entry {
  uint32_t kind;
  uint32_t first_command;
  uint32_t command_count;
  uint32_t event_count; /* events used are 0 .. event_count-1 */
  uint32_t first_binding;
  uint32_t binding_count;
  int64_t batch;  /* sequences of a micro-batch; 0 if there is none */
  int64_t length; /* tokens of a sequence; 0 if there is no micro-batch */
} qlora_entry;

/* The module -------------------------------------------------------------- */

enum qlora_target { QLORA_TARGET_CPU = 0, QLORA_TARGET_CUDA = 1 };

typedef struct qlora_module {
  uint32_t magic;
  uint32_t abi_version;
  uint32_t module_bytes; /* sizeof(qlora_module) of the writer */
  uint32_t target;       /* enum qlora_target */

  const char *producer;     /* "qloracc 0.1.0" */
  const char *cpu_features; /* comma-separated, as in /proc/cpuinfo; the
                               generated kernels need all of them */
  const char *config_json;  /* options recorded at compile time, an object
                               with Hugging Face's names */
  const char *plan_json;    /* the memory plan, for display: bytes of each arena
                               and entry */

  uint32_t arena_count;
  uint32_t parameter_count;
  uint32_t kernel_count;
  uint32_t launch_count;
  uint32_t operand_count;
  uint32_t constant_count;
  uint32_t command_count;
  uint32_t entry_count;
  uint32_t binding_count;
  uint32_t image_count;  /* 0 on a CPU and in a program that only has a plan */
  uint32_t cuda_version; /* CUDA version of the images: 1000 * major + 10 *
                            minor; 0 on a CPU. A CUBIN needs a driver of that
                            major version or later, PTX one of that version or
                            later */
  qlora_mesh mesh;       /* the same in all stages */
  uint32_t stage;        /* index of this stage, from 0 */
  uint32_t run_ranks; /* ranks of a run; 0: any multiple of the ranks that work
                         together */

  const qlora_arena *arenas;
  const qlora_parameter *parameters;
  const qlora_kernel *kernels;
  const qlora_launch *launches;
  const qlora_operand *operands;
  const int64_t *constants; /* a float constant is the bits of a double */
  const qlora_command *commands;
  const qlora_entry *entries;
  const qlora_binding *bindings;
  const qlora_image *images;
  const struct qlora_module *next_stage; /* NULL for the last stage. The query
                                            returns the first stage */
} qlora_module;

/* The one exported symbol. Returns NULL if the module supports neither
 * `max_version` nor an older version. */
#define QLORA_MODULE_QUERY "qlora_module_query"
typedef const qlora_module *(*qlora_module_query_function)(
    uint32_t max_version);

#ifdef __cplusplus
} /* extern "C" */

static_assert(sizeof(qlora_arena) == 24, "qlora_arena is part of the format");
static_assert(sizeof(qlora_parameter) == 136, "part of the format");
static_assert(sizeof(qlora_image) == 32, "part of the format");
static_assert(sizeof(qlora_kernel) == 40, "part of the format");
static_assert(sizeof(qlora_launch) == 32, "part of the format");
static_assert(sizeof(qlora_operand) == 40, "part of the format");
static_assert(sizeof(qlora_command) == 16, "four are one cache line");
static_assert(sizeof(qlora_entry) == 40, "part of the format");
static_assert(sizeof(qlora_binding) == 24, "part of the format");
static_assert(sizeof(qlora_module) == 216, "part of the format");
#endif

#endif /* QLORA_RUNTIME_ABI_MODULE_H */
