// SPDX-License-Identifier: MIT

// Writes small model folders and adapters, and reads merged tensors.

#ifndef QLORA_TESTS_RUNTIME_EXPORT_SMALLMODEL_H
#define QLORA_TESTS_RUNTIME_EXPORT_SMALLMODEL_H

#include <gtest/gtest.h>

#include <filesystem>
#include <list>
#include <string>
#include <vector>

#include "runtime/Export/MergedModel.h"
#include "runtime/Weights/ConvertWeights.h"
#include "tests/runtime/TemporaryFolder.h"

namespace qlora {

/// Tensors of one file, written as F32 or, rounded, as BF16.
class SmallFile {
public:
  void add(const std::string &name, std::vector<int64_t> shape,
           const std::vector<float> &values,
           SafetensorsDtype dtype = SafetensorsDtype::kF32) {
    const auto type = *toAbiDtype(dtype);
    std::vector<uint8_t> bytes(values.size() * weightBytes(type));
    weightsFromFloat(type, values.data(), std::ssize(values), bytes.data());
    addBytes(name, std::move(shape), dtype, std::move(bytes));
  }
  void addBytes(const std::string &name, std::vector<int64_t> shape,
                SafetensorsDtype dtype, std::vector<uint8_t> bytes) {
    storage.push_back(std::move(bytes));
    items.push_back({name, dtype, std::move(shape), storage.back()});
  }
  void write(const std::string &path) {
    const Status status = writeSafetensors(path, items, {{"format", "pt"}});
    EXPECT_TRUE(status.isOk()) << status.message();
  }

private:
  std::list<std::vector<uint8_t>> storage;
  std::vector<SafetensorsItem> items;
};

class SmallModel : public testing::Test {
protected:
  void SetUp() override {
    std::filesystem::create_directories(folder.path("base"));
    std::filesystem::create_directories(folder.path("adapter"));
  }
  /// Adds the tensor to the base in BF16, which holds small integers exactly.
  void addBase(const std::string &name, std::vector<int64_t> shape,
               const std::vector<float> &values) {
    base.add(name, std::move(shape), values, SafetensorsDtype::kBF16);
  }
  void addAdapter(const std::string &name, std::vector<int64_t> shape,
                  const std::vector<float> &values) {
    adapter.add("base_model.model." + name, std::move(shape), values);
  }
  StatusOr<MergedModel> merge(const std::string &adapterConfig,
                              const BaseForm &form = {},
                              const std::string &config = "{}") {
    base.write(folder.path("base/model.safetensors"));
    adapter.write(folder.path("adapter/adapter_model.safetensors"));
    folder.write("base/config.json", config);
    folder.write("adapter/adapter_config.json", adapterConfig);
    MergeRequest request;
    request.base = folder.path("base");
    request.adapter = folder.path("adapter");
    request.form = form;
    return MergedModel::open(request);
  }
  static std::vector<float> valuesOf(const MergedModel &model,
                                     const std::string &name) {
    const MergedTensor *tensor = model.find(name);
    EXPECT_NE(tensor, nullptr) << name;
    if (!tensor)
      return {};
    auto values = model.values(*tensor);
    EXPECT_TRUE(values.isOk()) << values.status().message();
    std::vector<float> out(static_cast<size_t>(tensor->elementCount()));
    // Ranges that begin inside rows, and end there.
    const size_t half = out.size() / 2 + 1;
    EXPECT_TRUE(values->read(0, std::span(out).first(half)).isOk());
    EXPECT_TRUE(values->read(static_cast<int64_t>(half),
                             std::span(out).subspan(half))
                    .isOk());
    return out;
  }

  TemporaryFolder folder;
  SmallFile base, adapter;
};

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_EXPORT_SMALLMODEL_H
