// SPDX-License-Identifier: MIT

// Neighbouring columns of a row that a thread loads and stores at once, as
// generated kernels do. N is 2, 4, 8 or 16; an address is aligned to N elements
// or to 16 bytes, whichever is less. What is loaded is f32, whatever the type
// in memory; a store rounds as the store of one element does (Rows.h).

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_LANES_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_LANES_CUH

#include "runtime/Kernels/Cuda/Device/Common.cuh"

template <int N> struct qlora_lanes {
  float value[N];
  __device__ float &operator[](int lane) { return value[lane]; }
  __device__ float operator[](int lane) const { return value[lane]; }
};

/// The widest word of an access of so many bytes.
template <int Bytes> struct qlora_word {
  using type = uint32_t;
};
template <> struct qlora_word<2> {
  using type = uint16_t;
};

/// N elements of type T as accesses of at most 16 bytes.
template <typename T, int N> struct qlora_packed {
  static constexpr int kBytes = N * int(sizeof(T));
  static constexpr int kAccess = kBytes < 16 ? kBytes : 16;
  using word_type = typename qlora_word<kAccess>::type;
  struct alignas(kAccess) access {
    word_type word[kAccess / int(sizeof(word_type))];
  };
  union {
    access part[kBytes / kAccess];
    T element[N];
  };
};

template <typename Element, int N>
QLORA_DEVICE qlora_lanes<N> qlora_load_lanes(const void *p, int64_t i) {
  using T = typename Element::storage;
  qlora_packed<T, N> packed;
  const void *const from = qlora_at<T>(p, i);
  QLORA_UNROLL
  for (int part = 0; part < packed.kBytes / packed.kAccess; ++part)
    packed.part[part] =
        *qlora_at<typename qlora_packed<T, N>::access>(from, part);
  qlora_lanes<N> lanes;
  QLORA_UNROLL
  for (int lane = 0; lane < N; ++lane)
    lanes[lane] = Element::load(packed.element, lane);
  return lanes;
}

template <typename Element, int N>
QLORA_DEVICE void qlora_store_lanes(void *p, int64_t i,
                                    const qlora_lanes<N> &lanes) {
  using T = typename Element::storage;
  qlora_packed<T, N> packed;
  QLORA_UNROLL
  for (int lane = 0; lane < N; ++lane)
    Element::store(packed.element, lane, lanes[lane]);
  void *const to = qlora_at<T>(p, i);
  QLORA_UNROLL
  for (int part = 0; part < packed.kBytes / packed.kAccess; ++part)
    *qlora_at<typename qlora_packed<T, N>::access>(to, part) =
        packed.part[part];
}

#define QLORA_LANES(type)                                                      \
  template <int N>                                                             \
  QLORA_DEVICE qlora_lanes<N> qlora_load_##type(const void *p, int64_t i) {    \
    return qlora_load_lanes<qlora_##type, N>(p, i);                            \
  }                                                                            \
  template <int N>                                                             \
  QLORA_DEVICE void qlora_store_##type(void *p, int64_t i,                     \
                                       const qlora_lanes<N> &lanes) {          \
    qlora_store_lanes<qlora_##type>(p, i, lanes);                              \
  }
QLORA_LANES(f32)
QLORA_LANES(bf16)
QLORA_LANES(f16)
QLORA_LANES(i8)
#undef QLORA_LANES

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_LANES_CUH
