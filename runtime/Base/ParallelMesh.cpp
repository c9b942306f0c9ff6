// SPDX-License-Identifier: MIT

// Axes and their sizes.

#include "runtime/Base/ParallelMesh.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>

#include "runtime/ABI/collective.h"

namespace qlora {

/// A program has numbers of ranks in 16 bits.
static constexpr int64_t kMaxAxis = 65535;

namespace {
/// One that is not there yet has no number in a mesh, nor has dp. Axes of one
/// group are of the same ranks, and have one number.
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
    {"zero2"},
    {"tp", &ParallelMesh::tensorRanks, QLORA_GROUP_TP},
    {"pp"},
    {"cp", &ParallelMesh::contextRanks, QLORA_GROUP_CP},
    {"ep"}};

static Status setAxis(ParallelMesh &mesh, std::string_view name,
                      int64_t ranks) {
  const auto axis = std::ranges::find(kAxes, name, &Axis::name);
  if (axis == std::end(kAxes)) {
    std::vector<std::string_view> names;
    std::ranges::transform(kAxes, std::back_inserter(names), &Axis::name);
    return Status::invalid("--parallel: '{}' is no axis; there are: {}", name,
                           fmt::join(names, ", "));
  }
  if (name == "dp")
    return Status::invalid("--parallel: dp is what is left of the ranks of a "
                           "run; give it with --gpus");
  if (!axis->ranks)
    return Status::invalid("--parallel: {} is not there yet; fsdp, zero1, tp "
                           "and cp are",
                           name);
  mesh.*axis->ranks = ranks;
  return Status::ok();
}

/// Ranks of a group.
static int64_t ranksOf(const ParallelMesh &mesh, qlora_group group) {
  int64_t ranks = 1;
  for (const Axis &axis : kAxes)
    if (axis.ranks && axis.group == group)
      ranks = std::max(ranks, mesh.*axis.ranks);
  return ranks;
}

/// Pieces are on ranks that follow each other, as a line's parts are.
int64_t ParallelMesh::size() const {
  return std::max(ranksOf(*this, QLORA_GROUP_FSDP), contextRanks) * tensorRanks;
}

std::string ParallelMesh::text() const {
  std::string text;
  for (const Axis &axis : kAxes)
    if (axis.ranks && this->*axis.ranks > 1)
      text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.name,
                          this->*axis.ranks);
  return text.empty() ? "none" : text;
}

/// The axis of a mesh that has tp too and is not there yet beside it, or null.
static const Axis *besideTensorRanks(const ParallelMesh &mesh) {
  if (mesh.tensorRanks == 1)
    return nullptr;
  const auto found = std::ranges::find_if(kAxes, [&](const Axis &axis) {
    return axis.ranks && axis.group != QLORA_GROUP_TP && mesh.*axis.ranks > 1;
  });
  return found == std::end(kAxes) ? nullptr : found;
}

/// Both are groups of ranks that follow each other.
static Status checkContext(const ParallelMesh &mesh) {
  const int64_t pieces = ranksOf(mesh, QLORA_GROUP_FSDP);
  const int64_t context = mesh.contextRanks;
  if (std::max(pieces, context) % std::min(pieces, context) == 0)
    return Status::ok();
  return Status::invalid("--parallel: {}={} and cp={} are of ranks that follow "
                         "each other; give numbers of which one divides the "
                         "other",
                         mesh.shards > 1 ? "fsdp" : "zero1", pieces, context);
}

/// Whether an axis of a mesh of `ranks` ranks may have `number` of them.
static bool mayHave(const ParallelMesh &mesh, const Axis &axis, int64_t number,
                    int64_t ranks) {
  const int64_t known = ranksOf(mesh, axis.group);
  return known > 1 ? number == known : ranks % (mesh.size() * number) == 0;
}

std::vector<ParallelMesh> ParallelMesh::candidates(int64_t ranks) {
  std::vector<ParallelMesh> meshes = {ParallelMesh()};
  for (const Axis &axis : kAxes)
    for (size_t i = 0, simpler = meshes.size();
         axis.ranks && axis.group == QLORA_GROUP_FSDP && i < simpler; ++i)
      for (int64_t number = 2; number <= std::min(ranks, kMaxAxis); ++number)
        if (mayHave(meshes[i], axis, number, ranks)) {
          meshes.push_back(meshes[i]);
          meshes.back().*axis.ranks = number;
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
  if (const Axis *other = besideTensorRanks(mesh))
    return Status::invalid("--parallel: {}={} together with tp={} is not there "
                           "yet; give one of them",
                           other->name, mesh.*other->ranks, mesh.tensorRanks);
  QLORA_RETURN_IF_ERROR(checkContext(mesh));
  return mesh;
}

} // namespace qlora
