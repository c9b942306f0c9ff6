// SPDX-License-Identifier: MIT

// sort_by_expert: sorts rows by their expert.

#include <algorithm>
#include <vector>

#include "runtime/Kernels/Cpu/CheckIndices.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"

namespace qlora::cpu {

namespace {
/// Counting sort of the rows of this rank's experts.
class ExpertSort {
public:
  explicit ExpertSort(const KernelRequest &r)
      : rows(r.constant("rows")), experts(r.constant("experts")),
        own(experts / r.constant("ranks")), next(static_cast<size_t>(own)) {}

  Status run(const LibraryKernelArgs &args);

private:
  void findOffsets(const LibraryKernelArgs &args, int64_t first);

  int64_t rows, experts, own;
  std::vector<int32_t> next; ///< next free position per expert of this rank
};
} // namespace

void ExpertSort::findOffsets(const LibraryKernelArgs &args, int64_t first) {
  const auto *choices = bufferOf<const int32_t>(args, 0);
  auto *offsets = bufferOf<int32_t>(args, 4);
  std::fill_n(offsets, experts + 1, 0);
  for (int64_t row = 0; row < rows; ++row)
    if (choices[row] >= first && choices[row] < first + own)
      ++offsets[choices[row] + 1];
  for (int64_t e = 0; e < experts; ++e)
    offsets[e + 1] += offsets[e];
  std::copy_n(offsets + first, own, next.begin());
  if (auto *ownOffsets = bufferOf<int32_t>(args, 5))
    std::copy_n(offsets + first, own + 1, ownOffsets);
}

Status ExpertSort::run(const LibraryKernelArgs &args) {
  const auto *choices = bufferOf<const int32_t>(args, 0);
  auto *order = bufferOf<int32_t>(args, 1);
  auto *places = bufferOf<int32_t>(args, 2);
  auto *sorted = bufferOf<int32_t>(args, 3);
  QLORA_RETURN_IF_ERROR(checkIndices("sort_by_expert", choices, rows, experts));
  const int64_t first =
      own == experts ? 0 : static_cast<int64_t>(args.step->expert_part) * own;
  findOffsets(args, first);
  std::fill_n(order, rows, -1);
  std::fill_n(sorted, rows, static_cast<int32_t>(first));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t expert = choices[row] - first;
    places[row] = -1;
    if (expert < 0 || expert >= own)
      continue;
    const int32_t place = next[static_cast<size_t>(expert)]++;
    order[place] = static_cast<int32_t>(row);
    sorted[place] = choices[row];
    places[row] = place;
  }
  return Status::ok();
}

PreparedKernel sort_by_expert::cpu::prepare(const KernelRequest &request,
                                            uint64_t) {
  return makeKernel([sort = ExpertSort(request)](
                        const LibraryKernelArgs &args) mutable {
    return sort.run(args);
  });
}

} // namespace qlora::cpu
