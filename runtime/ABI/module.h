/* SPDX-License-Identifier: MIT */

/* The contract between qloracc, which writes train.so, and qlora-run, which
 * executes it.
 *
 * A train.so exports one symbol, `qlora_module_query`. It returns a constant
 * `qlora_module`: counted tables, strings and the addresses of the generated
 * kernels, and nothing else. There are no constructors and no imports. The
 * runtime checks every index, offset and string of it before the first use
 * (runtime/Module/ModuleLoader.h).
 *
 * What the numbers of its enums mean is in Enums.def.
 *
 * This header depends on nothing but <stdint.h> and <stddef.h>, is C and C++,
 * and is included by exactly these: the writer (compiler/Codegen/EmitModule),
 * the reader (runtime/Module) and the hand-written test module
 * (tests/runtime/DemoModule.c). A change here is a change of format: raise
 * QLORA_ABI_VERSION.
 *
 * The life of a step
 * ------------------
 * The runtime allocates each arena once and fills the frozen, host and trainable
 * ones from the parameter table; what starts at a function of these is computed
 * by INITIALIZE. An optimizer step of K micro-batches is then
 *
 *     K-1 times   write the inputs, run the entry ACCUMULATE
 *     once        write the inputs, run the entry ACCUMULATE_LAST, which is
 *                 the same plus the collectives over the gradient arena
 *     once        run UPDATE
 *
 * and nothing else: no allocation, no decision. A collective is over a group
 * of ranks; where the group's size is not part of any shape, as for an
 * all_reduce, a program does not know it.
 *
 * Gradients are those of the *sum* of the loss over labelled tokens. The
 * loss sum and the label count are two more elements of the gradient arena
 * (outputs LOSS_SUM and LABEL_COUNT), so that they are reduced with it;
 * UPDATE divides by the count, clips, updates what is trained and clears the
 * arena.
 */

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
#define QLORA_ABI_VERSION 24u
#define QLORA_MAX_RANK 4
#define QLORA_PIECE_ALIGNMENT 64 /* of what ranks hold pieces of: a cache line */

/* Index that refers to nothing. */
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
  uint32_t alignment; /* of the base address, a power of two */
  uint64_t bytes;
  uint32_t on_host; /* 1: in such memory as HOST is; of STATE alone. Kernels read
                       and write it where it is: each number of it is touched
                       once a step, so that staging it would move the same bytes
                       over the bus, and cost memory of the card and copies */
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

/* One named tensor. What the kernels see at `offset` is `dtype`; when
 * `quantization` is not NONE and `dtype` is not `format`, the tensor is
 * quantised and decoded again when loaded ("resident": full width, values of
 * few bits). */
typedef struct qlora_parameter {
  const char *name; /* Hugging Face's for weights, PEFT's for adapters */
  uint32_t role;    /* enum qlora_role */
  uint32_t dtype;   /* enum qlora_dtype, in the arena */
  uint32_t init;    /* enum qlora_init */
  uint32_t quantization; /* enum qlora_quantization */
  uint32_t block;        /* elements that share a scale, or 0 */
  uint32_t double_quant; /* 1: scales are codes; 2, of slices alone: the whole
                            has codes for scales, and a slice its own decoded:
                            its layout is one without double quantisation */
  uint32_t arena;        /* index into arenas */
  uint32_t rank;         /* number of dimensions */
  int64_t shape[QLORA_MAX_RANK];
  uint64_t offset; /* bytes from the start of the arena */
  uint64_t bytes;
  uint32_t file_dtype; /* enum qlora_dtype expected in the file */
  uint32_t parts; /* 0: the file has it under its name. Else so many tensors
                     with equal numbers of rows, one above the other, are
                     quantised as one; their names follow `name`, each behind
                     the zero of the one before */
  uint32_t format;   /* enum qlora_dtype, of few bits; 0 where it is not
                        quantised */
  uint32_t reserved;
  uint64_t piece; /* 0: the arena has all of it. Else the arena of rank r has at
                     `offset` so many bytes of it, from the (r % shards)-th so
                     many on; those behind the last of `bytes` are zero. Its
                     parts, if any, are one tensor whatever its quantization.
                     Of the trainable and the state arena: what the ranks have
                     at `offset`, each so many bytes, is behind each other a
                     range of tensors; gradients are so too */
  uint64_t first; /* byte of that range at which this one begins; else 0 */
  uint32_t slices; /* 0: every rank has the whole tensor. Else `tensor_ranks`, or
                      `expert_ranks`, and `shape` is that of a slice: of the
                      tensor as its files have it, quantised as a whole, dimension
                      `slice_dimension` is so many times as long. It is `segments`
                      runs, whose lengths are constants from `first_segment` on;
                      rank number i of group TP, or EP, has the i-th of equal
                      parts of each. Of group TP, `piece` may be a part of the
                      slice */
  uint32_t slice_dimension;
  uint32_t segments;
  uint32_t first_segment;
} qlora_parameter;

/* Kernels and launches ---------------------------------------------------- */

/* Device code for one kind of card. A program has one or more units, whose
 * functions do not call each other; of each unit the runtime loads the image
 * that fits the card best: a CUBIN of the same major version and at most its
 * minor version, else PTX of at most its version, else it refuses the card. */
enum qlora_image_kind { QLORA_IMAGE_CUBIN = 0, QLORA_IMAGE_PTX = 1 };

typedef struct qlora_image {
  const uint8_t *bytes;
  uint64_t size;
  uint32_t unit; /* 0, 1, ... without gaps */
  uint32_t kind; /* enum qlora_image_kind */
  uint32_t arch; /* 10 * major + minor: 90 for sm_90 */
  uint32_t reserved;
} qlora_image;

/* A generated kernel has a `function` (CPU) or a `symbol` (CUDA); a library
 * kernel has neither and is found by name in the runtime's Kernels.def. A
 * symbol is a __global__ function of exactly one unit; it takes one
 * qlora_cuda_args, and is launched with `threads` threads a block and one
 * block for `rows_per_block` rows. */
typedef struct qlora_kernel {
  const char *name;
  qlora_kernel_function function;
  const char *symbol;
  uint32_t operand_count;
  uint32_t constant_count;
  uint32_t threads;        /* a multiple of 32, at most 1024; 0 on a CPU */
  uint32_t rows_per_block; /* 0 on a CPU */
} qlora_kernel;

/* What a LAUNCH command runs. `rows` is the range that a generated kernel is
 * split over, and 0 for a library kernel. */
typedef struct qlora_launch {
  const char *label; /* the ops it came from, for traces and errors */
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
  uint16_t pieces; /* 0: the range is where it is. Else as many as group
                      `pieces_of` has ranks: the range begins `step` bytes later
                      for each next one of them */
  uint8_t pieces_of; /* enum qlora_group */
  uint8_t reserved;
  uint64_t offset; /* of the first one's */
  uint64_t bytes; /* 0: an optional operand that is absent */
  uint64_t skipped; /* of those, what lies between rows and is not touched */
  uint64_t step;
} qlora_operand;

/* Commands ---------------------------------------------------------------- */

enum qlora_command_kind {
  QLORA_COMMAND_LAUNCH = 0,    /* target: launch; operands: its buffers */
  QLORA_COMMAND_FILL = 1,      /* operand 0 := zero bytes */
  QLORA_COMMAND_COPY = 2,      /* operand 0 := operand 1 */
  QLORA_COMMAND_COLLECTIVE = 3,/* see enum qlora_collective; target: a number
                                  for people, as of the bucket */
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
  uint8_t collective; /* enum qlora_collective; as all that follows 0 for
                         other commands */
  uint8_t group;      /* enum qlora_group */
  int16_t peer;       /* BROADCAST, SEND and RECV; else 0 */
} qlora_command;

/* Entries ----------------------------------------------------------------- */

enum qlora_binding_kind {
#define QLORA_BINDING(NAME, NUMBER, CASE, WORD) QLORA_##NAME = NUMBER,
#include "runtime/ABI/Enums.def"
};

/* Where an entry's input or result lives. */
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

/* A range of commands. There is one ACCUMULATE, ACCUMULATE_LAST and EVALUATE
 * per compiled length (a variant), over the same arenas, one UPDATE, and where
 * there is something to do one of the others. */
typedef struct qlora_entry {
  uint32_t kind;
  uint32_t first_command;
  uint32_t command_count;
  uint32_t event_count; /* events used are 0 .. event_count-1 */
  uint32_t first_binding;
  uint32_t binding_count;
  int64_t batch;  /* rows of a micro-batch; 0 where there is none */
  int64_t length; /* tokens of a row; 0 there too */
} qlora_entry;

/* The module -------------------------------------------------------------- */

enum qlora_target { QLORA_TARGET_CPU = 0, QLORA_TARGET_CUDA = 1 };

typedef struct qlora_module {
  uint32_t magic;
  uint32_t abi_version;
  uint32_t module_bytes; /* sizeof(qlora_module) of the writer */
  uint32_t target;       /* enum qlora_target */

  const char *producer;     /* "qloracc 0.1.0" */
  const char *cpu_features; /* comma-separated, as in /proc/cpuinfo; all are
                               needed by the generated kernels */
  const char *config_json;  /* options recorded at compile time, an object
                               with Hugging Face's names */
  const char *plan_json;    /* the memory plan, for people: what each arena and
                               entry takes */

  uint32_t arena_count;
  uint32_t parameter_count;
  uint32_t kernel_count;
  uint32_t launch_count;
  uint32_t operand_count;
  uint32_t constant_count;
  uint32_t command_count;
  uint32_t entry_count;
  uint32_t binding_count;
  uint32_t image_count;  /* 0 on a CPU, and in a program for a plan alone */
  uint32_t cuda_version; /* of the compiler of the images, 1000 * major +
                            10 * minor; 0 on a CPU. A CUBIN needs a driver
                            of that major version or a later one, PTX one of
                            that version or a later one */
  uint32_t shards; /* ranks that divide the base; 1: each holds it whole */
  uint32_t update_pieces; /* ranks that divide what optimizers keep and their
                             work; 1: each does all of it. Where both are more
                             than 1 they are equal: the size of group FSDP */
  uint32_t tensor_ranks; /* ranks that share each product (group TP); 1: none */
  uint32_t context_ranks; /* ranks that share each line (group CP); 1: none. The
                             inputs and results of tokens are then of this
                             rank's: [batch, length / context_ranks] */
  uint32_t stages; /* of the pipeline (group PP), each a program of its own; 1:
                      there is none. All have the same trainable, gradient and
                      state arenas, of which each adds what is its own to
                      the gradients; inputs are the same too, and what a stage
                      does not know of the results is zero */
  uint32_t stage;  /* which of them this is */
  uint32_t trained_pieces; /* ranks that divide weights that are trained, their
                              gradients and states, those parameters of the
                              arenas TRAINABLE and STATE that have a `piece`; 1:
                              each holds all of them whole. Not beside
                              `update_pieces`, and equal to `shards` where both
                              are more than 1 */
  uint32_t expert_ranks; /* ranks that share the experts (group EP); 1: each has
                            all of them. Not beside `tensor_ranks` */
  uint32_t run_ranks; /* how many ranks a run has; 0: any multiple of those that
                         work together */

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
  const struct qlora_module *next_stage; /* NULL: this is the last one. The
                                            query returns the first */
} qlora_module;

/* The one exported symbol. Returns NULL when the module cannot speak
 * `max_version` or an older version. */
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
