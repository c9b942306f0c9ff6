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
    {"zero2", &ParallelMesh::trainedPieces, QLORA_GROUP_FSDP},
    {"tp", &ParallelMesh::tensorRanks, QLORA_GROUP_TP},
    {"pp", &ParallelMesh::stages, QLORA_GROUP_PP},
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
    return Status::invalid("--parallel: {} is not there yet; fsdp, zero1, zero2, "
                           "tp, pp and cp are",
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

/// Of the first axis of a group that a mesh has.
static std::string_view nameOf(const ParallelMesh &mesh, qlora_group group) {
  for (const Axis &axis : kAxes)
    if (axis.ranks && axis.group == group && mesh.*axis.ranks > 1)
      return axis.name;
  return "none";
}

/// Pieces are on ranks that follow each other, as a line's parts are.
int64_t ParallelMesh::size() const {
  return std::max(ranksOf(*this, QLORA_GROUP_FSDP), contextRanks) *
         tensorRanks * stages;
}

std::string ParallelMesh::text() const {
  std::string text;
  for (const Axis &axis : kAxes)
    if (axis.ranks && this->*axis.ranks > 1)
      text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.name,
                          this->*axis.ranks);
  return text.empty() ? "none" : text;
}

/// Of pieces on the ranks of one group, two axes that do not go together. What
/// zero1 divides is zero2's already.
static Status checkPieces(const ParallelMesh &mesh) {
  const Axis *first = nullptr;
  for (const Axis &axis : kAxes) {
    if (!axis.ranks || axis.group != QLORA_GROUP_FSDP || mesh.*axis.ranks == 1)
      continue;
    if (first && mesh.*axis.ranks != mesh.*first->ranks)
      return Status::invalid("--parallel: {}={} and {}={} are pieces on the same "
                             "ranks; give them one number",
                             first->name, mesh.*first->ranks, axis.name,
                             mesh.*axis.ranks);
    first = &axis;
  }
  if (mesh.updatePieces > 1 && mesh.trainedPieces > 1)
    return Status::invalid("--parallel: zero2={} divides what zero1 does, and "
                           "more; leave zero1 out",
                           mesh.trainedPieces);
  if (mesh.trainedPieces > 1 && mesh.stages > 1)
    return Status::invalid("--parallel: {}={} together with {}={} is not there "
                           "yet; give one of them",
                           "zero2", mesh.trainedPieces, "pp", mesh.stages);
  return Status::ok();
}

/// Whether axes of these groups may be in one mesh: pieces, with lines that are
/// shared or with stages.
static bool goTogether(qlora_group one, qlora_group other) {
  const auto withPieces = [](qlora_group group) {
    return group == QLORA_GROUP_CP || group == QLORA_GROUP_PP;
  };
  return one == other || (one == QLORA_GROUP_FSDP && withPieces(other)) ||
         (other == QLORA_GROUP_FSDP && withPieces(one));
}

static Status checkTogether(const ParallelMesh &mesh) {
  std::vector<const Axis *> used;
  for (const Axis &axis : kAxes) {
    if (!axis.ranks || mesh.*axis.ranks == 1)
      continue;
    for (const Axis *other : used)
      if (!goTogether(axis.group, other->group))
        return Status::invalid("--parallel: {}={} together with {}={} is not "
                               "there yet; give one of them",
                               other->name, mesh.*other->ranks, axis.name,
                               mesh.*axis.ranks);
    used.push_back(&axis);
  }
  return Status::ok();
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
                         nameOf(mesh, QLORA_GROUP_FSDP), pieces, context);
}

/// Whether an axis of a mesh of `ranks` ranks may have `number` of them.
static bool mayHave(const ParallelMesh &mesh, const Axis &axis, int64_t number,
                    int64_t ranks) {
  const int64_t known = ranksOf(mesh, axis.group);
  return known > 1 ? number == known : ranks % (mesh.size() * number) == 0;
}

std::vector<ParallelMesh> ParallelMesh::candidates(int64_t ranks,
                                                   bool trainsModel) {
  std::vector<ParallelMesh> meshes = {ParallelMesh()};
  for (const Axis &axis : kAxes) {
    const bool isOfTrained = axis.ranks == &ParallelMesh::trainedPieces;
    if (!axis.ranks || axis.group != QLORA_GROUP_FSDP ||
        (isOfTrained && !trainsModel))
      continue;
    for (size_t i = 0, simpler = meshes.size(); i < simpler; ++i)
      for (int64_t number = 2; number <= std::min(ranks, kMaxAxis); ++number) {
        ParallelMesh mesh = meshes[i];
        if (!mayHave(mesh, axis, number, ranks))
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
      return Status::invalid("--parallel: '{}' is no AXIS=RANKS, such as "
                             "fsdp=4, of 1 to {} ranks",
                             item, kMaxAxis);
    if (!seen.insert(axis).second)
      return Status::invalid("--parallel has two numbers for {}", axis);
    QLORA_RETURN_IF_ERROR(setAxis(mesh, axis, ranks));
  }
  QLORA_RETURN_IF_ERROR(checkPieces(mesh));
  QLORA_RETURN_IF_ERROR(checkTogether(mesh));
  QLORA_RETURN_IF_ERROR(checkContext(mesh));
  return mesh;
}

} // namespace qlora
