// SPDX-License-Identifier: MIT

// Plans and writes the files of a merged model.

#include "runtime/Export/MergedFolder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Weights/ConvertWeights.h"

namespace qlora {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

/// Buffers of writeSafetensors(): f32 values, rounded values, a file window.
static constexpr uint64_t kWriterBytes = uint64_t{8} << 20;

/// Files of the base that are copied unchanged.
static constexpr const char *kBaseFiles[] = {"preprocessor_config.json",
                                             "processor_config.json",
                                             "video_preprocessor_config.json"};

//===----------------------------------------------------------------------===//
// Plan
//===----------------------------------------------------------------------===//

static SafetensorsDtype typeOf(const MergedTensor &tensor, WeightType type) {
  return type && tensor.isWeight() ? *type : tensor.dtype;
}

static uint64_t bytesOf(const MergedTensor &tensor, WeightType type) {
  return static_cast<uint64_t>(tensor.elementCount()) *
         safetensorsDtypeBits(typeOf(tensor, type)) / 8;
}

/// Returns the tensors that files have for one tensor of the model.
static std::vector<ShardTensor> filesTensors(const MergedModel &model,
                                             const MergedTensor &tensor,
                                             const MergedFolderRequest &how) {
  if (!how.quantization || !how.quantization->isQuantized(tensor))
    return {{&tensor, tensor.name, typeOf(tensor, how.type), tensor.shape,
             bytesOf(tensor, how.type)}};
  const QuantizedWeight weight(*how.quantization, tensor,
                               how.type.value_or(model.dtype()));
  std::vector<ShardTensor> all;
  for (const StoredPart &part : weight.parts())
    all.push_back({&tensor, part.name, *part.dtype, part.shape,
                   QuantizedWeight::bytesOf(part), all.size()});
  return all;
}

std::vector<Shard> planShards(const MergedModel &model,
                              const MergedFolderRequest &request) {
  std::vector<Shard> shards(1);
  for (const MergedTensor &tensor : model.tensors()) {
    const std::vector<ShardTensor> all = filesTensors(model, tensor, request);
    uint64_t bytes = 0;
    for (const ShardTensor &each : all)
      bytes += each.bytes;
    if (!shards.back().tensors.empty() &&
        shards.back().bytes + bytes > request.mostShardBytes)
      shards.emplace_back();
    std::ranges::copy(all, std::back_inserter(shards.back().tensors));
    shards.back().bytes += bytes;
  }
  for (size_t i = 0; i < shards.size(); ++i)
    shards[i].name =
        shards.size() == 1
            ? std::string("model.safetensors")
            : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1,
                          shards.size());
  return shards;
}

uint64_t mergedPeakBytes(const MergedModel &model,
                         const WeightQuantization *quantization) {
  return model.peakBytes() + kWriterBytes +
         (quantization ? quantizedPeakBytes(model, *quantization) : 0);
}

//===----------------------------------------------------------------------===//
// Weights
//===----------------------------------------------------------------------===//

template <qlora_dtype Type>
static void roundTo(const uint8_t *from, uint8_t *to, int64_t count) {
  convertWeights(QLORA_DTYPE_F32, from, Type, to, count);
}

static Rounding roundingTo(SafetensorsDtype dtype) {
  return dtype == SafetensorsDtype::kBF16  ? roundTo<QLORA_DTYPE_BF16>
         : dtype == SafetensorsDtype::kF16 ? roundTo<QLORA_DTYPE_F16>
                                           : nullptr;
}

/// Returns the least magnitude that is rounded to infinity.
static float limitOf(SafetensorsDtype dtype) {
  return dtype == SafetensorsDtype::kF16    ? 65520.0F
         : dtype == SafetensorsDtype::kBF16 ? 0x1.ffp127F
                                            : HUGE_VALF;
}

namespace {
/// Gives the bytes of a shard's tensors, one tensor after the other.
class ShardReader {
public:
  ShardReader(const MergedModel &model, const Shard &shard,
              const MergedFolderRequest &request, uint64_t done,
              uint64_t total)
      : model(model), shard(shard), request(request), done(done),
        total(total) {}

  Status read(std::span<uint8_t> out);

private:
  StatusOr<ReadTensor> open() const;
  Status readWeight(std::span<uint8_t> out);
  Status readPart(std::span<uint8_t> out);
  Status checkRange(std::span<const float> values) const;
  const ShardTensor &now() const { return shard.tensors[number]; }
  const MergedTensor &tensor() const { return *now().of; }

  const MergedModel &model;
  const Shard &shard;
  const MergedFolderRequest &request;
  uint64_t done; ///< progressBytes() of all shards
  const uint64_t total;
  size_t number = 0; ///< of the tensor that is read
  /// Its next byte, or element of a weight that is not quantized.
  uint64_t at = 0;
  ReadTensor values; ///< empty: not opened
  /// Stays until another weight is read: most parts of a weight follow each
  /// other in a file.
  std::optional<QuantizedWeight> quantized;
  const MergedTensor *quantizedOf = nullptr;
};
} // namespace

Status ShardReader::checkRange(std::span<const float> read) const {
  const SafetensorsDtype dtype = now().dtype;
  const float limit = limitOf(dtype);
  for (const float value : read)
    if (!(std::fabs(value) < limit))
      return Status::invalid(
          "tensor '{}' has the value {}, which {} cannot hold. Fix: {}",
          tensor().name, value, safetensorsDtypeName(dtype),
          std::isfinite(value) ? "--outtype bf16"
                               : "use a base whose weights are finite");
  return Status::ok();
}

StatusOr<ReadTensor> ShardReader::open() const {
  if (request.open)
    return request.open(tensor());
  QLORA_ASSIGN_OR_RETURN(TensorValues of, model.values(tensor()));
  return ReadTensor([of = std::move(of)](int64_t first,
                                         std::span<float> out) mutable {
    return of.read(first, out);
  });
}

Status ShardReader::readWeight(std::span<uint8_t> out) {
  if (!values) {
    QLORA_ASSIGN_OR_RETURN(values, open());
  }
  const std::span<float> floats(reinterpret_cast<float *>(out.data()),
                                out.size() / sizeof(float));
  QLORA_RETURN_IF_ERROR(values(static_cast<int64_t>(at), floats));
  QLORA_RETURN_IF_ERROR(checkRange(floats));
  at += floats.size();
  return Status::ok();
}

/// Reads bytes of a part of a quantized weight.
Status ShardReader::readPart(std::span<uint8_t> out) {
  if (quantizedOf != &tensor()) {
    quantized.reset(); // first, so that two never exist
    quantized.emplace(*request.quantization, tensor(),
                      request.type.value_or(model.dtype()));
    QLORA_RETURN_IF_ERROR(quantized->quantize(model));
    quantizedOf = &tensor();
  }
  quantized->copy(*now().part, at, out);
  at += out.size();
  return Status::ok();
}

Status ShardReader::read(std::span<uint8_t> out) {
  while (now().bytes == 0) // nothing reads it
    ++number;
  const bool isWeight = !now().part && tensor().isWeight();
  if (isWeight) {
    QLORA_RETURN_IF_ERROR(readWeight(out));
  } else if (now().part) {
    QLORA_RETURN_IF_ERROR(readPart(out));
  } else {
    QLORA_RETURN_IF_ERROR(model.readBytes(tensor(), at, out));
    at += out.size();
  }
  done += isWeight ? out.size() / 2 : out.size();
  if (request.progress)
    request.progress(std::min(done, total), total);
  const uint64_t end = isWeight
                           ? static_cast<uint64_t>(tensor().elementCount())
                           : now().bytes;
  if (at == end) {
    values = nullptr;
    at = 0;
    ++number;
  }
  return Status::ok();
}

/// Returns the tensors as items without data, which ShardReader gives.
static std::vector<SafetensorsItem> itemsOf(const Shard &shard) {
  std::vector<SafetensorsItem> items;
  for (const ShardTensor &tensor : shard.tensors) {
    SafetensorsItem item;
    item.name = tensor.name;
    item.dtype = tensor.dtype;
    item.shape = tensor.shape;
    item.round = roundingTo(item.dtype);
    // Only the size counts.
    const uint64_t bytes = item.round ? 4 * static_cast<uint64_t>(
                                                tensor.of->elementCount())
                                      : tensor.bytes;
    item.bytes = {reinterpret_cast<const uint8_t *>(tensor.of), bytes};
    items.push_back(std::move(item));
  }
  return items;
}

/// Orders the tensors as they are in the file.
static void sortShard(Shard &shard) {
  std::vector<SafetensorsItem> items = itemsOf(shard);
  sortAsInFile(items);
  std::map<std::string, size_t> places;
  for (const SafetensorsItem &item : items)
    places.emplace(item.name, places.size());
  std::ranges::sort(shard.tensors, {}, [&](const ShardTensor &tensor) {
    return places.at(tensor.name);
  });
}

/// Returns the bytes of a tensor for the progress: those of 16 bits, unless the
/// tensor is not a weight or is quantized.
static uint64_t progressBytes(const ShardTensor &tensor) {
  return tensor.part || !tensor.of->isWeight()
             ? tensor.bytes
             : 2 * static_cast<uint64_t>(tensor.of->elementCount());
}

static Status writeShards(const MergedModel &model, const std::string &folder,
                          const MergedFolderRequest &request,
                          std::vector<Shard> &shards) {
  uint64_t total = 0, done = 0;
  for (const Shard &shard : shards)
    for (const ShardTensor &tensor : shard.tensors)
      total += progressBytes(tensor);
  for (Shard &shard : shards) {
    sortShard(shard);
    QLORA_ASSIGN_OR_RETURN(AtomicFile file,
                           AtomicFile::create(folder + "/" + shard.name));
    QLORA_RETURN_IF_ERROR(
        file.reserve(shard.bytes, AtomicFile::Reserve::kWhereItCan));
    ShardReader reader(model, shard, request, done, total);
    QLORA_RETURN_IF_ERROR(writeSafetensors(
        std::move(file), itemsOf(shard), {{"format", "pt"}},
        [&](std::span<uint8_t> out) { return reader.read(out); }));
    for (const ShardTensor &tensor : shard.tensors)
      done += progressBytes(tensor);
  }
  return Status::ok();
}

static std::string indexText(const std::vector<Shard> &shards) {
  uint64_t bytes = 0, parameters = 0;
  std::map<std::string, std::string> files;
  for (const Shard &shard : shards) {
    bytes += shard.bytes;
    for (const ShardTensor &tensor : shard.tensors) {
      if (tensor.part.value_or(0) == 0)
        parameters += static_cast<uint64_t>(tensor.of->elementCount());
      files.emplace(tensor.name, shard.name);
    }
  }
  const ordered_json index = {
      {"metadata", {{"total_parameters", parameters}, {"total_size", bytes}}},
      {"weight_map", files}};
  return dumpJson(index, 2) + "\n";
}

//===----------------------------------------------------------------------===//
// Other files
//===----------------------------------------------------------------------===//

/// Returns config.json of the merged model.
static ordered_json mergedConfig(const MergedModel &model,
                                 const MergedFolderRequest &request) {
  const SafetensorsDtype dtype = request.type.value_or(model.dtype());
  const char *const name = dtype == SafetensorsDtype::kF16    ? "float16"
                           : dtype == SafetensorsDtype::kBF16 ? "bfloat16"
                                                              : "float32";
  ordered_json config = model.config();
  const auto change = [&](ordered_json &part) {
    part.erase("quantization_config");
    part.erase("_name_or_path");
    for (const char *key : {"dtype", "torch_dtype"})
      if (part.contains(key))
        part[key] = name;
    if (model.isUntied() && part.contains("tie_word_embeddings"))
      part["tie_word_embeddings"] = false;
  };
  change(config);
  if (config.contains("text_config") && config["text_config"].is_object())
    change(config["text_config"]);
  if (!config.contains("dtype") && !config.contains("torch_dtype"))
    config["torch_dtype"] = name;
  if (model.isUntied())
    config["tie_word_embeddings"] = false;
  if (request.quantization)
    config["quantization_config"] = request.quantization->config;
  return config;
}

static Status copyFile(const fs::path &from, const std::string &folder) {
  std::error_code ignored;
  if (!fs::exists(from, ignored))
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(from));
  return replaceWholeFile(folder + "/" + from.filename().string(), text);
}

/// Copies the tokenizer of one folder, so that two tokenizers do not mix. A
/// chat template of the adapter, with which it was trained, wins.
StatusOr<bool> copyTextFiles(const std::string &base,
                             const std::string &tokenizer,
                             const std::string &folder) {
  QLORA_RETURN_IF_ERROR(
      copyFile(fs::path(base) / "generation_config.json", folder));
  std::error_code ignored;
  const auto hasTokenizer = [&](const fs::path &of) {
    return std::ranges::any_of(
        std::initializer_list<const char *>{"tokenizer.json",
                                            "tokenizer.model", "vocab.json"},
        [&](const char *name) { return fs::exists(of / name, ignored); });
  };
  const fs::path from =
      !tokenizer.empty() && hasTokenizer(tokenizer) ? tokenizer : base;
  for (const char *name : tokenizerFiles())
    QLORA_RETURN_IF_ERROR(copyFile(from / name, folder));
  if (!tokenizer.empty())
    QLORA_RETURN_IF_ERROR(
        copyFile(fs::path(tokenizer) / "chat_template.jinja", folder));
  return hasTokenizer(from);
}

Status writeMergedFolder(const MergedModel &model, const std::string &folder,
                         const MergedFolderRequest &request) {
  std::vector<Shard> shards = planShards(model, request);
  uint64_t bytes = 0;
  for (const Shard &shard : shards)
    bytes += shard.bytes;
  QLORA_RETURN_IF_ERROR(checkFreeSpace(folder, bytes));
  QLORA_RETURN_IF_ERROR(writeShards(model, folder, request, shards));
  if (shards.size() > 1)
    QLORA_RETURN_IF_ERROR(replaceWholeFile(
        folder + "/model.safetensors.index.json", indexText(shards)));
  QLORA_RETURN_IF_ERROR(
      replaceWholeFile(folder + "/config.json",
                       dumpJson(mergedConfig(model, request), 2) + "\n"));
  const std::string &base = model.base().folder();
  for (const char *name : kBaseFiles)
    QLORA_RETURN_IF_ERROR(copyFile(fs::path(base) / name, folder));
  return copyTextFiles(base, request.tokenizer, folder).status();
}

} // namespace qlora
