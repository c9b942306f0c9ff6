// SPDX-License-Identifier: MIT

// Helpers that write and open files of tokens and rows.

#ifndef QLORA_TESTS_RUNTIME_DATA_DATAFILES_H
#define QLORA_TESTS_RUNTIME_DATA_DATAFILES_H

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "runtime/Data/Dataset.h"

namespace qlora {

using Ints = std::vector<int32_t>;

inline SafetensorsItem item(const char *name, const Ints &values,
                            std::vector<int64_t> shape) {
  return {
      name,
      SafetensorsDtype::kI32,
      std::move(shape),
      {reinterpret_cast<const uint8_t *>(values.data()), values.size() * 4}};
}

inline std::string write(const char *name, std::vector<SafetensorsItem> items,
                         std::map<std::string, std::string> metadata = {}) {
  std::string path = testing::TempDir() + name;
  Status status = writeSafetensors(path, std::move(items), metadata);
  EXPECT_TRUE(status.isOk()) << status.message();
  return path;
}

inline std::string writeRows(const char *name, const Ints &ids,
                             const Ints &labels,
                             const std::vector<int64_t> &offsets,
                             std::map<std::string, std::string> metadata = {}) {
  int64_t tokens = static_cast<int64_t>(ids.size());
  return write(name, {item("input_ids", ids, {tokens}),
                      item("labels", labels, {tokens}),
                      {"row_offsets",
                       SafetensorsDtype::kI64,
                       {static_cast<int64_t>(offsets.size())},
                       {reinterpret_cast<const uint8_t *>(offsets.data()),
                        offsets.size() * 8}}},
               std::move(metadata));
}

inline std::unique_ptr<Dataset> open(const std::string &path,
                                     CompiledVariants shape,
                                     ScheduleOptions options = {}) {
  auto data = openDataset(path, shape, options);
  EXPECT_TRUE(data.isOk()) << data.status().message();
  return std::move(data).value();
}

inline std::string errorOf(const std::string &path, CompiledVariants shape) {
  auto data = openDataset(path, shape, {});
  EXPECT_FALSE(data.isOk());
  std::string message = data.status().message();
  size_t at = message.find(path);
  return at == message.npos ? message : message.erase(at, path.size());
}

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_DATA_DATAFILES_H
