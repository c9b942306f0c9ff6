// SPDX-License-Identifier: MIT

// Implements the text that all C++ dialects share.

#include "compiler/Codegen/KernelSpelling.h"

#include <fmt/format.h>

using namespace qlora;

std::string KernelSpelling::pointer(std::string_view name, size_t index,
                                   qlora_dtype dtype, bool isResult) const {
  std::string type = pointerType(dtype, isResult);
  return fmt::format("{}const {} = static_cast<{}>({});", type, name, type,
                     argument(fmt::format("buffers[{}]", index)));
}

std::string KernelSpelling::pointerType(qlora_dtype dtype,
                                       bool isResult) const {
  const char *element = dtype == QLORA_DTYPE_F32   ? "float"
                        : dtype == QLORA_DTYPE_I32 ? "int32_t"
                        : dtype == QLORA_DTYPE_I8  ? "int8_t"
                                                   : "uint16_t";
  return fmt::format("{}{} *", isResult ? "" : "const ", element);
}

/// Returns the suffix of Rows.h's load and store functions.
static const char *suffix(qlora_dtype dtype) {
  switch (dtype) {
  case QLORA_DTYPE_BF16:
    return "bf16";
  case QLORA_DTYPE_F16:
    return "f16";
  case QLORA_DTYPE_I32:
    return "i32";
  case QLORA_DTYPE_I8:
    return "i8";
  default:
    return "f32";
  }
}

std::string KernelSpelling::load(qlora_dtype dtype, std::string_view pointer,
                                std::string_view index) const {
  if (dtype == QLORA_DTYPE_F32)
    return fmt::format("{}[{}]", pointer, index);
  std::string value =
      fmt::format("qlora_load_{}({}, {})", suffix(dtype), pointer, index);
  return dtype == QLORA_DTYPE_I32 ? fmt::format("float({})", value) : value;
}

std::string KernelSpelling::store(qlora_dtype dtype, std::string_view pointer,
                                 std::string_view index,
                                 std::string_view value) const {
  if (dtype == QLORA_DTYPE_F32)
    return fmt::format("{}[{}] = {};", pointer, index, value);
  return fmt::format("qlora_store_{}({}, {}, {});", suffix(dtype), pointer,
                     index, value);
}

std::string KernelSpelling::loadLanes(qlora_dtype dtype, std::string_view name,
                                     std::string_view pointer,
                                     std::string_view index,
                                     int64_t lanes) const {
  return fmt::format("const qlora_lanes<{}> {} = qlora_load_{}<{}>({}, {});",
                     lanes, name, suffix(dtype), lanes, pointer, index);
}

std::string KernelSpelling::storeLanes(qlora_dtype dtype, std::string_view name,
                                      std::string_view pointer,
                                      std::string_view index) const {
  return fmt::format("qlora_store_{}({}, {}, {});", suffix(dtype), pointer,
                     index, name);
}

void qlora::appendStatement(Statements &lines, int indent,
                            std::string_view text) {
  lines.push_back(fmt::format("{:{}}{}", "", indent, text));
}
