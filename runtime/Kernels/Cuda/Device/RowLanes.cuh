// SPDX-License-Identifier: MIT

// A row that the threads of a block walk over together, 8 neighbours at a time
// where they begin at 16 bytes.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_ROWLANES_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_ROWLANES_CUH

#include "runtime/Kernels/Cuda/Device/Lanes.cuh"

/// Neighbours of one thread.
constexpr int kQloraRowLanes = 8;

QLORA_DEVICE bool qlora_is_vector(const void *p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

/// Calls whole(i) for the threads' groups of 8 columns from i on, if they are
/// `wide`, and single(i) for what is left.
template <typename Whole, typename Single>
QLORA_DEVICE void qlora_for_row(int64_t columns, bool wide, Whole whole,
                                Single single) {
  const int64_t groups = wide ? columns / kQloraRowLanes : 0;
  QLORA_UNROLL_2
  for (int64_t group = threadIdx.x; group < groups; group += blockDim.x)
    whole(group * kQloraRowLanes);
  QLORA_ROLL
  for (int64_t i = groups * kQloraRowLanes + threadIdx.x; i < columns;
       i += blockDim.x)
    single(i);
}

/// to := from, converted.
template <typename From, typename To>
QLORA_DEVICE void qlora_copy_row(const typename From::storage *from,
                                 typename To::storage *to, int64_t columns) {
  qlora_for_row(
      columns, qlora_is_vector(from) && qlora_is_vector(to),
      [&](int64_t i) {
        qlora_store_lanes<To>(to, i,
                              qlora_load_lanes<From, kQloraRowLanes>(from, i));
      },
      [&](int64_t i) { To::store(to, i, From::load(from, i)); });
}

template <typename To>
QLORA_DEVICE void qlora_fill_row(typename To::storage *to, int64_t columns,
                                 float value) {
  qlora_lanes<kQloraRowLanes> lanes;
  QLORA_UNROLL
  for (int lane = 0; lane < kQloraRowLanes; ++lane)
    lanes[lane] = value;
  qlora_for_row(
      columns, qlora_is_vector(to),
      [&](int64_t i) { qlora_store_lanes<To>(to, i, lanes); },
      [&](int64_t i) { To::store(to, i, value); });
}

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_ROWLANES_CUH
