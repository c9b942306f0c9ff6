// SPDX-License-Identifier: MIT

// Rows of groups, of which a block has a tile: how many a group has is read from
// memory, so a grid has tiles for the most that there can be.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_GROUPS_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_GROUPS_CUH

#include "runtime/Kernels/Cuda/Device/Common.cuh"

/// Rows [first, end) of `group`, of which a tile has the first; `group` is the
/// count of groups for rows behind theirs. There are none where first is end.
struct GroupRows {
  int64_t group, first, end;

  __device__ bool areAmong(int64_t rows) const {
    return first >= 0 && first < end && end <= rows;
  }
};

/// Tile `number` of all groups' rows, of TileRows each. A warp looks at 32 groups
/// at once; all of its lanes call it.
template <int TileRows>
QLORA_DEVICE GroupRows groupRowsOf(const void *offsets, int64_t groups,
                                   int64_t rows, int64_t number) {
  constexpr unsigned kAll = 0xffffffffu;
  const int lane = int(threadIdx.x) % kQloraWarp;
  int64_t before = 0; // tiles of the groups so far
  for (int64_t base = 0; base < groups; base += kQloraWarp) {
    const int64_t group = base + lane;
    const bool exists = group < groups;
    const int begin = exists ? qlora_load_i32(offsets, group) : 0;
    const int end = exists ? qlora_load_i32(offsets, group + 1) : 0;
    const int tiles = end > begin ? (end - begin + TileRows - 1) / TileRows : 0;
    int through = tiles; // this group and those before it
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
