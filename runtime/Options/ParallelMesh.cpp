// SPDX-License-Identifier: MIT

// Parses, checks and enumerates axes and their sizes.

#include "runtime/Options/ParallelMesh.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>
#include <utility>

namespace qlora {

/// Largest size of an axis: train.so stores numbers of ranks in 16 bits.
static constexpr int64_t kMaxAxis = 65535;

static Status notASize(std::string_view item) {
  return Status::invalid("--parallel: '{}' is not AXIS=RANKS, such as fsdp=4, "
                         "with 1 to {} ranks",
                         item, kMaxAxis);
}

static Status setAxis(ParallelMesh &mesh, std::string_view name,
                      uint32_t ranks) {
  if (name == "dp")
    return Status::invalid("--parallel: dp has no size, as all remaining ranks "
                           "are data-parallel; set --gpus instead");
  const auto axis = std::ranges::find(kMeshAxes, name, &MeshAxis::name);
  if (axis == std::end(kMeshAxes)) {
    std::vector<std::string_view> names;
    std::ranges::transform(kMeshAxes, std::back_inserter(names),
                           &MeshAxis::name);
    return Status::invalid("--parallel: '{}' is not an axis; choose from: {}",
                           name, fmt::join(names, ", "));
  }
  mesh.*axis->ranks = ranks;
  return Status::ok();
}

/// Returns the axis that errors about the number of ranks name: pp, tp, or the
/// first of the largest others.
static const MeshAxis &mainAxis(const ParallelMesh &mesh) {
  return *std::ranges::max_element(kMeshAxes, {}, [&](const MeshAxis &axis) {
    const uint32_t ranks = mesh.*axis.ranks;
    const int order = axis.place() == MeshPlace::Outer   ? 2
                      : axis.place() == MeshPlace::Inner ? 1
                                                         : 0;
    return std::pair(ranks > 1 ? order : 0, ranks);
  });
}

Status ParallelMesh::checkRanks(std::string_view subject, int64_t ranks) const {
  if (ranks % size() == 0)
    return Status::ok();
  const MeshAxis &axis = mainAxis(*this);
  return Status::invalid(
      "{} {} over {} ranks, but {} {} started; start a multiple of {}, or "
      "compile with another --parallel {}=N",
      subject, axis.words, size(), ranks, ranks == 1 ? "was" : "were", size(),
      axis.name);
}

std::string ParallelMesh::text() const {
  std::string text;
  for (const MeshAxis &axis : kMeshAxes)
    if (this->*axis.ranks > 1)
      text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.name,
                          this->*axis.ranks);
  return text.empty() ? "none" : text;
}

/// Checks the FSDP group's axes, whose sizes must agree. zero2 includes zero1.
static Status checkPieces(const ParallelMesh &mesh) {
  const MeshAxis *first = nullptr;
  for (const MeshAxis &axis : kMeshAxes) {
    if (axis.group != QLORA_GROUP_FSDP || mesh.*axis.ranks == 1)
      continue;
    if (first && mesh.*axis.ranks != mesh.*first->ranks)
      return Status::invalid("--parallel: {}={} and {}={} shard over the same "
                             "ranks; give both the same number",
                             first->name, mesh.*first->ranks, axis.name,
                             mesh.*axis.ranks);
    first = &axis;
  }
  if (mesh.zero1 > 1 && mesh.zero2 > 1)
    return Status::invalid("--parallel: zero2={} includes zero1; remove zero1",
                           mesh.zero2);
  return Status::ok();
}

/// Returns whether two axes shard the same weights in ways that exclude each
/// other. With tp, fsdp shards slices again.
static bool areExclusive(const MeshAxis &one, const MeshAxis &other) {
  return (one.has(kSlices) && other.has(kSlices)) ||
         (one.has(kTables) && other.has(kTables) &&
          one.place() == other.place());
}

static Status checkTogether(const ParallelMesh &mesh) {
  for (const MeshAxis &axis : kMeshAxes)
    for (const MeshAxis &other : kMeshAxes)
      if (&axis < &other && mesh.*axis.ranks > 1 && mesh.*other.ranks > 1 &&
          areExclusive(axis, other))
        return Status::invalid(
            "--parallel: {}={} does not work with {}={} yet; remove one",
            axis.name, mesh.*axis.ranks, other.name, mesh.*other.ranks);
  return Status::ok();
}

/// Checks axes that use the same ranks: for each two of them, one size must
/// divide the other.
static Status checkSizes(const ParallelMesh &mesh) {
  for (const MeshAxis &axis : kMeshAxes)
    for (const MeshAxis &other : kMeshAxes) {
      if (axis.place() != MeshPlace::Middle ||
          other.place() != MeshPlace::Middle)
        continue;
      const int64_t one = mesh.*axis.ranks, two = mesh.*other.ranks;
      if (std::max(one, two) % std::min(one, two) != 0)
        return Status::invalid("--parallel: {}={} and {}={} do not fit: one "
                               "number must divide the other; change one",
                               axis.name, one, other.name, two);
    }
  return Status::ok();
}

Status ParallelMesh::check() const {
  for (const MeshAxis &axis : kMeshAxes)
    if (this->*axis.ranks < 1 || this->*axis.ranks > kMaxAxis)
      return notASize(fmt::format("{}={}", axis.name, this->*axis.ranks));
  QLORA_RETURN_IF_ERROR(checkPieces(*this));
  QLORA_RETURN_IF_ERROR(checkTogether(*this));
  return checkSizes(*this);
}

/// Whether an axis of candidates() may have size `number` in a mesh of `ranks`
/// ranks. If another axis of its group has a size, only that size is possible.
/// Otherwise, any divisor of `ranks` is.
static bool mayHave(const ParallelMesh &mesh, const MeshAxis &axis,
                    int64_t number, int64_t ranks) {
  const int64_t known = mesh.groups()[axis.group];
  return known > 1 ? number == known : ranks % number == 0;
}

/// Whether candidates() adds ep=`number` to the mesh. It combines ep only with
/// fsdp of the same size: other combinations are numerous and no better.
static bool isWorthSharingExperts(const ParallelMesh &mesh, int64_t number) {
  return mesh.zero1 == 1 && mesh.zero2 == 1 &&
         (mesh.fsdp == 1 || mesh.fsdp == number);
}

std::vector<ParallelMesh>
ParallelMesh::candidates(int64_t ranks, bool trainsModel, int64_t experts) {
  std::vector<ParallelMesh> meshes = {ParallelMesh()};
  for (const MeshAxis &axis : kMeshAxes) {
    const bool isOfTrained = axis.ranks == &qlora_mesh::zero2;
    const bool isOfExperts = axis.group == QLORA_GROUP_EP;
    const int64_t most = isOfExperts ? experts : ranks;
    if ((axis.group != QLORA_GROUP_FSDP && !isOfExperts) ||
        (isOfTrained && !trainsModel))
      continue;
    for (size_t i = 0, simpler = meshes.size(); i < simpler; ++i)
      for (int64_t number = 2; number <= std::min(most, kMaxAxis); ++number) {
        ParallelMesh mesh = meshes[i];
        if (!mayHave(mesh, axis, number, ranks) ||
            (isOfExperts && (experts % number != 0 ||
                             !isWorthSharingExperts(mesh, number))))
          continue;
        mesh.*axis.ranks = static_cast<uint32_t>(number);
        if (checkPieces(mesh).isOk())
          meshes.push_back(mesh);
      }
  }
  return meshes;
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
    uint32_t ranks = 0;
    const auto read =
        std::from_chars(number.data(), number.data() + number.size(), ranks);
    if (read.ec != std::errc() || read.ptr != number.data() + number.size())
      return notASize(item);
    if (!seen.insert(axis).second)
      return Status::invalid("--parallel gives {} twice; remove one", axis);
    QLORA_RETURN_IF_ERROR(setAxis(mesh, axis, ranks));
  }
  QLORA_RETURN_IF_ERROR(mesh.check());
  return mesh;
}

} // namespace qlora
