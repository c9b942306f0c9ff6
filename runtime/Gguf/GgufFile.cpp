// SPDX-License-Identifier: MIT

// Writes GGUF files.

#include "runtime/Gguf/GgufFile.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <set>
#include <type_traits>

namespace qlora {

static_assert(std::endian::native == std::endian::little,
              "the files are little endian");

namespace {

/// Types of keys' values in files.
enum class ValueType : uint32_t {
  kUint32 = 4,
  kInt32 = 5,
  kFloat = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
};

template <typename T> constexpr ValueType typeOf() {
  if constexpr (std::is_same_v<T, uint32_t>)
    return ValueType::kUint32;
  else if constexpr (std::is_same_v<T, int32_t>)
    return ValueType::kInt32;
  else if constexpr (std::is_same_v<T, float>)
    return ValueType::kFloat;
  else if constexpr (std::is_same_v<T, bool>)
    return ValueType::kBool;
  else if constexpr (std::is_same_v<T, uint64_t>)
    return ValueType::kUint64;
  else
    return ValueType::kString;
}

/// The bytes before the data.
class Head {
public:
  template <typename T> void number(T value) {
    bytes.append(reinterpret_cast<const char *>(&value), sizeof(value));
  }
  void put(bool value) { number(static_cast<uint8_t>(value)); }
  void put(const std::string &text) {
    number(static_cast<uint64_t>(text.size()));
    bytes += text;
  }
  template <typename T>
    requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>)
  void put(T value) {
    number(value);
  }
  void value(const GgufValue &value) {
    std::visit([this](const auto &held) { typed(held); }, value);
  }
  void align() { bytes.resize(ggufAligned(bytes.size())); }

  std::string bytes;

private:
  template <typename T> void typed(const T &held) {
    number(typeOf<T>());
    put(held);
  }
  template <typename T> void typed(const std::vector<T> &held) {
    number(ValueType::kArray);
    number(typeOf<T>());
    number(static_cast<uint64_t>(held.size()));
    for (const T &element : held)
      put(element);
  }
};

} // namespace

int64_t GgufTensor::elements() const {
  int64_t count = 1;
  for (int64_t size : shape)
    count *= size;
  return count;
}

static Status checkTensors(const std::string &path,
                           const std::vector<GgufTensor> &tensors) {
  std::set<std::string_view> names;
  for (const GgufTensor &tensor : tensors) {
    if (!names.insert(tensor.name).second)
      return Status::invalid("{}: two tensors would have the name {}; remove "
                             "one from the model's files",
                             path, tensor.name);
    if (tensor.name.size() > kMaxGgufName)
      return Status::invalid("{}: the tensor name {} has {} bytes, and "
                             "llama.cpp reads at most {}; export with --to "
                             "merged instead",
                             path, tensor.name, tensor.name.size(),
                             kMaxGgufName);
    assert(!tensor.shape.empty() && tensor.shape.size() <= 4);
    assert(std::ranges::all_of(tensor.shape, [](auto n) { return n > 0; }));
    assert(tensor.shape.back() % ggufTypeInfo(tensor.type).blockValues == 0);
  }
  return Status::ok();
}

StatusOr<GgufWriter> GgufWriter::create(const std::string &path,
                                        const GgufMetadata &metadata,
                                        std::vector<GgufTensor> tensors) {
  QLORA_RETURN_IF_ERROR(checkTensors(path, tensors));
  Head head;
  head.bytes = "GGUF";
  head.number(uint32_t{3});
  head.number(static_cast<uint64_t>(tensors.size()));
  head.number(static_cast<uint64_t>(metadata.size()));
  for (const auto &[key, value] : metadata) {
    head.put(key);
    head.value(value);
  }
  uint64_t offset = 0;
  for (const GgufTensor &tensor : tensors) {
    head.put(tensor.name);
    head.number(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;)
      head.number(static_cast<uint64_t>(tensor.shape[i]));
    head.number(tensor.type);
    head.number(offset);
    offset += ggufAligned(static_cast<uint64_t>(tensor.bytes()));
  }
  head.align();
  QLORA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  GgufWriter writer(std::move(file), std::move(tensors));
  writer.headBytes = head.bytes.size();
  writer.totalBytes = writer.headBytes + offset;
  QLORA_RETURN_IF_ERROR(writer.file.reserve(writer.totalBytes,
                                            AtomicFile::Reserve::kWhereItCan));
  QLORA_RETURN_IF_ERROR(writer.file.write(head.bytes));
  return writer;
}

Status GgufWriter::append(std::span<const uint8_t> bytes) {
  assert(current < tensors.size() && "more data than tensors");
  const auto size = static_cast<uint64_t>(tensors[current].bytes());
  assert(currentBytes + bytes.size() <= size && "data goes beyond a tensor");
  QLORA_RETURN_IF_ERROR(file.write(
      {reinterpret_cast<const char *>(bytes.data()), bytes.size()}));
  currentBytes += bytes.size();
  if (currentBytes < size)
    return Status::ok();
  ++current;
  currentBytes = 0;
  const std::string padding(ggufAligned(size) - size, '\0');
  return file.write(padding);
}

Status GgufWriter::commit() {
  assert(current == tensors.size() && "a tensor has no data");
  return file.commit();
}

} // namespace qlora
