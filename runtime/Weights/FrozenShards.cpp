// SPDX-License-Identifier: MIT

// Reads ranges of files, or exchanges shards of complete tensors in rounds.

#include "runtime/Weights/FrozenShards.h"

#include "runtime/Weights/ConvertWeights.h"
#include "runtime/Weights/FrozenParameter.h"
#include "runtime/Weights/ParameterWeight.h"

#include <algorithm>
#include <vector>

namespace qlora {

/// Alignment of sent ranges and of shards: a cache line.
static constexpr uint64_t kLine = QLORA_PIECE_ALIGNMENT;

//===----------------------------------------------------------------------===//
// Shards that a rank reads from the file
//===----------------------------------------------------------------------===//

static Status readPiece(const ParameterSources &sources,
                        const qlora_parameter &parameter, ArenaSink &arena) {
  QLORA_ASSIGN_OR_RETURN(const StackedFileWeight weight,
                         findWeight(sources, parameter));
  const auto number = static_cast<uint64_t>(sources.shards->rank());
  const uint64_t size = weightBytes(static_cast<qlora_dtype>(parameter.dtype));
  const uint64_t begin = std::min(number * parameter.piece, parameter.bytes);
  const uint64_t end = std::min(begin + parameter.piece, parameter.bytes);
  QLORA_RETURN_IF_ERROR(copyWeight(
      weight, parameter,
      {static_cast<int64_t>(begin / size), static_cast<int64_t>(end / size)},
      arena, factorsOf(sources, parameter)));
  const uint64_t count = end - begin;
  if (count == parameter.piece)
    return Status::ok();
  std::ranges::fill(
      arena.map(parameter.offset + count, parameter.piece - count), 0);
  return arena.commit();
}

/// Reads this rank's range of each of the `segments`, one after the other.
static Status readSlice(const LoadedModule &module,
                        const ParameterSources &sources,
                        const qlora_parameter &parameter, ArenaSink &arena) {
  QLORA_ASSIGN_OR_RETURN(const qlora_parameter whole,
                         findWhole(module, sources, parameter));
  QLORA_ASSIGN_OR_RETURN(const StackedFileWeight weight,
                         findWeight(sources, whole));
  const SlicedDimension of = dimensionOf(module, parameter, whole);
  const int64_t number = sources.slices->rank();
  const int64_t size = weightBytes(static_cast<qlora_dtype>(parameter.dtype));
  qlora_parameter to = parameter;
  int64_t segment = 0; // index of the segment's first element
  for (const int64_t length : of.segments) {
    const int64_t count = length / of.slices * of.inner();
    const int64_t begin = segment + number * count;
    QLORA_RETURN_IF_ERROR(copyWeight(weight, to, {begin, begin + count}, arena,
                                     factorsOf(sources, whole)));
    to.offset += static_cast<uint64_t>(count * size);
    segment += length * of.inner();
  }
  return Status::ok();
}

Status readPart(const LoadedModule &module, const ParameterSources &sources,
                const qlora_parameter &parameter, ArenaSink &arena) {
  return parameter.slices != 0 ? readSlice(module, sources, parameter, arena)
                               : readPiece(sources, parameter, arena);
}

//===----------------------------------------------------------------------===//
// Shards that one rank copies for all ranks
//===----------------------------------------------------------------------===//

/// Returns false for an unquantized slice of the first dimension,
/// which is one range of elements in each of the `segments`.
bool isCutFromWhole(const qlora_parameter &parameter) {
  if (!hasParts(parameter))
    return false;
  int64_t rows = 1;
  for (uint32_t i = 0; i < parameter.slice_dimension; ++i)
    rows *= parameter.shape[i];
  return parameter.quantization != QLORA_QUANTIZATION_NONE || rows > 1 ||
         (parameter.piece != 0 && parameter.slices != 0);
}

namespace {
/// One rank's role in the exchange of shards.
class PartExchange {
public:
  PartExchange(const LoadedModule &module, const ParameterSources &sources,
               Collectives &group, ArenaSink &arena)
      : module(module), sources(sources), group(group), arena(arena),
        ranks(static_cast<uint64_t>(group.size())) {}

  using Round = std::span<const qlora_parameter *const>;

  /// Runs a round of at most one parameter per rank.
  Status run(Round round);

private:
  Status make(const qlora_parameter &parameter);
  void cut(const qlora_parameter &parameter, uint64_t at, uint64_t count);
  Status keep(Round round, uint64_t at, uint64_t count);

  const LoadedModule &module;
  const ParameterSources &sources;
  Collectives &group;
  ArenaSink &arena;
  const uint64_t ranks;
  WholeTensor whole;
  std::vector<ShardView> cuts;         ///< shards of `whole`, by rank
  std::vector<uint8_t> sent, received; ///< a range of every rank's shard
};
} // namespace

Status PartExchange::make(const qlora_parameter &parameter) {
  cuts.clear();
  QLORA_RETURN_IF_ERROR(whole.make(module, sources, parameter));
  for (uint64_t rank = 0; rank < ranks; ++rank)
    cuts.push_back(whole.cutFor(rank));
  return Status::ok();
}

/// Copies bytes [at, at + count) of every rank's shard to `sent`, in rank
/// order. Ignores bytes past the end of a shorter shard.
///
/// If a tensor is sharded over tp ranks and each tp shard again over fsdp
/// ranks, `cuts` has the tp shards, and `at` is an offset in an fsdp shard. The
/// ranks of a TP group have the same fsdp index, so their fsdp shards start at
/// the same byte of their tp shards.
void PartExchange::cut(const qlora_parameter &parameter, uint64_t at,
                       uint64_t count) {
  if (at >= arenaBytesOf(parameter))
    return;
  uint64_t there = std::min(count, arenaBytesOf(parameter) - at);
  if (parameter.piece != 0 && parameter.slices != 0) {
    at += parameter.piece * static_cast<uint64_t>(sources.shards->rank());
    there = std::min(there, parameter.bytes - std::min(at, parameter.bytes));
  }
  for (uint64_t rank = 0; rank < ranks && there > 0; ++rank)
    cuts[rank].copy(at, std::span(sent).subspan(rank * count, there));
}

/// Stores the received ranges. A shard may be shorter than the largest shard.
Status PartExchange::keep(Round round, uint64_t at, uint64_t count) {
  for (size_t i = 0; i < round.size(); ++i) {
    const qlora_parameter &parameter = *round[i];
    if (at >= arenaBytesOf(parameter))
      continue;
    const uint64_t kept = std::min(count, arenaBytesOf(parameter) - at);
    std::ranges::copy(std::span(received).subspan(i * count, kept),
                      arena.map(parameter.offset + at, kept).begin());
    QLORA_RETURN_IF_ERROR(arena.commit());
  }
  return Status::ok();
}

Status PartExchange::run(Round round) {
  const auto own = static_cast<size_t>(group.rank());
  if (own < round.size())
    QLORA_RETURN_IF_ERROR(make(*round[own]));
  uint64_t largest = 0;
  for (const qlora_parameter *parameter : round)
    largest = std::max(largest, arenaBytesOf(*parameter));
  const uint64_t most =
      std::max(kLine, kExchangedBytes / ranks / kLine * kLine);
  for (uint64_t at = 0; at < largest; at += most) {
    const uint64_t count = std::min(most, largest - at);
    sent.assign(ranks * count, 0);
    received.resize(ranks * count);
    if (own < round.size())
      cut(*round[own], at, count);
    QLORA_RETURN_IF_ERROR(group.run(
        {QLORA_COLLECTIVE_ALL_TO_ALL, QLORA_DTYPE_U8, 0, received, sent}));
    QLORA_RETURN_IF_ERROR(keep(round, at, count));
  }
  return Status::ok();
}

Status
exchangeParts(const LoadedModule &module, const ParameterSources &sources,
              Collectives &holders,
              std::span<const qlora_parameter *const> parameters,
              ArenaSink &arena,
              const std::function<void(const qlora_parameter &)> &filled) {
  PartExchange exchange(module, sources, holders, arena);
  const auto ranks = static_cast<size_t>(holders.size());
  for (size_t first = 0; first < parameters.size(); first += ranks) {
    const auto round =
        parameters.subspan(first, std::min(ranks, parameters.size() - first));
    QLORA_RETURN_IF_ERROR(exchange.run(round));
    for (const qlora_parameter *parameter : round)
      filled(*parameter);
  }
  return Status::ok();
}

} // namespace qlora
