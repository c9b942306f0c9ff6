// SPDX-License-Identifier: MIT

// Axes and their sizes.

#include "runtime/Base/ParallelMesh.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>

namespace qlora {

static constexpr int64_t kMaxAxis = 65536;
static constexpr std::string_view kAxes[] = {"dp", "fsdp", "zero1", "zero2",
                                             "tp", "pp",   "cp",    "ep"};

static Status setAxis(ParallelMesh &mesh, std::string_view axis,
                      int64_t ranks) {
  if (std::ranges::find(kAxes, axis) == std::end(kAxes))
    return Status::invalid("--parallel: '{}' is no axis; there are: {}", axis,
                           fmt::join(kAxes, ", "));
  if (axis == "dp")
    return Status::invalid("--parallel: dp is what is left of the ranks of a "
                           "run; give it with --gpus");
  if (axis != "fsdp" && axis != "zero1")
    return Status::invalid("--parallel: {} is not there yet; fsdp and zero1 "
                           "are",
                           axis);
  (axis == "fsdp" ? mesh.shards : mesh.updatePieces) = ranks;
  return Status::ok();
}

StatusOr<ParallelMesh> ParallelMesh::parse(std::string_view text) {
  ParallelMesh mesh;
  if (text.empty() || text == "none")
    return mesh;
  std::set<std::string_view> seen;
  for (bool isLast = false; !isLast;) {
    const size_t comma = text.find(',');
    isLast = comma == text.npos;
    const std::string_view item = text.substr(0, comma);
    text.remove_prefix(isLast ? text.size() : comma + 1);
    const size_t equals = std::min(item.find('='), item.size());
    const std::string_view axis = item.substr(0, equals);
    const std::string_view number =
        item.substr(std::min(equals + 1, item.size()));
    int64_t ranks = 0;
    const auto read =
        std::from_chars(number.data(), number.data() + number.size(), ranks);
    if (read.ec != std::errc() || read.ptr != number.data() + number.size() ||
        ranks < 1 || ranks > kMaxAxis)
      return Status::invalid("--parallel: '{}' is no AXIS=RANKS, such as "
                             "fsdp=4, of 1 to {} ranks",
                             item, kMaxAxis);
    if (!seen.insert(axis).second)
      return Status::invalid("--parallel has two numbers for {}", axis);
    QLORA_RETURN_IF_ERROR(setAxis(mesh, axis, ranks));
  }
  if (mesh.shards > 1 && mesh.updatePieces > 1 &&
      mesh.shards != mesh.updatePieces)
    return Status::invalid("--parallel: fsdp={} and zero1={} are pieces on the "
                           "same ranks; give them one number",
                           mesh.shards, mesh.updatePieces);
  return mesh;
}

} // namespace qlora
