// SPDX-License-Identifier: MIT

// Splits files into windows and finds the ranks that have a window's bytes.

#include "runtime/Checkpoint/ArenaTensors.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <map>

#include "runtime/Weights/Parameters.h"

namespace qlora {

/// Bytes of a window, the unit of sending and writing.
static constexpr uint64_t kWindow = uint64_t{4} << 20;

ArenaTensors::ArenaTensors(const LoadedModule &module, qlora_arena_kind kind,
                           int ranks)
    : module(module), kind(kind) {
  const auto arena = module.arena(kind);
  if (arena && kind == QLORA_ARENA_RESIDUAL) {
    // A residual's offset equals its parameter's offset in TRAINABLE.
    for (const qlora_parameter *parameter : trainedParameters(module)) {
      std::vector<int64_t> shape{ranks};
      shape.insert(shape.end(), parameter->shape,
                   parameter->shape + parameter->rank);
      const uint64_t bytes = parameter->bytes * static_cast<uint64_t>(ranks);
      tensors.push_back({parameter,
                         {trainedName(module, *parameter),
                          SafetensorsDtype::kF32, std::move(shape),
                          {static_cast<const uint8_t *>(nullptr), bytes}},
                         parameter->bytes, 0});
    }
  } else if (arena) {
    for (const qlora_parameter &parameter : module.parameters())
      if (parameter.arena == *arena)
        tensors.push_back(
            {&parameter,
             {trainedName(module, parameter),
              *fromAbiDtype(static_cast<qlora_dtype>(parameter.dtype)),
              {parameter.shape, parameter.shape + parameter.rank},
              {static_cast<const uint8_t *>(nullptr), parameter.bytes}},
             parameter.piece, parameter.first});
  }
  std::vector<SafetensorsItem> sorted = items();
  sortAsInFile(sorted);
  sortAs(sorted);
}

void ArenaTensors::sortAs(std::span<const SafetensorsItem> items) {
  std::map<std::string_view, size_t> places;
  for (const SafetensorsItem &item : items)
    places.emplace(item.name, places.size());
  std::ranges::sort(tensors, {}, [&](const Tensor &tensor) {
    return places.at(tensor.item.name);
  });
  starts = {0};
  for (const Tensor &tensor : tensors)
    starts.push_back(starts.back() + tensor.item.bytes.size());
}

std::vector<SafetensorsItem> ArenaTensors::items() const {
  std::vector<SafetensorsItem> all;
  for (const Tensor &tensor : tensors)
    all.push_back(tensor.item);
  return all;
}

uint64_t ArenaTensors::windowBytes(uint64_t window) const {
  const uint64_t begin = std::min(bytes(), window * kWindow);
  return std::min(kWindow, bytes() - begin);
}

std::vector<ArenaTensors::Part> ArenaTensors::partsOf(uint64_t window) const {
  std::vector<Part> parts;
  const uint64_t begin = window * kWindow, end = begin + windowBytes(window);
  // Find the last tensor that begins at or before `begin`.
  auto number = static_cast<size_t>(
      std::ranges::upper_bound(starts, begin) - starts.begin() - 1);
  for (uint64_t done = begin; done < end;) {
    const Tensor &tensor = tensors[number];
    const uint64_t at = done - starts[number];
    const uint64_t inRange = tensor.first + at;
    uint64_t bytes = std::min(end, starts[number + 1]) - done;
    Part part{number, at, done - begin, tensor.parameter->offset + inRange,
              bytes, 0, tensor.piece == 0};
    if (tensor.piece != 0) {
      const uint64_t inPiece = inRange % tensor.piece;
      part.owner = static_cast<int>(inRange / tensor.piece);
      part.local = tensor.parameter->offset + inPiece;
      part.bytes = std::min(bytes, tensor.piece - inPiece);
    }
    if (part.bytes > 0)
      parts.push_back(part);
    done += part.bytes;
    while (number + 1 < tensors.size() && done >= starts[number + 1])
      ++number;
  }
  return parts;
}

Collectives &ArenaTensors::owners(RankGroup &group) const {
  return kind == QLORA_ARENA_RESIDUAL ? group.collectives()
                                      : group.collectives(QLORA_GROUP_FSDP);
}

uint64_t streamBufferBytes(const LoadedModule &module, int ranks) {
  uint64_t largest = 0;
  for (const qlora_arena_kind kind :
       {QLORA_ARENA_TRAINABLE, QLORA_ARENA_STATE, QLORA_ARENA_RESIDUAL})
    largest = std::max(largest, ArenaTensors(module, kind, ranks).bytes());
  // Rank 0 has a window; several ranks also need a message of the same size.
  return std::min(kWindow, largest) * (ranks > 1 ? 2 : 1) + kSafetensorsWaiting;
}

//===----------------------------------------------------------------------===//
// Gathering tensors for the file
//===----------------------------------------------------------------------===//

ArenaReader::ArenaReader(const ArenaTensors &tensors, Device &device,
                         RankGroup &group)
    : tensors(tensors), device(device), group(group),
      arena(tensors.module.arena(tensors.kind).value_or(QLORA_NONE)) {}

/// Passes a rank's bytes of a window through the ranks between it and rank 0.
Status ArenaReader::fetchFrom(int owner,
                              std::span<const ArenaTensors::Part> parts) {
  Collectives &ranks = tensors.owners(group);
  uint64_t bytes = 0;
  for (const ArenaTensors::Part &part : parts)
    bytes += part.owner == owner ? part.bytes : 0;
  if (bytes == 0 || ranks.rank() > owner)
    return Status::ok();
  const bool isOwn = ranks.rank() == owner, isLast = ranks.rank() == 0;
  message.resize(isOwn && isLast ? 0 : bytes);
  CollectiveCall call;
  call.dtype = QLORA_DTYPE_U8;
  if (!isOwn) {
    call.kind = QLORA_COLLECTIVE_RECV;
    call.peer = 1;
    call.to = message;
    QLORA_RETURN_IF_ERROR(ranks.run(call));
  }
  uint64_t done = 0; // bytes used of `message`
  for (const ArenaTensors::Part &part : parts) {
    if (part.owner != owner)
      continue;
    const auto inFile = std::span(window).subspan(isLast ? part.place : 0,
                                                  isLast ? part.bytes : 0);
    const auto sent = std::span(message).subspan(done);
    if (isOwn)
      QLORA_RETURN_IF_ERROR(device.read(
          arena, part.local, isLast ? inFile : sent.first(part.bytes)));
    else if (isLast)
      std::ranges::copy(sent.first(part.bytes), inFile.begin());
    done += message.empty() ? 0 : part.bytes;
  }
  if (isLast)
    return Status::ok();
  call.kind = QLORA_COLLECTIVE_SEND;
  call.peer = -1;
  call.to = {};
  call.from = message;
  return ranks.run(call);
}

Status ArenaReader::fetch() {
  const auto parts = tensors.partsOf(next);
  if (group.rank() == 0)
    window.resize(tensors.windowBytes(next));
  given = 0;
  ++next;
  // If several groups of ranks have the complete arena, the first group sends.
  if (tensors.kind != QLORA_ARENA_RESIDUAL &&
      group.mesh().first(QLORA_GROUP_FSDP, group.rank()) != 0)
    return Status::ok();
  const int ranks = tensors.owners(group).size();
  for (int owner = 0; owner < ranks; ++owner)
    QLORA_RETURN_IF_ERROR(fetchFrom(owner, parts));
  return Status::ok();
}

Status ArenaReader::read(std::span<uint8_t> out) {
  while (!out.empty()) {
    if (given == window.size()) {
      failed = fetch();
      QLORA_RETURN_IF_ERROR(failed);
      assert(!window.empty() && "more than the tensors have");
    }
    const auto part = std::span(window).subspan(
        given, std::min(out.size(), window.size() - given));
    std::ranges::copy(part, out.begin());
    given += part.size();
    out = out.subspan(part.size());
  }
  return Status::ok();
}

Status ArenaReader::finish() {
  while (failed.isOk() && tensors.windowBytes(next) > 0)
    failed = fetch();
  return failed;
}

//===----------------------------------------------------------------------===//
// Distributing tensors of the file
//===----------------------------------------------------------------------===//

Status ArenaTensors::checkTensor(const SafetensorsFile &file,
                                 const Tensor &tensor) const {
  QLORA_ASSIGN_OR_RETURN(const SafetensorsTensor *found,
                         file.get(tensor.item.name));
  const bool isOfRanks = kind == QLORA_ARENA_RESIDUAL;
  const auto &shape = tensor.item.shape;
  bool isSame = found->dtype == tensor.item.dtype &&
                found->shape.size() == shape.size();
  for (size_t i = 0; isSame && i < shape.size(); ++i)
    isSame = isOfRanks && i == 0 ? found->shape[0] > 0
                                 : found->shape[i] == shape[i];
  if (isSame)
    return Status::ok();
  return Status::invalid(
      "'{}': tensor '{}' is {} {}, but train.so has {} {}{}. Fix: resume with "
      "the program that wrote the file",
      file.path(), found->name, safetensorsDtypeName(found->dtype),
      formatShape(found->shape), safetensorsDtypeName(tensor.item.dtype),
      formatShape(std::span(shape).subspan(isOfRanks ? 1 : 0)),
      isOfRanks ? " for each rank" : "");
}

static void addTo(std::span<uint8_t> sum, std::span<const uint8_t> more) {
  for (size_t at = 0; at < sum.size(); at += sizeof(float)) {
    float one, other;
    std::memcpy(&one, sum.data() + at, sizeof(float));
    std::memcpy(&other, more.data() + at, sizeof(float));
    one += other;
    std::memcpy(sum.data() + at, &one, sizeof(float));
  }
}

/// Reads a range of one rank's residual. With fewer ranks than in the file,
/// sums the residuals of the ranks that this rank replaces. Copies the first
/// summand, because 0 + -0 would lose the sign.
static Status readResiduals(const SafetensorsFile &file,
                            const SafetensorsTensor &tensor, uint64_t piece,
                            uint64_t ranks, uint64_t at,
                            std::span<uint8_t> out) {
  const auto before = static_cast<uint64_t>(tensor.shape[0]);
  const uint64_t rank = at / piece;
  if (rank >= before)
    std::ranges::fill(out, uint8_t{0});
  std::vector<uint8_t> more;
  for (uint64_t from = rank; from < before; from += ranks) {
    more.resize(from == rank ? 0 : out.size());
    const std::span<uint8_t> to = from == rank ? out : std::span(more);
    QLORA_RETURN_IF_ERROR(file.read(tensor, from * piece + at % piece, to));
    if (from != rank)
      addTo(out, more);
  }
  return Status::ok();
}

StatusOr<TensorSource>
ArenaTensors::sourceFrom(const SafetensorsFile &file) const {
  for (const Tensor &tensor : tensors)
    QLORA_RETURN_IF_ERROR(checkTensor(file, tensor));
  return TensorSource([this, &file](size_t number, uint64_t at,
                                    std::span<uint8_t> out) {
    const Tensor &tensor = tensors[number];
    const SafetensorsTensor &found = *file.find(tensor.item.name);
    if (kind == QLORA_ARENA_RESIDUAL)
      return readResiduals(file, found, tensor.piece,
                           static_cast<uint64_t>(tensor.item.shape[0]), at,
                           out);
    return file.read(found, at, out);
  });
}

TensorSource ArenaTensors::zeros() {
  return [](size_t, uint64_t, std::span<uint8_t> out) {
    std::ranges::fill(out, uint8_t{0});
    return Status::ok();
  };
}

Status ArenaTensors::restore(const TensorSource &source, Device &device,
                             RankGroup &group) const {
  const uint32_t arena = module.arena(kind).value_or(QLORA_NONE);
  const int own = owners(group).rank();
  std::vector<uint8_t> window;
  for (uint64_t number = 0; windowBytes(number) > 0; ++number) {
    window.resize(windowBytes(number));
    const auto parts = partsOf(number);
    const auto bytesOf = [&](const Part &part) {
      return std::span(window).subspan(part.place, part.bytes);
    };
    if (group.rank() == 0)
      for (const Part &part : parts)
        QLORA_RETURN_IF_ERROR(source(part.tensor, part.at, bytesOf(part)));
    CollectiveCall call;
    call.kind = QLORA_COLLECTIVE_BROADCAST;
    call.dtype = QLORA_DTYPE_U8;
    call.to = window;
    QLORA_RETURN_IF_ERROR(group.collectives().run(call));
    for (const Part &part : parts)
      if (part.isOfAll || part.owner == own)
        QLORA_RETURN_IF_ERROR(device.write(arena, part.local, bytesOf(part)));
  }
  return Status::ok();
}

} // namespace qlora
