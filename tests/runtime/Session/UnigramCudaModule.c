/* SPDX-License-Identifier: MIT */

/* UnigramModule.c for CUDA: the same tables with symbols instead of functions,
 * and an image of UnigramKernels.cu (QLORA_UNIGRAM_IMAGE) that is declared to
 * be for sm_90. */

#define qlora_module_query cpu_module_query
#include "UnigramModule.c"
#undef qlora_module_query

#define SYMBOL(kernel, operands, constants)                                    \
  {                                                                            \
    .name = kernel, .symbol = "unigram_" kernel, .operand_count = operands,    \
    .constant_count = constants, .threads = 32, .rows_per_block = 1            \
  }

static const qlora_kernel cudaKernels[] = {
    SYMBOL("accumulate", 8, 1),
    SYMBOL("evaluate", 7, 1),
    SYMBOL("adamw", 6, 0),
};

__asm__(".section .rodata\n"
        "unigram_image: .incbin \"" QLORA_UNIGRAM_IMAGE "\"\n"
        "unigram_image_end:\n"
        ".previous\n");
extern const uint8_t unigram_image[] __attribute__((visibility("hidden")));
extern const uint8_t unigram_image_end[] __attribute__((visibility("hidden")));

__attribute__((visibility("default"))) const qlora_module *
qlora_module_query(uint32_t max_version) {
  static qlora_image image;
  static qlora_module cuda;
  image = (qlora_image){.bytes = unigram_image,
                        .size = (uint64_t)(unigram_image_end - unigram_image),
                        .kind = QLORA_IMAGE_CUBIN,
                        .arch = 90};
  cuda = module;
  cuda.target = QLORA_TARGET_CUDA;
  cuda.kernels = cudaKernels;
  cuda.images = &image;
  cuda.image_count = 1;
  cuda.cuda_version = 13000; /* host-nvcc's */
  return max_version >= QLORA_ABI_VERSION ? &cuda : NULL;
}
