// SPDX-License-Identifier: MIT

// How a printed kernel is spelled in one dialect of C++. PrintKernel.cpp
// decides what is computed in which loop; everything that host C++ and CUDA
// C++ say differently is here, so a second target is a second KernelDialect.
//
// Statements speak of `row` (the row being computed) and `c` (a column of
// it); they are complete lines without indentation.

#ifndef QLORA_COMPILER_CODEGEN_KERNELDIALECT_H
#define QLORA_COMPILER_CODEGEN_KERNELDIALECT_H

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/ABI/kernel.h"

namespace qlora {

using Statements = std::vector<std::string>;

/// A loop over the columns [0, columns) of a row.
struct ColumnLoop {
  int64_t columns = 0;
  Statements body;
  /// (name, term): `name` becomes the sum of the terms over all columns. A
  /// name may come twice; its terms are added one after the other.
  std::vector<std::pair<std::string, std::string>> terms;
  /// The distinct names of `terms`, in order.
  std::vector<std::string> sums;
};

struct KernelDialect {
  virtual ~KernelDialect() = default;

  /// The function up to its opening brace.
  virtual std::string signature(std::string_view name) const = 0;
  /// Declares `name` as the start of operand `index`.
  virtual std::string pointer(std::string_view name, size_t index,
                              qlora_dtype dtype, bool isResult) const = 0;
  /// The type of such a pointer to elements that a row reads or writes.
  virtual std::string pointerType(qlora_dtype dtype, bool isResult) const = 0;
  virtual std::string beginRows() const = 0;
  virtual std::string endRows() const = 0;
  /// An array of one row that outlives a column loop.
  virtual std::string rowArray(std::string_view name,
                               int64_t columns) const = 0;
  /// Element `index` of a pointer as float, and the way back.
  virtual std::string load(qlora_dtype dtype, std::string_view pointer,
                           std::string_view index) const = 0;
  virtual std::string store(qlora_dtype dtype, std::string_view pointer,
                            std::string_view index,
                            std::string_view value) const = 0;
  /// A whole column loop, its reductions included, as lines with the
  /// indentation of the loop's own nesting.
  virtual Statements loop(const ColumnLoop &loop) const = 0;
};

/// Host C++ for `--target cpu`.
const KernelDialect &hostDialect();

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_KERNELDIALECT_H
