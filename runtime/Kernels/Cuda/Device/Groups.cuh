// SPDX-License-Identifier: MIT

// Tiles of grouped rows. Group sizes are in device memory, so the grid covers
// the largest possible number of tiles.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_GROUPS_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_GROUPS_CUH

#include "runtime/Kernels/Cuda/Device/Common.cuh"

/// Rows [first, end) of `group`, from the start of a tile; empty if first ==
/// end. For rows after the last group, `group` is the number of groups.
struct GroupRows {
  int64_t group, first, end;

  __device__ bool areAmong(int64_t rows) const {
    return first >= 0 && first < end && end <= rows;
  }
};

/// Returns the rows of tile `number`, with TileRows rows per tile. Tiles are
/// numbered over all groups. All lanes of the warp must call it.
template <int TileRows>
QLORA_DEVICE GroupRows groupRowsOf(const void *offsets, int64_t groups,
                                   int64_t rows, int64_t number) {
  constexpr unsigned kAll = 0xffffffffu;
  const int lane = int(threadIdx.x) % kQloraWarp;
  int64_t before = 0; // number of tiles of all earlier groups
  for (int64_t base = 0; base < groups; base += kQloraWarp) {
    const int64_t group = base + lane;
    const bool exists = group < groups;
    const int begin = exists ? qlora_load_i32(offsets, group) : 0;
    const int end = exists ? qlora_load_i32(offsets, group + 1) : 0;
    const int tiles = end > begin ? (end - begin + TileRows - 1) / TileRows : 0;
    int through = tiles; // number of tiles up to and including this group
    for (int distance = 1; distance < kQloraWarp; distance *= 2) {
      const int other = __shfl_up_sync(kAll, through, distance);
      through += lane >= distance ? other : 0;
    }
    const unsigned found = __ballot_sync(kAll, before + through > number);
    if (found) {
      const int who = __ffs(int(found)) - 1;
      const int64_t first = before + __shfl_sync(kAll, through - tiles, who);
      return {base + who,
              __shfl_sync(kAll, begin, who) + (number - first) * TileRows,
              __shfl_sync(kAll, end, who)};
    }
    before += __shfl_sync(kAll, through, kQloraWarp - 1);
  }
  const int64_t first =
      qlora_load_i32(offsets, groups) + (number - before) * TileRows;
  return {groups, first < rows ? first : rows, rows};
}

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_GROUPS_CUH
