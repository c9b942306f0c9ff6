// SPDX-License-Identifier: MIT

// Parses, checks and enumerates axes and their sizes.

#include "runtime/Base/ParallelMesh.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>
#include <utility>

#include "runtime/ABI/collective.h"

namespace qlora {

/// Largest size of an axis: train.so stores numbers of ranks in 16 bits.
static constexpr int64_t kMaxAxis = 65535;

namespace {
/// An axis of --parallel. The axis dp has no size in a mesh, because it has the
/// remaining ranks. Axes with the same group must have equal sizes, unless 1.
struct Axis {
  std::string_view name;
  int64_t ParallelMesh::*ranks = nullptr;
  qlora_group group = QLORA_GROUP_DP;
};
} // namespace

static constexpr Axis kAxes[] = {
    {"dp"},
    {"fsdp", &ParallelMesh::shards, QLORA_GROUP_FSDP},
    {"zero1", &ParallelMesh::updatePieces, QLORA_GROUP_FSDP},
    {"zero2", &ParallelMesh::trainedPieces, QLORA_GROUP_FSDP},
    {"tp", &ParallelMesh::tensorRanks, QLORA_GROUP_TP},
    {"pp", &ParallelMesh::stages, QLORA_GROUP_PP},
    {"cp", &ParallelMesh::contextRanks, QLORA_GROUP_CP},
    {"ep", &ParallelMesh::expertRanks, QLORA_GROUP_EP}};

static Status setAxis(ParallelMesh &mesh, std::string_view name,
                      int64_t ranks) {
  const auto axis = std::ranges::find(kAxes, name, &Axis::name);
  if (axis == std::end(kAxes)) {
    std::vector<std::string_view> names;
    std::ranges::transform(kAxes, std::back_inserter(names), &Axis::name);
    return Status::invalid("--parallel: '{}' is not an axis; choose from: {}",
                           name, fmt::join(names, ", "));
  }
  if (name == "dp")
    return Status::invalid("--parallel: dp has no size, as all remaining ranks "
                           "are data-parallel; set --gpus instead");
  mesh.*axis->ranks = ranks;
  return Status::ok();
}

/// Returns the largest size of a mesh's axes in a group.
static int64_t ranksOf(const ParallelMesh &mesh, qlora_group group) {
  int64_t ranks = 1;
  for (const Axis &axis : kAxes)
    if (axis.ranks && axis.group == group)
      ranks = std::max(ranks, mesh.*axis.ranks);
  return ranks;
}

/// fsdp, cp and ep use the same consecutive ranks; the largest size counts.
int64_t ParallelMesh::size() const {
  return std::max({ranksOf(*this, QLORA_GROUP_FSDP), contextRanks,
                   expertRanks}) *
         tensorRanks * stages;
}

/// Returns text for errors about the number of ranks: what the mesh shards, and
/// the name of the axis.
static std::pair<const char *, const char *>
sharingOf(const ParallelMesh &mesh) {
  const int64_t pieces = ranksOf(mesh, QLORA_GROUP_FSDP);
  if (mesh.stages > 1)
    return {"distributes its layers", "pp"};
  if (mesh.tensorRanks > 1)
    return {"shards its matmuls", "tp"};
  if (mesh.contextRanks > pieces)
    return {"shards each sequence", "cp"};
  if (mesh.expertRanks > pieces)
    return {"shards its experts", "ep"};
  if (mesh.shards > 1)
    return {"shards its base", "fsdp"};
  return mesh.trainedPieces > 1
             ? std::pair("shards its trainable parameters", "zero2")
             : std::pair("shards its optimizer states", "zero1");
}

Status ParallelMesh::checkRanks(std::string_view subject, int64_t ranks) const {
  if (ranks % size() == 0)
    return Status::ok();
  const auto [what, axis] = sharingOf(*this);
  return Status::invalid(
      "{} {} over {} ranks, but {} {} started; start a multiple of {}, or "
      "compile with another --parallel {}=N",
      subject, what, size(), ranks, ranks == 1 ? "was" : "were", size(), axis);
}

std::string ParallelMesh::text() const {
  std::string text;
  for (const Axis &axis : kAxes)
    if (axis.ranks && this->*axis.ranks > 1)
      text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.name,
                          this->*axis.ranks);
  return text.empty() ? "none" : text;
}

/// Checks the FSDP group's axes, whose sizes must agree. zero2 includes zero1.
static Status checkPieces(const ParallelMesh &mesh) {
  const Axis *first = nullptr;
  for (const Axis &axis : kAxes) {
    if (!axis.ranks || axis.group != QLORA_GROUP_FSDP || mesh.*axis.ranks == 1)
      continue;
    if (first && mesh.*axis.ranks != mesh.*first->ranks)
      return Status::invalid("--parallel: {}={} and {}={} shard over the same "
                             "ranks; give both the same number",
                             first->name, mesh.*first->ranks, axis.name,
                             mesh.*axis.ranks);
    first = &axis;
  }
  if (mesh.updatePieces > 1 && mesh.trainedPieces > 1)
    return Status::invalid("--parallel: zero2={} includes zero1; remove zero1",
                           mesh.trainedPieces);
  return Status::ok();
}

/// Whether the ranks of a group are consecutive.
static bool followEachOther(qlora_group group) {
  return group == QLORA_GROUP_FSDP || group == QLORA_GROUP_CP ||
         group == QLORA_GROUP_EP;
}

/// Checks that tp and ep, which both shard experts, are not combined.
static Status checkTogether(const ParallelMesh &mesh) {
  if (mesh.tensorRanks > 1 && mesh.expertRanks > 1)
    return Status::invalid(
        "--parallel: tp={} does not work with ep={} yet; remove one",
        mesh.tensorRanks, mesh.expertRanks);
  return Status::ok();
}

/// Checks axes whose ranks are consecutive: for each two of them, one size must
/// divide the other.
static Status checkSizes(const ParallelMesh &mesh) {
  for (const Axis &axis : kAxes)
    for (const Axis &other : kAxes) {
      if (!axis.ranks || !other.ranks || !followEachOther(axis.group) ||
          !followEachOther(other.group))
        continue;
      const int64_t one = mesh.*axis.ranks, two = mesh.*other.ranks;
      if (std::max(one, two) % std::min(one, two) != 0)
        return Status::invalid("--parallel: {}={} and {}={} do not fit: one "
                               "number must divide the other; change one",
                               axis.name, one, other.name, two);
    }
  return Status::ok();
}

/// Whether an axis of candidates() may have size `number` in a mesh of `ranks`
/// ranks. If another axis of its group has a size, only that size is possible.
/// Otherwise, any divisor of `ranks` is.
static bool mayHave(const ParallelMesh &mesh, const Axis &axis, int64_t number,
                    int64_t ranks) {
  const int64_t known = ranksOf(mesh, axis.group);
  return known > 1 ? number == known : ranks % number == 0;
}

/// Whether candidates() adds ep=`number` to the mesh. It combines ep only with
/// fsdp of the same size: other combinations are numerous and no better.
static bool isWorthSharingExperts(const ParallelMesh &mesh, int64_t number) {
  return mesh.updatePieces == 1 && mesh.trainedPieces == 1 &&
         (mesh.shards == 1 || mesh.shards == number);
}

std::vector<ParallelMesh>
ParallelMesh::candidates(int64_t ranks, bool trainsModel, int64_t experts) {
  std::vector<ParallelMesh> meshes = {ParallelMesh()};
  for (const Axis &axis : kAxes) {
    const bool isOfTrained = axis.ranks == &ParallelMesh::trainedPieces;
    const bool isOfExperts = axis.group == QLORA_GROUP_EP;
    const int64_t most = isOfExperts ? experts : ranks;
    if (!axis.ranks || (axis.group != QLORA_GROUP_FSDP && !isOfExperts) ||
        (isOfTrained && !trainsModel))
      continue;
    for (size_t i = 0, simpler = meshes.size(); i < simpler; ++i)
      for (int64_t number = 2; number <= std::min(most, kMaxAxis); ++number) {
        ParallelMesh mesh = meshes[i];
        if (!mayHave(mesh, axis, number, ranks) ||
            (isOfExperts && (experts % number != 0 ||
                             !isWorthSharingExperts(mesh, number))))
          continue;
        mesh.*axis.ranks = number;
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
    int64_t ranks = 0;
    const auto read =
        std::from_chars(number.data(), number.data() + number.size(), ranks);
    if (read.ec != std::errc() || read.ptr != number.data() + number.size() ||
        ranks < 1 || ranks > kMaxAxis)
      return Status::invalid("--parallel: '{}' is not AXIS=RANKS, such as "
                             "fsdp=4, with 1 to {} ranks",
                             item, kMaxAxis);
    if (!seen.insert(axis).second)
      return Status::invalid("--parallel gives {} twice; remove one", axis);
    QLORA_RETURN_IF_ERROR(setAxis(mesh, axis, ranks));
  }
  QLORA_RETURN_IF_ERROR(checkPieces(mesh));
  QLORA_RETURN_IF_ERROR(checkTogether(mesh));
  QLORA_RETURN_IF_ERROR(checkSizes(mesh));
  return mesh;
}

} // namespace qlora
