// SPDX-License-Identifier: MIT

// Values of 4-bit and 8-bit weights, bit-identical to StoredTensor::element
// because each operation is rounded separately.
//
// A kernel that uses this header begins its constants with: elements; the
// block; its log2, or -1 if it is no power of two; double_quant; byte offsets
// of scales, nestedAbsmax, nestedMap, codeBook, correction and zeros; 2^64 /
// block, rounded up.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_DECODE_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_DECODE_CUH

#include "runtime/Kernels/Cuda/Device/Common.cuh"

/// Number of constants before those of the kernel.
constexpr int kDecodeConstants = 11;

/// Coding of a format: bits per code, and whether blocks have zero points.
template <int Bits, bool HasZeros> struct DecodeCoding {
  static constexpr int kBits = Bits;
  static constexpr bool kHasZeros = HasZeros;
};

/// Lookup tables of a thread block. A 4-bit code book is in 16 banks, so lanes
/// never conflict. The book's address ends in a zero byte, for lookUp().
template <typename Coding> struct alignas(256) DecodeTables {
  float codeBook[1 << Coding::kBits];
  float nestedMap[256];
};

struct DecodeWeight {
  const uint8_t *packed, *scales, *zeros;
  const float *nestedAbsmax;
  float correction;
  int64_t count, block;
  uint64_t reciprocal;
  int shift; ///< log2 of the block, or -1
  bool isDouble;

  /// Describes the weight in a buffer.
  QLORA_DEVICE DecodeWeight of(const qlora_cuda_args &args, int buffer) {
    const uint8_t *base = qlora_at<uint8_t>(args.buffers[buffer], 0);
    const int64_t *c = args.constants;
    return {base,
            base + c[4],
            base + c[9],
            reinterpret_cast<const float *>(base + c[5]),
            *reinterpret_cast<const float *>(base + c[8]),
            c[0],
            c[1],
            uint64_t(c[10]),
            int(c[2]),
            c[3] != 0};
  }
};

/// Copies the tables of the weight in a buffer. All threads of a block of at
/// least 256 threads must call it; it ends with a barrier.
template <typename Coding>
QLORA_DEVICE void fillTables(const qlora_cuda_args &args, int buffer,
                             DecodeTables<Coding> &tables) {
  const uint8_t *base = qlora_at<uint8_t>(args.buffers[buffer], 0);
  const int thread = int(threadIdx.x);
  if (thread < 1 << Coding::kBits)
    tables.codeBook[thread] = qlora_load_f32(base + args.constants[7], thread);
  if (args.constants[3] != 0)
    tables.nestedMap[thread] = qlora_load_f32(base + args.constants[6], thread);
  __syncthreads();
}

/// Converts values of the code book: subtracts the zero point, if the format
/// has zero points, then multiplies by `absmax`. Only the
/// specialization has a zero point, so other formats need no register for it.
template <typename Coding, bool = Coding::kHasZeros> struct DecodeFactors {
  float absmax;

  __device__ float operator()(float value) const {
    return __fmul_rn(value, absmax);
  }
  /// Returns the factors of another lane of the warp.
  __device__ DecodeFactors ofLane(int lane) const {
    return {__shfl_sync(0xffffffffu, absmax, lane)};
  }
};

template <typename Coding> struct DecodeFactors<Coding, true> {
  float absmax, zero;

  __device__ float operator()(float value) const {
    return __fmul_rn(__fsub_rn(value, zero), absmax);
  }
  __device__ DecodeFactors ofLane(int lane) const {
    return {__shfl_sync(0xffffffffu, absmax, lane),
            __shfl_sync(0xffffffffu, zero, lane)};
  }
};

/// A block's scale as stored, not yet decoded.
struct DecodeScale {
  float factor; ///< nestedAbsmax of the scale's run, or the scale itself
  int code;

  QLORA_DEVICE DecodeScale load(const DecodeWeight &w, int64_t index) {
    if (w.isDouble)
      return {w.nestedAbsmax[index / 256], w.scales[index]};
    return {qlora_load_f32(w.scales, index), 0};
  }
  template <typename Coding>
  __device__ float absmax(const DecodeWeight &w,
                          const DecodeTables<Coding> &tables) const {
    return w.isDouble ? __fadd_rn(__fmul_rn(tables.nestedMap[code], factor),
                                  w.correction)
                      : __fmul_rn(factor, w.correction);
  }
};

/// Returns the code book value at the byte offset in byte i of `offsets`. The
/// book's address ends in a zero byte, which this offset replaces.
template <typename Coding>
QLORA_DEVICE float lookUp(const DecodeTables<Coding> &tables, uint32_t offsets,
                          int i) {
#ifdef __NVCC__
  const uint32_t book = uint32_t(__cvta_generic_to_shared(tables.codeBook));
  float number;
  asm volatile("ld.shared.f32 %0, [%1];"
               : "=f"(number)
               : "r"(__byte_perm(offsets, book, 0x7650u + unsigned(i))));
  return number;
#else
  return tables.codeBook[(offsets >> (8 * i) & 0xffu) / sizeof(float)];
#endif
}

/// Decodes a group of 4-bit codes. A byte's high half is its first code.
template <bool kHasZeros, int kCount>
QLORA_DEVICE void
decodeGroup(const DecodeTables<DecodeCoding<4, kHasZeros>> &tables,
            uint32_t packed,
            const DecodeFactors<DecodeCoding<4, kHasZeros>> &factors,
            float (&values)[kCount]) {
  const uint32_t high = packed >> 2 & 0x3c3c3c3cu;
  const uint32_t low = packed << 2 & 0x3c3c3c3cu;
  QLORA_UNROLL
  for (int i = 0; i < kCount; ++i)
    values[i] = factors(lookUp(tables, i % 2 == 0 ? high : low, i / 2));
}

/// Decodes a group of 8-bit codes. A code is an index into the code book.
template <bool kHasZeros, int kCount>
QLORA_DEVICE void
decodeGroup(const DecodeTables<DecodeCoding<8, kHasZeros>> &tables,
            uint64_t packed,
            const DecodeFactors<DecodeCoding<8, kHasZeros>> &factors,
            float (&values)[kCount]) {
  QLORA_UNROLL
  for (int i = 0; i < kCount; ++i)
    values[i] = factors(tables.codeBook[packed >> (8 * i) & 0xffu]);
}

/// Integer type that holds the codes of a group.
template <int kBytes> struct DecodePacked;
template <> struct DecodePacked<2> { using type = uint16_t; };
template <> struct DecodePacked<4> { using type = uint32_t; };
template <> struct DecodePacked<8> { using type = uint64_t; };

/// Returns the index of an element's scale, element / block. Multiplies by a
/// reciprocal, because a 64-bit division would spill registers. The result is
/// exact while element * block < 2^64.
QLORA_DEVICE int64_t decodeScaleIndex(const DecodeWeight &w, int64_t element) {
  return w.shift >= 0 ? element >> w.shift
                      : int64_t(__umul64hi(uint64_t(element), w.reciprocal));
}

template <typename Coding>
QLORA_DEVICE DecodeFactors<Coding>
decodeFactorsOf(const DecodeWeight &w, const DecodeTables<Coding> &tables,
                int64_t i) {
  const int64_t index = decodeScaleIndex(w, i);
  const float absmax = DecodeScale::load(w, index).absmax(w, tables);
  if constexpr (Coding::kHasZeros)
    return {absmax, float(w.zeros[index])};
  else
    return {absmax};
}

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_DECODE_CUH
