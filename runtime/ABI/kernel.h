/* SPDX-License-Identifier: MIT */

/* How a generated kernel is called, and the scalars it may read.
 *
 * A generated kernel is a pure function over a range of rows and does no
 * threading. The device splits [0, rows) and calls the kernel once per
 * subrange, in any order, concurrently. Each row is written by one call only,
 * so a result does not depend on how the range was split.
 *
 * This header depends on nothing but <stdint.h>, is C and C++, and is copied
 * into every generated source. */

#ifndef QLORA_RUNTIME_ABI_KERNEL_H
#define QLORA_RUNTIME_ABI_KERNEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum qlora_dtype {
  QLORA_DTYPE_F32 = 0,
  QLORA_DTYPE_BF16 = 1,
  QLORA_DTYPE_F16 = 2,
  QLORA_DTYPE_I32 = 3,
  QLORA_DTYPE_NF4 = 4, /* NF4 of bitsandbytes. NF4 and all types from LLM_INT8
                          on name a whole tensor of codes and scales, see
                          Kernels/Math/Stored.h */
  QLORA_DTYPE_U8 = 5,  /* plain bytes: workspaces */
  QLORA_DTYPE_I8 = 6,  /* -128 to 127 */
  QLORA_DTYPE_LLM_INT8 = 7, /* 8 bits of bitsandbytes, one scale per row */
  QLORA_DTYPE_MXFP4 = 8,    /* E2M1, a power of two as scale of 32 elements */
  QLORA_DTYPE_FP4 = 9,      /* FP4 of bitsandbytes */
  QLORA_DTYPE_FP8 = 10,     /* E4M3 */
  QLORA_DTYPE_INT4 = 11,    /* 4 bits with zero points, from GPTQ and AWQ */
  QLORA_DTYPE_INT8 = 12,    /* 8 bits with zero points */
  QLORA_DTYPE_COUNT = 13
};

/* Every scalar that changes from step to step. The runtime writes the block
 * before an entry. Kernels read it through a pointer, so that captured graphs
 * and cached programs do not contain its values. */
typedef struct qlora_step_block {
  float learning_rate;
  float beta1;
  float beta2;
  float epsilon;
  float weight_decay;
  float max_grad_norm;          /* 0: no clipping */
  float bias_correction1;       /* 1 - beta1^t, t counted from 1 */
  float bias_correction2_sqrt;  /* sqrt(1 - beta2^t) */
  float one_minus_beta1;        /* computed in f64, as in torch */
  float one_minus_beta2;
  float update;                 /* t: number of this update, from 1 */
  float average; /* schedule-free: weight of this step in the average */
  uint64_t seed;
  uint64_t step;        /* optimizer steps done before this one */
  uint64_t micro_batch; /* global index: (step * K + k) * ranks + rank; the
                           ranks of one TP or CP group count as one */
  uint32_t labelled_rows; /* labelled rows of the rank whose micro-batch has
                             most. A device may leave other rows out of the LM
                             head. A value that is too small makes the loss
                             NaN */
  float length_rsqrt; /* 1 / sqrt(tokens of the micro-batch's longest row) */
  float mean_labels;      /* labels of a micro-batch that has rows: the mean
                             over all ranks and micro-batches of the step */
  uint32_t shard; /* index of this rank in the group of the last axis that has
                     the trait kTables (runtime/Options/MeshAxes.h) */
  uint32_t line_tokens; /* this rank's tokens of each sequence */
  uint32_t line_parts;  /* ranks that shard each sequence: group CP */
  uint32_t line_part;   /* index of this rank in group CP; its first token of a
                           sequence is number line_part * line_tokens */
  uint32_t expert_part; /* index of this rank in its group EP */
} qlora_step_block;

typedef struct qlora_kernel_args {
  void *const *buffers;     /* one per operand, in the kernel's order */
  const int64_t *constants; /* the launch's constants */
  const qlora_step_block *step;
} qlora_kernel_args;

typedef void (*qlora_kernel_function)(const qlora_kernel_args *args,
                                      int64_t row_begin, int64_t row_end);

/* The one parameter of every CUDA kernel, generated or written by hand:
 *
 *   extern "C" __global__ void name(const __grid_constant__ qlora_cuda_args)
 *
 * It is passed by value, so that a captured graph holds everything except the
 * step block, which is read through a pointer. blockIdx.x and `rows` determine
 * the rows of a block; each row is written by one block only. */
#define QLORA_CUDA_MAX_OPERANDS 32
#define QLORA_CUDA_MAX_CONSTANTS 24

typedef struct qlora_cuda_args {
  void *buffers[QLORA_CUDA_MAX_OPERANDS]; /* device addresses; NULL: absent */
  int64_t constants[QLORA_CUDA_MAX_CONSTANTS];
  const qlora_step_block *step; /* a device address */
  int64_t rows;
} qlora_cuda_args;

#ifdef __cplusplus
} /* extern "C" */
static_assert(sizeof(qlora_step_block) == 104, "part of the format");
static_assert(sizeof(qlora_cuda_args) == 464, "below the 4 KiB of a launch");
#endif

#endif /* QLORA_RUNTIME_ABI_KERNEL_H */
