// SPDX-License-Identifier: MIT

// swap_blocks: loops over out, which is dense, and reads each word from x.
// Kernels.def lists buffers and constants.

#include "runtime/Kernels/Cuda/Device/Common.cuh"

constexpr int kSwapThreads = 256;
/// 16-byte words per thread; RowKernels.cpp computes the grid from it.
constexpr int kSwapWords = 4;

/// Geometry of x as [first, second, run], in words. x has rows of `columns`
/// words with `gap` words between rows. A word lies in one run and one row.
/// Index has 32 bits if possible: 64-bit division is about 20 times slower.
template <typename Index> struct SwappedBlocks {
  Index columns, first, second, run;
  int64_t gap;

  /// Returns the position in x of word `to` of out.
  __device__ int64_t from(Index to) const {
    const Index block = to / run, outer = block / first;
    const Index inner = block - outer * first;
    const Index at = (inner * second + outer) * run + (to - block * run);
    return gap == 0 ? int64_t(at) : int64_t(at) + int64_t(at / columns) * gap;
  }
};

/// Copies this block's words of out. Adjacent threads copy adjacent words.
template <typename Index, typename Word>
QLORA_DEVICE void swapWords(const qlora_cuda_args &args, int64_t count,
                            int64_t gap, int64_t ofWord) {
  constexpr int64_t kWords =
      kSwapThreads * kSwapWords * int64_t(sizeof(qlora_words) / sizeof(Word));
  const int64_t *c = args.constants;
  const SwappedBlocks<Index> blocks = {Index(c[1] / ofWord), Index(c[2]),
                                       Index(c[3]), Index(c[4] / ofWord),
                                       gap / ofWord};
  const Word *x = qlora_at<Word>(args.buffers[0], 0);
  Word *out = qlora_at<Word>(args.buffers[1], 0);
  const int64_t begin = int64_t(blockIdx.x) * kWords;
  const int64_t end = begin + kWords < count ? begin + kWords : count;
  QLORA_ROLL
  for (int64_t to = begin + threadIdx.x; to < end; to += kSwapThreads)
    out[to] = x[blocks.from(Index(to))];
}

template <typename Word>
QLORA_DEVICE void swapWordsOf(const qlora_cuda_args &args, int64_t gap,
                              int64_t ofWord) {
  const int64_t count = args.constants[0] * args.constants[1] / ofWord;
  if (count < int64_t(1) << 32)
    swapWords<uint32_t, Word>(args, count, gap, ofWord);
  else
    swapWords<uint64_t, Word>(args, count, gap, ofWord);
}

/// Copies 16-byte words if all runs of x and out, and all rows, are aligned to
/// 16 bytes. Otherwise copies single elements.
template <typename Element>
QLORA_DEVICE void swapBlocks(const qlora_cuda_args &args) {
  const int64_t *c = args.constants;
  const int64_t gap = c[0] == 1 ? 0 : c[5] - c[1];
  const uint64_t begins = reinterpret_cast<uintptr_t>(args.buffers[0]) |
                          reinterpret_cast<uintptr_t>(args.buffers[1]);
  const uint64_t lengths =
      uint64_t(c[4]) | (gap == 0 ? 0 : uint64_t(c[1]) | uint64_t(gap));
  if ((begins | lengths * sizeof(Element)) % sizeof(qlora_words) == 0)
    swapWordsOf<qlora_words>(args, gap, sizeof(qlora_words) / sizeof(Element));
  else
    swapWordsOf<Element>(args, gap, 1);
}

QLORA_CUDA_SYMBOL(kSwapThreads, qlora_swap_blocks_b16, swapBlocks<uint16_t>)
QLORA_CUDA_SYMBOL(kSwapThreads, qlora_swap_blocks_b32, swapBlocks<uint32_t>)
