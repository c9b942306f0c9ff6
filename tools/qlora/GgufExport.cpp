// SPDX-License-Identifier: MIT

// Connects the merged model to the writer and the reader of GGUF files.

#include "tools/qlora/GgufExport.h"

#include <algorithm>
#include <memory>

#include "frontend/GgufData.h"
#include "runtime/Export/MergedFolder.h"

namespace qlora {

/// Version of the layouts of quantized blocks, `general.quantization_version`.
static constexpr uint32_t kQuantizationVersion = 2;

StatusOr<GgufExport> GgufExport::plan(const ExportJob &job,
                                      const MergedModel &model,
                                      const GgufMix &mix) {
  const std::string &folder = model.base().folder();
  QLORA_ASSIGN_OR_RETURN(const ModelConfig config, readHfConfig(folder, {}));
  std::vector<std::string> unused; // the training has shown these warnings
  QLORA_ASSIGN_OR_RETURN(const DecoderWeights weights,
                         findWeights(config, model.base(), unused));
  GgufExport file;
  file.mix = &mix;
  QLORA_ASSIGN_OR_RETURN(
      file.described,
      describeGguf(config, weights, model.isUntied() ? job.headName() : ""));
  for (GgufSource &source : file.described.sources) {
    GgufTensor &tensor = source.tensor;
    tensor.type = chooseGgufType(mix, file.described.mixModel, tensor.name,
                                 tensor.shape);
    // Files may spell names in another way.
    for (std::string &part : source.parts)
      if (const SafetensorsTensor *stored = model.base().find(part).tensor)
        part = stored->name;
  }
  return file;
}

int64_t GgufExport::vocabularySize() const {
  return described.sources.front().tensor.shape.front(); // token_embd
}

uint64_t GgufExport::bytes() const {
  uint64_t sum = 0;
  for (const GgufSource &source : described.sources)
    sum += ggufAligned(static_cast<uint64_t>(source.tensor.bytes()));
  return sum;
}

uint64_t GgufExport::peakBytes(const MergedModel &model) const {
  constexpr auto kFloat = sizeof(float);
  // A window of values, and their bytes in the file, of at most float32.
  const uint64_t writing =
      model.peakBytes() +
      kFloat * static_cast<uint64_t>(ggufPeakValues(described.sources) +
                                     kGgufWindow);
  // A tensor in float32, a window, and its bytes.
  const uint64_t reading =
      2 * model.largestBytes() + 2 * kFloat * uint64_t{kGgufWindow};
  return std::max(writing, reading);
}

Status GgufExport::write(const MergedModel &model, const GgufMetadata &keys,
                         const std::string &to) {
  path = to;
  GgufMetadata all = described.keys;
  all.insert(all.end(), {{"general.file_type", mix->fileType},
                         {"general.quantization_version",
                          kQuantizationVersion}});
  all.insert(all.end(), keys.begin(), keys.end());
  std::vector<GgufTensor> tensors;
  for (const GgufSource &source : described.sources)
    tensors.push_back(source.tensor);
  QLORA_ASSIGN_OR_RETURN(GgufWriter writer,
                         GgufWriter::create(path, all, std::move(tensors)));
  dataStart = writer.dataStart();
  const OpenTensor open =
      [&](const std::string &name) -> StatusOr<ReadValues> {
    const MergedTensor *tensor = model.find(name);
    if (!tensor)
      return Status::error(StatusCode::kInternal, "the merged model has no "
                           "tensor '{}'", name);
    QLORA_ASSIGN_OR_RETURN(TensorValues values, model.values(*tensor));
    auto shared = std::make_shared<TensorValues>(std::move(values));
    return ReadValues([shared](int64_t first, std::span<float> out) {
      return shared->read(first, out);
    });
  };
  QLORA_RETURN_IF_ERROR(writeGgufData(described.sources, open, writer));
  return writer.commit();
}

StatusOr<GgufValues> GgufExport::values() const {
  return GgufValues::open(path, described.sources, dataStart);
}

Status GgufExport::writeFolder(const MergedModel &model,
                               const std::string &folder) const {
  QLORA_ASSIGN_OR_RETURN(const GgufValues file, values());
  MergedFolderRequest request;
  request.type = SafetensorsDtype::kF32;
  request.mostShardBytes = UINT64_MAX;
  request.open = [&](const MergedTensor &tensor) -> StatusOr<ReadTensor> {
    auto all = std::make_shared<std::vector<float>>();
    // Weights that the model does not use are not in the file.
    if (file.has(tensor.name))
      QLORA_RETURN_IF_ERROR(
          file.read(tensor.name, tensor.elementCount(), *all));
    else
      all->resize(static_cast<size_t>(tensor.elementCount()));
    return ReadTensor([all](int64_t first, std::span<float> out) {
      std::copy_n(all->begin() + first, out.size(), out.begin());
      return Status::ok();
    });
  };
  return writeMergedFolder(model, folder, request);
}

} // namespace qlora
