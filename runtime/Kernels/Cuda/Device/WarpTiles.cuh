// SPDX-License-Identifier: MIT

// Shared code for tensor core kernels: bf16 tiles, and sums of a warp.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_WARPTILES_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_WARPTILES_CUH

#include "runtime/Kernels/Cuda/Device/TensorCore.cuh"

/// Rows of Width bf16 values, in words of 16 bytes. Word w of row r is stored
/// at w ^ (r % 8). So the words that eight rows load together are in different
/// banks. (Padding after each row would do the same, but need more than the 48
/// KiB that a block has by default.) The tile's address is a multiple of a
/// row's bytes. So `address ^ 16 * i` is another word of the same row.
template <int Rows, int Width> struct alignas(2 * Width) HalfTile {
  static constexpr int kWords = Width / 8;
  qlora_words words[Rows][kWords];

  __device__ qlora_words &at(int row, int word) {
    return words[row][word ^ (row % 8)];
  }
  /// Returns the address that the calling lane passes to load 16 rows by 16
  /// dimensions from `row` on. An exclusive or with 32 k gives the address for
  /// the 16 dimensions from 16 k on.
  __device__ qlora_shared laneRow(int row) const {
    const int lane = int(threadIdx.x) % kQloraWarp;
    return qlora_shared_address(
        &words[row + lane % 16][lane / 16 ^ (lane % 8)]);
  }
};

/// A warp's f32 sums of 16 rows by Columns. Tile j has columns 8 j to 8 j + 7.
template <int Columns> struct WarpSums {
  static constexpr int kCount = Columns / 8;
  qlora_sums tile[kCount];
};

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_WARPTILES_CUH
