// SPDX-License-Identifier: MIT

// Tensor core operations of a warp, for sm_80 and later: bf16 matmuls with f32
// sums, operand loads from shared memory, and asynchronous copies.
//
// Each function is one PTX instruction. All 32 lanes of a warp must call
// matmuls and matrix loads together. The layouts are from the PTX ISA, "Matrix
// Fragments for mma.m16n8k16 with floating point type" and "ldmatrix". With g =
// lane / 4 and t = lane % 4, a lane has these elements (row, column):
//
//   A [16, 16]   word 0: (g, 2t), (g, 2t + 1)      word 1: row g + 8
//                word 2: (g, 2t + 8), (g, 2t + 9)  word 3: row g + 8
//   B [16, 8]    word 0: (2t, g), (2t + 1, g)      word 1: rows 2t + 8, 2t + 9
//   C [16, 8]    value 0, 1: (g, 2t), (g, 2t + 1)  value 2, 3: row g + 8
//
// The low half of a word is the first of its two bf16 values. If two C of
// adjacent columns are rounded to bf16, they have the layout of one A. So a
// next matmul can use them without moving values between lanes.
//
// On the host, the tests' platform defines the instructions
// (tests/cuda/HostTensorCore.h).

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_TENSORCORE_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_TENSORCORE_CUH

#include "runtime/Kernels/Cuda/Device/Common.cuh"

/// A lane's four values of C.
struct qlora_sums {
  float value[4];
};

#ifdef __NVCC__

/// Returns `value`, but hides from the compiler that it is unchanged. Otherwise
/// the compiler computes all addresses of an unrolled loop before the
/// surrounding loop, and each address occupies a register.
QLORA_DEVICE uint32_t qlora_here(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// An address in shared memory, as an integer.
using qlora_shared = uint32_t;
QLORA_DEVICE qlora_shared qlora_shared_address(const void *p) {
  return qlora_here(uint32_t(__cvta_generic_to_shared(p)));
}

/// c += A B. The order of additions is unspecified, but the same in every run.
QLORA_DEVICE void qlora_multiply(qlora_sums &c, const qlora_words &a,
                                 uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c.value[0]), "+f"(c.value[1]), "+f"(c.value[2]), "+f"(c.value[3])
      : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b0),
        "r"(b1));
}

/// Loads four 8 by 8 bf16 matrices from shared memory. Lane l passes the
/// address of row l % 8 of matrix l / 8 (16 bytes). Word m of the result has
/// elements (g, 2t) and (g, 2t + 1) of matrix m.
QLORA_DEVICE qlora_words qlora_load_matrices(qlora_shared row) {
  qlora_words m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, "
               "[%4];"
               : "=r"(m.word[0]), "=r"(m.word[1]), "=r"(m.word[2]),
                 "=r"(m.word[3])
               : "r"(row)
               : "memory");
  return m;
}

/// Like qlora_load_matrices, but transposes the matrices: word m has elements
/// (2t, g) and (2t + 1, g) of matrix m.
QLORA_DEVICE qlora_words qlora_load_transposed(qlora_shared row) {
  qlora_words m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 "
               "{%0, %1, %2, %3}, [%4];"
               : "=r"(m.word[0]), "=r"(m.word[1]), "=r"(m.word[2]),
                 "=r"(m.word[3])
               : "r"(row)
               : "memory");
  return m;
}

/// Begins to copy 16 aligned bytes from global to shared memory. If `exists` is
/// false, writes zeros and reads nothing.
QLORA_DEVICE void qlora_copy_async(qlora_shared to, const void *from,
                                   bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(exists ? 16 : 0)
               : "memory");
}

/// Makes a group of the copies that this thread began since the last call.
QLORA_DEVICE void qlora_commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits for all of this thread's groups, except the last `Pending` groups.
/// After a barrier, the copies of all threads are visible.
template <int Pending> QLORA_DEVICE void qlora_wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

#else

QLORA_DEVICE uint32_t qlora_here(uint32_t value) { return value; }
using qlora_shared = uintptr_t;
QLORA_DEVICE qlora_shared qlora_shared_address(const void *p) {
  return qlora_shared(p);
}
QLORA_DEVICE void qlora_multiply(qlora_sums &c, const qlora_words &a,
                                 uint32_t b0, uint32_t b1) {
  qlora_host_mma(c.value, a.word, {b0, b1});
}
QLORA_DEVICE qlora_words qlora_load_matrices(qlora_shared row) {
  qlora_words m;
  qlora_host_ldmatrix(m.word, row, /*transposes=*/false);
  return m;
}
QLORA_DEVICE qlora_words qlora_load_transposed(qlora_shared row) {
  qlora_words m;
  qlora_host_ldmatrix(m.word, row, /*transposes=*/true);
  return m;
}
QLORA_DEVICE void qlora_copy_async(qlora_shared to, const void *from,
                                   bool exists) {
  qlora_host_copy(to, from, exists ? 16 : 0);
}
QLORA_DEVICE void qlora_commit_copies() { qlora_host_commit(); }
template <int Pending> QLORA_DEVICE void qlora_wait_copies() {
  qlora_host_wait(Pending);
}

#endif // __NVCC__

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_TENSORCORE_CUH
