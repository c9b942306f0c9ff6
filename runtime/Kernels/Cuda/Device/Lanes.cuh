// SPDX-License-Identifier: MIT

// Vector loads and stores of N adjacent columns by one thread; also used by
// generated kernels. N is 1, 2, 4, 8 or 16. An address must be aligned to N
// elements or 16 bytes, whichever is less. Loads convert to f32. Stores round
// like single stores (Rows.h).

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_LANES_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_LANES_CUH

#include "runtime/Kernels/Cuda/Device/Common.cuh"

template <int N> struct qlora_lanes {
  float value[N];
  __device__ float &operator[](int lane) { return value[lane]; }
  __device__ float operator[](int lane) const { return value[lane]; }
};

/// The widest word type for an access of `Bytes` bytes: 16 or 32 bits.
template <int Bytes> struct qlora_word { using type = uint32_t; };
template <> struct qlora_word<2> { using type = uint16_t; };

/// N adjacent elements of type T. A load or store moves one `part`, at most 16
/// bytes, at a time.
template <typename T, int N> struct qlora_packed {
  static constexpr int kBytes = N * int(sizeof(T));
  static constexpr int kAccess = kBytes < 16 ? kBytes : 16;
  using word_type = typename qlora_word<kAccess>::type;
  struct alignas(kAccess) access {
    word_type word[kAccess / int(sizeof(word_type))];
  };
  union {
    access part[kBytes / kAccess];
    uint32_t word[(kBytes + 3) / 4];
    T element[N];
  };
};

/// A word's two 16-bit elements, converted; `low` is the first.
struct qlora_pair {
  float low, high;
};
QLORA_DEVICE qlora_pair qlora_widen_pair(qlora_bf16, uint32_t word) {
  return {qlora_from_bits(word << 16), qlora_from_bits(word & 0xffff0000u)};
}
QLORA_DEVICE qlora_pair qlora_widen_pair(qlora_f16, uint32_t word) {
  return {qlora_f16_to_f32(uint16_t(word)),
          qlora_f16_to_f32(uint16_t(word >> 16))};
}
QLORA_DEVICE uint32_t qlora_narrow_pair(qlora_bf16, float low, float high) {
  return qlora_round_pair(low, high);
}
QLORA_DEVICE uint32_t qlora_narrow_pair(qlora_f16, float low, float high) {
  return qlora_round_pair_f16(low, high);
}

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
  if constexpr (sizeof(T) == 2 && N > 1) {
    QLORA_UNROLL
    for (int i = 0; i < N / 2; ++i) {
      const qlora_pair pair = qlora_widen_pair(Element(), packed.word[i]);
      lanes[2 * i] = pair.low;
      lanes[2 * i + 1] = pair.high;
    }
  } else {
    QLORA_UNROLL
    for (int lane = 0; lane < N; ++lane)
      lanes[lane] = Element::load(packed.element, lane);
  }
  return lanes;
}

template <typename Element, int N>
QLORA_DEVICE void qlora_store_lanes(void *p, int64_t i,
                                    const qlora_lanes<N> &lanes) {
  using T = typename Element::storage;
  qlora_packed<T, N> packed;
  if constexpr (sizeof(T) == 2 && N > 1) {
    QLORA_UNROLL
    for (int i = 0; i < N / 2; ++i)
      packed.word[i] =
          qlora_narrow_pair(Element(), lanes[2 * i], lanes[2 * i + 1]);
  } else {
    QLORA_UNROLL
    for (int lane = 0; lane < N; ++lane)
      Element::store(packed.element, lane, lanes[lane]);
  }
  void *const to = qlora_at<T>(p, i);
  QLORA_UNROLL
  for (int part = 0; part < packed.kBytes / packed.kAccess; ++part)
    *qlora_at<typename qlora_packed<T, N>::access>(to, part) =
        packed.part[part];
}

/// Random words of qlora_uniform (Math/Philox.h) for N columns. The first
/// column must be a multiple of N. One Philox call gives four columns.
template <int N> struct qlora_draws { uint32_t word[N]; };
template <int N>
QLORA_DEVICE qlora_draws<N> qlora_draw(uint64_t seed, uint64_t micro_batch,
                                       uint64_t op, int64_t row, int column) {
  qlora_draws<N> draws;
  QLORA_UNROLL
  for (int i = 0; i < N; i += 4) {
    const qlora_philox_words words =
        qlora_philox({uint32_t(column + i) / 4, uint32_t(row), uint32_t(op),
                      uint32_t(micro_batch)},
                     uint32_t(seed), uint32_t(seed >> 32));
    if constexpr (N == 2) {
      const bool isFirst = column % 4 == 0;
      draws.word[0] = isFirst ? words.word0 : words.word2;
      draws.word[1] = isFirst ? words.word1 : words.word3;
    } else {
      draws.word[i] = words.word0;
      draws.word[i + 1] = words.word1;
      draws.word[i + 2] = words.word2;
      draws.word[i + 3] = words.word3;
    }
  }
  return draws;
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

// Rows ------------------------------------------------------------------------
//
// All threads of a block loop over a row, in groups of 8 elements if its
// address is aligned to 16 bytes.

/// Adjacent elements that a thread accesses at once.
constexpr int kQloraRowLanes = 8;

QLORA_DEVICE bool qlora_is_vector(const void *p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

/// If `wide`, calls whole(i) for each complete group of 8 columns. Calls
/// single(i) for all remaining columns.
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

/// Copies a row, converting elements.
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

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_LANES_CUH
