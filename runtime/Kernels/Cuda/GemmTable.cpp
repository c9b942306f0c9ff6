// SPDX-License-Identifier: MIT

// Converts tables of GEMM algorithms to JSON and back.

#include "runtime/Kernels/Cuda/GemmTable.h"

#include <nlohmann/json.hpp>

#include <charconv>
#include <cmath>
#include <iterator>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"

namespace qlora {

using json = nlohmann::ordered_json;

static constexpr int kFormat = 2;
static constexpr uint64_t kMost = uint64_t{1} << 62;

std::string GpuKind::text() const {
  return fmt::format("{} ({}.{}, {} multiprocessors, cuBLASLt {}.{}.{}, driver "
                     "of CUDA {}.{})",
                     name, arch / 10, arch % 10, multiprocessors,
                     cublasLt / 10000, cublasLt % 10000 / 100, cublasLt % 100,
                     driver / 1000, driver % 1000 / 10);
}

// Writing ---------------------------------------------------------------------

static json toJson(const GemmSignature &s, const GemmEntry &entry) {
  json product = {{"m", s.m},
                  {"n", s.n},
                  {"k", s.k},
                  {"lda", s.lda},
                  {"ldb", s.ldb},
                  {"ldc", s.ldc},
                  {"transpose_a", s.transposeA},
                  {"transpose_b", s.transposeB},
                  {"adds", s.adds},
                  {"type", dtypeName(s.type)},
                  {"result", dtypeName(s.result)},
                  {"alignment", s.alignment},
                  {"scratch_limit", s.scratchLimit},
                  {"algorithm", nullptr},
                  {"scratch", 0},
                  {"microseconds", nullptr}};
  if (entry.algorithm) {
    product["algorithm"] = fmt::format(
        "{:016x}", fmt::join(entry.algorithm->choice.data, ""));
    product["scratch"] = entry.algorithm->scratchBytes;
  }
  if (entry.microseconds > 0)
    product["microseconds"] = entry.microseconds;
  return product;
}

std::string GemmTable::text() const {
  json all = json::array();
  for (const auto &[kind, products] : gpus) {
    json list = json::array();
    for (const auto &[signature, entry] : products)
      list.push_back(toJson(signature, entry));
    all.push_back({{"name", kind.name},
                   {"compute_capability", kind.arch},
                   {"multiprocessors", kind.multiprocessors},
                   {"cublaslt", kind.cublasLt},
                   {"driver", kind.driver},
                   {"products", std::move(list)}});
  }
  return dumpJson(json{{"format", kFormat}, {"cards", std::move(all)}}, 1) +
         "\n";
}

// Reading ---------------------------------------------------------------------

namespace {
/// Reads the values of one JSON object. Only the first error is stored.
class Fields {
public:
  Fields(const json &object, std::string where, Status &wrong)
      : object(object), where(std::move(where)), wrong(wrong) {
    if (!object.is_object())
      refuse("", "an object");
  }

  const json &at(const char *key) const {
    static const json none;
    const auto found = object.is_object() ? object.find(key) : object.end();
    return object.is_object() && found != object.end() ? *found : none;
  }
  template <typename T> void read(const char *key, T &value, uint64_t most) {
    const json &given = at(key);
    if (!given.is_number_unsigned() || given.get<uint64_t>() > most)
      return refuse(key, fmt::format("an integer from 0 to {}", most));
    value = static_cast<T>(given.get<uint64_t>());
  }
  void read(const char *key, bool &value) {
    if (!at(key).is_boolean())
      return refuse(key, "true or false");
    value = at(key).get<bool>();
  }
  void read(const char *key, std::string &value) {
    if (!at(key).is_string())
      return refuse(key, "a text");
    value = at(key).get<std::string>();
  }
  void read(const char *key, qlora_dtype &value) {
    for (const qlora_dtype type : {QLORA_DTYPE_F32, QLORA_DTYPE_BF16})
      if (at(key) == dtypeName(type)) {
        value = type;
        return;
      }
    refuse(key, "f32 or bf16");
  }
  /// Reads a positive number. null means 0.
  void readTime(const char *key, double &value) {
    const json &given = at(key);
    if (given.is_null() && object.contains(key))
      return;
    if (!given.is_number() || !(given.get<double>() > 0) ||
        !std::isfinite(given.get<double>()))
      return refuse(key, "a time above 0 or null");
    value = given.get<double>();
  }
  /// Reads an algorithm. null leaves `value` empty.
  void read(const char *key, std::optional<GemmAlgorithm> &value) {
    if (at(key).is_null() && object.contains(key))
      return;
    const json &given = at(key);
    const std::string digits =
        given.is_string() ? given.get<std::string>() : "";
    GemmAlgorithm algorithm;
    bool isWhole = digits.size() == 16 * std::size(algorithm.choice.data);
    for (size_t i = 0; isWhole && i < std::size(algorithm.choice.data); ++i) {
      const char *begin = digits.data() + 16 * i;
      const auto [end, error] =
          std::from_chars(begin, begin + 16, algorithm.choice.data[i], 16);
      isWhole = error == std::errc() && end == begin + 16;
    }
    if (!isWhole)
      return refuse(key, "128 hexadecimal digits or null");
    value = algorithm;
  }
  const json &list(const char *key) {
    if (!at(key).is_array())
      refuse(key, "a list");
    return at(key);
  }
  std::string place(const char *key, size_t index) const {
    return fmt::format("{}{}[{}]", where, key, index);
  }
  void refuse(const char *key, std::string_view expected) {
    if (wrong.isOk())
      wrong = Status::dataLoss(
          "is damaged or not a table of GEMM algorithms: {}{} expects {}",
          where.empty() && !*key ? "the whole" : where, key, expected);
  }

private:
  const json &object;
  std::string where; ///< "" or "cards[0].products[3]."
  Status &wrong;
};
} // namespace

static std::pair<GemmSignature, GemmEntry>
readProduct(const json &object, const std::string &where, Status &wrong) {
  Fields fields(object, where + ".", wrong);
  GemmSignature s = {};
  for (const auto &[key, value] :
       {std::pair{"m", &s.m}, {"n", &s.n}, {"k", &s.k}, {"lda", &s.lda},
        {"ldb", &s.ldb}, {"ldc", &s.ldc}})
    fields.read(key, *value, kMost);
  fields.read("transpose_a", s.transposeA);
  fields.read("transpose_b", s.transposeB);
  fields.read("adds", s.adds);
  fields.read("type", s.type);
  fields.read("result", s.result);
  fields.read("alignment", s.alignment, 4096);
  fields.read("scratch_limit", s.scratchLimit, kMost);
  GemmEntry entry;
  fields.read("algorithm", entry.algorithm);
  uint64_t scratch = 0;
  fields.read("scratch", scratch, kMost);
  if (entry.algorithm)
    entry.algorithm->scratchBytes = scratch;
  fields.readTime("microseconds", entry.microseconds);
  return {s, entry};
}

static void readGpu(const json &object, const std::string &where,
                    GemmTable &table, Status &wrong) {
  Fields fields(object, where + ".", wrong);
  GpuKind kind;
  fields.read("name", kind.name);
  fields.read("compute_capability", kind.arch, 9999);
  fields.read("multiprocessors", kind.multiprocessors, 1 << 20);
  fields.read("cublaslt", kind.cublasLt, kMost);
  fields.read("driver", kind.driver, 1 << 30);
  GemmTable::Products &products = table.gpus[kind];
  size_t index = 0;
  for (const json &product : fields.list("products")) {
    const auto [signature, entry] =
        readProduct(product, fields.place("products", index++), wrong);
    products.insert_or_assign(signature, entry);
  }
}

StatusOr<GemmTable> GemmTable::parse(std::string_view text) {
  const json whole = json::parse(text, nullptr, /*allow_exceptions=*/false);
  Status wrong;
  Fields fields(whole, "", wrong);
  GemmTable table;
  int format = 0;
  fields.read("format", format, 1 << 30);
  if (wrong.isOk() && format != kFormat)
    fields.refuse("format", fmt::format("{}", kFormat));
  size_t index = 0;
  for (const json &gpu : fields.list("cards"))
    readGpu(gpu, fields.place("cards", index++), table, wrong);
  QLORA_RETURN_IF_ERROR(wrong);
  return table;
}

StatusOr<GemmTable> GemmTable::read(const std::string &path) {
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(path));
  auto table = parse(text);
  if (!table.isOk())
    return Status::error(table.status().code(), "'{}' {}", path,
                         table.status().message());
  return table;
}

void GemmTable::merge(const GemmTable &other) {
  for (const auto &[kind, products] : other.gpus)
    for (const auto &[signature, entry] : products)
      gpus[kind].insert_or_assign(signature, entry);
}

const GemmTable::Products *GemmTable::find(const GpuKind &kind) const {
  const auto found = gpus.find(kind);
  return found == gpus.end() ? nullptr : &found->second;
}

} // namespace qlora
