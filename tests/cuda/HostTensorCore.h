// SPDX-License-Identifier: MIT

// The instructions in runtime/Kernels/Cuda/Device/TensorCore.cuh, for the host.
// Lanes exchange their operands and synchronise once per instruction. A matmul
// sums over k in order, in f32. A copy happens when its thread waits for it.
// Until then, its target holds NaN. This exposes a missing wait, and a copy to
// memory that other threads still read.

#ifndef QLORA_TESTS_CUDA_HOSTTENSORCORE_H
#define QLORA_TESTS_CUDA_HOSTTENSORCORE_H

#include "HostCuda.h"

inline constexpr unsigned kQloraHostMaxThreads = 1024;

inline unsigned qlora_host_thread() {
  const qlora_host_dim &size = qlora_host_at.threadCount;
  const qlora_host_dim &at = qlora_host_at.thread;
  return at.x + size.x * (at.y + size.y * at.z);
}

/// Returns the values of all lanes of the warp, indexed by lane. A lane's calls
/// for a type alternate between two buffers, so its next call does not
/// overwrite values that other lanes still read. The call after that
/// invalidates the result.
template <typename T> const T *qlora_host_exchange(const T &mine, int line) {
  static T values[2][kQloraHostMaxThreads];
  static bool sides[kQloraHostMaxThreads];
  const unsigned thread = qlora_host_thread();
  const bool side = sides[thread] = !sides[thread];
  values[side][thread] = mine;
  __syncwarp(0xffffffffu, line);
  return &values[side][thread / 32 * 32];
}

// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 -------------------------

struct qlora_host_operands {
  uint32_t a[4], b[2];
};

inline float qlora_host_half(uint32_t word, int half) {
  return qlora_host_bits<float>(half ? word & 0xffff0000u : word << 16);
}

inline void qlora_host_mma(float (&c)[4], const uint32_t (&a)[4],
                           const uint32_t (&b)[2],
                           int line = __builtin_LINE()) {
  const qlora_host_operands *lanes = qlora_host_exchange(
      qlora_host_operands{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, line);
  const int g = qlora_host_lane() / 4, t = qlora_host_lane() % 4;
  float rows[2][16], columns[2][16];
  for (int k = 0; k < 16; ++k)
    for (int i = 0; i < 2; ++i) {
      const qlora_host_operands &ofRow = lanes[4 * g + k % 8 / 2];
      const qlora_host_operands &ofColumn = lanes[4 * (2 * t + i) + k % 8 / 2];
      rows[i][k] = qlora_host_half(ofRow.a[k / 8 * 2 + i], k % 2);
      columns[i][k] = qlora_host_half(ofColumn.b[k / 8], k % 2);
    }
  for (int k = 0; k < 16; ++k)
    for (int i = 0; i < 4; ++i)
      c[i] += rows[i / 2][k] * columns[i % 2][k];
}

// ldmatrix.sync.aligned.m8n8.x4[.trans].shared.b16 ----------------------------

inline void qlora_host_ldmatrix(uint32_t (&words)[4], uintptr_t row,
                                bool transposes, int line = __builtin_LINE()) {
  using Row = const uint16_t *;
  const Row *rows = qlora_host_exchange(reinterpret_cast<Row>(row), line);
  const int g = qlora_host_lane() / 4, t = qlora_host_lane() % 4;
  for (int m = 0; m < 4; ++m) {
    const Row *matrix = rows + 8 * m;
    words[m] = transposes
                   ? uint32_t(matrix[2 * t + 1][g]) << 16 | matrix[2 * t][g]
                   : uint32_t(matrix[g][2 * t + 1]) << 16 | matrix[g][2 * t];
  }
}

// cp.async --------------------------------------------------------------------

struct qlora_host_copies {
  struct Copy {
    void *to;
    const void *from;
    unsigned bytes, group;
  };
  Copy copies[128];
  unsigned count, group;
};

inline qlora_host_copies &qlora_host_own_copies() {
  static qlora_host_copies ofThreads[kQloraHostMaxThreads];
  return ofThreads[qlora_host_thread()];
}

/// Starts to copy `bytes` of 16 bytes and fills the rest with zeros.
inline void qlora_host_copy(uintptr_t to, const void *from, unsigned bytes,
                            int line = __builtin_LINE()) {
  qlora_host_copies &own = qlora_host_own_copies();
  if (own.count == sizeof(own.copies) / sizeof(*own.copies))
    qlora_host->fail("a thread does not wait for 128 copies", line);
  if ((to | uintptr_t(from)) % 16 != 0)
    qlora_host->fail("a copy of 16 bytes is not aligned to 16", line);
  memset(reinterpret_cast<void *>(to), 0xff, 16);
  own.copies[own.count++] = {reinterpret_cast<void *>(to), from, bytes,
                             own.group};
}

inline void qlora_host_commit() { ++qlora_host_own_copies().group; }

inline void qlora_host_wait(unsigned pending) {
  qlora_host_copies &own = qlora_host_own_copies();
  unsigned left = 0;
  for (unsigned i = 0; i < own.count; ++i) {
    const qlora_host_copies::Copy copy = own.copies[i];
    if (own.group - copy.group <= pending) {
      own.copies[left++] = copy;
      continue;
    }
    memset(copy.to, 0, 16);
    memcpy(copy.to, copy.from, copy.bytes);
  }
  own.count = left;
}

#endif // QLORA_TESTS_CUDA_HOSTTENSORCORE_H
