// SPDX-License-Identifier: MIT

// Reading and checking of token files.

#include "runtime/Data/TokenFile.h"

#include <algorithm>

#include "runtime/Data/TokenChecks.h"

namespace qlora {

StatusOr<std::unique_ptr<Dataset>> TokenFile::open(SafetensorsFile file,
                                                   const CompiledVariants &shape) {
  std::unique_ptr<TokenFile> tokens(new TokenFile());
  QLORA_RETURN_IF_ERROR(tokens->load(file, shape));
  QLORA_RETURN_IF_ERROR(tokens->check(file.path(), shape.vocabSize));
  return std::unique_ptr<Dataset>(std::move(tokens));
}

Status TokenFile::load(const SafetensorsFile &file, const CompiledVariants &shape) {
  QLORA_ASSIGN_OR_RETURN(const SafetensorsTensor *first, file.get("input_ids"));
  if (first->shape.size() != 3)
    return Status::invalid("'{}': input_ids has the shape {}, but expects "
                           "[micro_batches, batch, length]",
                           file.path(), formatShape(first->shape));
  microBatches = first->shape[0];
  batch = first->shape[1];
  length = first->shape[2];
  if (microBatches == 0)
    return Status::invalid("'{}' has no micro-batches", file.path());
  bool isCompiled =
      batch == shape.batch &&
      std::binary_search(shape.lengths.begin(), shape.lengths.end(), length);
  if (!isCompiled)
    return Status::invalid(
        "'{}' has micro-batches of {} x {} tokens, but the program was "
        "compiled for {} x {}; compile again with "
        "--per-device-train-batch-size {} --max-length {}",
        file.path(), batch, length, shape.batch,
        fmt::join(shape.lengths, " or "), batch, length);
  QLORA_ASSIGN_OR_RETURN(ids, readInt32(file, "input_ids", first->shape));
  QLORA_ASSIGN_OR_RETURN(labels, readInt32(file, "labels", first->shape));
  if (file.find("segment_ids")) {
    QLORA_ASSIGN_OR_RETURN(segments,
                           readInt32(file, "segment_ids", first->shape));
  }
  if (file.find("position_ids")) {
    QLORA_ASSIGN_OR_RETURN(positions,
                           readInt32(file, "position_ids", first->shape));
  }
  return Status::ok();
}

Status TokenFile::check(const std::string &path, int64_t vocabSize) {
  labelCounts.resize(static_cast<size_t>(microBatches));
  for (size_t i = 0; i < ids.size(); ++i) {
    int64_t t = static_cast<int64_t>(i) % length;
    int64_t row = static_cast<int64_t>(i) / length;
    auto where = [&] {
      return fmt::format("'{}': micro-batch {}, row {}, position {}", path,
                         row / batch, row % batch, t);
    };
    if (!isToken(ids[i], vocabSize) || !isLabel(labels[i], vocabSize))
      return badToken(where(), ids[i], labels[i], vocabSize);
    if (!positions.empty() && (positions[i] < 0 || positions[i] >= length))
      return Status::invalid("{}: position_ids has {}, which is outside "
                             "[0, {})",
                             where(), positions[i], length);
    if (!segments.empty() && segments[i] < 0)
      return Status::invalid("{}: segment_ids has {}, which is below 0",
                             where(), segments[i]);
    bool isTarget = t > 0 && labels[i] != kNoLabel &&
                    (segments.empty() ||
                     (segments[i] != 0 && segments[i] == segments[i - 1]));
    labelCounts[static_cast<size_t>(row / batch)] += isTarget;
  }
  const bool hasLabels = std::any_of(labelCounts.begin(), labelCounts.end(),
                                     [](int64_t count) { return count > 0; });
  return hasLabels ? Status::ok() : noLabels(path);
}

void TokenFile::fill(int64_t, int64_t number, MicroBatch &out) {
  out.clear({batch, length});
  int64_t first = number * batch * length;
  int64_t tokens = batch * length;
  std::copy_n(ids.begin() + first, tokens, out.ids.begin());
  if (segments.empty())
    std::fill(out.segments.begin(), out.segments.end(), 1);
  else
    std::copy_n(segments.begin() + first, tokens, out.segments.begin());
  for (int64_t i = 0; i < tokens; ++i) {
    bool isFirst = i % length == 0;
    bool continues = !isFirst && out.segments[i] == out.segments[i - 1];
    if (!positions.empty())
      out.positions[i] = positions[first + i];
    else
      out.positions[i] = continues ? out.positions[i - 1] + 1 : 0;
    if (continues && out.segments[i] != 0)
      out.targets[i - 1] = labels[first + i];
  }
}

} // namespace qlora
