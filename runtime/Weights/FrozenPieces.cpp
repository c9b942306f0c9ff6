// SPDX-License-Identifier: MIT

// Ranges of files, and rounds of whole tensors that are cut.

#include "runtime/Weights/FrozenPieces.h"

#include "runtime/Base/HostMemory.h"
#include "runtime/Weights/ConvertWeights.h"
#include "runtime/Weights/FrozenParameter.h"
#include "runtime/Weights/ParameterWeight.h"

#include <algorithm>
#include <vector>

namespace qlora {

/// Pieces are whole cache lines, and so are parts of them.
static constexpr uint64_t kLine = QLORA_PIECE_ALIGNMENT;

//===----------------------------------------------------------------------===//
// Read by each rank
//===----------------------------------------------------------------------===//

Status readPiece(const ParameterSources &sources,
                 const qlora_parameter &parameter, unsigned number,
                 ArenaSink &arena) {
  QLORA_ASSIGN_OR_RETURN(const StackedFileWeight weight,
                         findWeight(sources, parameter));
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

//===----------------------------------------------------------------------===//
// Made by one rank for all
//===----------------------------------------------------------------------===//

namespace {
/// One rank's part in the rounds.
class PieceExchange {
public:
  PieceExchange(const ParameterSources &sources, ArenaSink &arena)
      : sources(sources), group(*sources.shards), arena(arena),
        ranks(static_cast<uint64_t>(group.size())) {}

  using Round = std::span<const qlora_parameter *const>;

  /// One parameter for each rank, or fewer.
  Status run(Round round);

private:
  Status makeWhole(const qlora_parameter &parameter);
  void cut(const qlora_parameter &parameter, uint64_t at, uint64_t count);
  Status keep(Round round, uint64_t at, uint64_t count);

  const ParameterSources &sources;
  Collectives &group;
  ArenaSink &arena;
  const uint64_t ranks;
  HostMemory whole;                    ///< of the largest one so far
  std::vector<uint8_t> sent, received; ///< a part of the piece of every rank
};
} // namespace

Status PieceExchange::makeWhole(const qlora_parameter &parameter) {
  if (whole.bytes().size() < parameter.bytes) {
    whole = {}; // the old one goes before the new one comes
    QLORA_ASSIGN_OR_RETURN(whole, HostMemory::anonymous(parameter.bytes));
  }
  qlora_parameter alone = parameter;
  alone.offset = 0;
  HostArena memory(whole.bytes().first(parameter.bytes));
  return fillFrozenParameter(sources, alone, memory);
}

/// Of every piece `count` bytes from `at` on, side by side; zeros behind the
/// end of the tensor. What is not of a shorter piece any more nobody keeps.
void PieceExchange::cut(const qlora_parameter &parameter, uint64_t at,
                        uint64_t count) {
  for (uint64_t rank = 0; rank < ranks; ++rank) {
    const uint64_t begin =
        std::min(rank * parameter.piece + at, parameter.bytes);
    const uint64_t end = std::min(begin + count, parameter.bytes);
    std::ranges::copy(whole.bytes().subspan(begin, end - begin),
                      sent.begin() + static_cast<ptrdiff_t>(rank * count));
  }
}

/// What has come, each to its place; pieces may be shorter than the largest.
Status PieceExchange::keep(Round round, uint64_t at, uint64_t count) {
  for (size_t i = 0; i < round.size(); ++i) {
    const qlora_parameter &parameter = *round[i];
    if (at >= parameter.piece)
      continue;
    const uint64_t kept = std::min(count, parameter.piece - at);
    std::ranges::copy(std::span(received).subspan(i * count, kept),
                      arena.map(parameter.offset + at, kept).begin());
    QLORA_RETURN_IF_ERROR(arena.commit());
  }
  return Status::ok();
}

Status PieceExchange::run(Round round) {
  const auto own = static_cast<size_t>(group.rank());
  if (own < round.size())
    QLORA_RETURN_IF_ERROR(makeWhole(*round[own]));
  uint64_t largest = 0;
  for (const qlora_parameter *parameter : round)
    largest = std::max(largest, parameter->piece);
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
exchangePieces(const ParameterSources &sources,
               std::span<const qlora_parameter *const> parameters,
               ArenaSink &arena,
               const std::function<void(const qlora_parameter &)> &filled) {
  PieceExchange exchange(sources, arena);
  const auto ranks = static_cast<size_t>(sources.shards->size());
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
