// SPDX-License-Identifier: MIT

// The syntax of printed kernels in one dialect of C++. KernelFunction.cpp
// decides what each loop computes. All differences between host C++ and CUDA
// C++ are here, so another target only needs another KernelSpelling.
//
// Statements may use `row` (the row being computed) and `c` (a column of it).
// They are complete lines without indentation.

#ifndef QLORA_COMPILER_CODEGEN_KERNELSPELLING_H
#define QLORA_COMPILER_CODEGEN_KERNELSPELLING_H

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ABI/kernel.h"

namespace qlora {

using Statements = std::vector<std::string>;

/// Launch geometry, as in qlora_kernel: a block of `threads` threads computes
/// `rowsPerBlock` rows. Both are 0 on a CPU, where the runtime splits the rows.
struct KernelGeometry {
  uint32_t threads = 0;
  uint32_t rowsPerBlock = 0;
};

/// A reduction over the columns of a loop: sum or maximum.
struct Reduction {
  std::string name;
  bool isMax = false;
  /// One term per column that an iteration handles: one or two.
  std::vector<std::string> terms;
};

/// A loop over the columns [0, columns) of a row.
struct ColumnLoop {
  int64_t columns = 0;
  /// Columns of a kernel row: 2 * `columns` if an iteration handles a pair.
  int64_t rowColumns = 0;
  /// True if the body fills a row array that a later loop reads.
  bool fillsArray = false;
  /// Number of columns that one vector load or store covers. If above 1, the
  /// body computes column `c + lane`; if 1, it computes column `c`.
  int64_t lanes = 1;
  Statements loads, stores; ///< for all lanes, before and after the body
  Statements body;
  std::vector<Reduction> reductions;
};

struct KernelSpelling {
  virtual ~KernelSpelling() = default;

  /// Returns the launch geometry for rows of `columns` elements.
  virtual KernelGeometry geometry(int64_t columns) const = 0;
  /// Returns the geometry for the comment above a kernel, as a suffix of "rows
  /// of 64 columns": empty, or starting with a comma.
  virtual std::string geometryText(int64_t columns) const = 0;
  /// Returns how many row arrays (rowArray()) a kernel may have.
  virtual int64_t maxRowArrays(int64_t columns) const = 0;
  /// True if computing a sigmoid, inverse root or random number costs about as
  /// much as storing and loading it. Later loops then recompute such values.
  virtual bool hasQuickFunctions() const = 0;

  /// Returns ColumnLoop::lanes for a loop over `columns` of a kernel row's
  /// `rowColumns` columns. Rows are aligned to `aligned` elements.
  virtual int64_t lanes(int64_t columns, int64_t rowColumns,
                        int64_t aligned) const = 0;

  /// Returns the header that a source file with kernels includes.
  virtual std::string include() const = 0;
  /// Returns the specifiers of a constant array: "static const float" in C++.
  virtual std::string tableType() const = 0;
  /// Returns the function's signature up to its opening brace.
  virtual Statements signature(std::string_view name,
                               int64_t columns) const = 0;
  /// Returns a field of the kernel's arguments: "args->step" for "step".
  virtual std::string argument(std::string_view field) const = 0;
  /// Returns the lines before the code for one row. They declare `row`.
  virtual Statements beginRows(int64_t columns) const = 0;
  /// Returns the lines after the code for one row. Empty if a call of the
  /// function computes only one row.
  virtual Statements endRows() const = 0;
  /// Return C++ for row / divisor and row % divisor. The type is 64-bit, so
  /// that a product with a stride does not overflow.
  virtual std::string rowQuotient(int64_t divisor) const = 0;
  virtual std::string rowRemainder(int64_t divisor) const = 0;
  /// Declares a row array: one float per column, which a column loop writes and
  /// later loops over the same row read.
  virtual Statements rowArray(std::string_view name, int64_t columns) const = 0;
  /// Returns a column loop with its reductions. Only lines inside the loop are
  /// indented.
  virtual Statements loop(const ColumnLoop &loop) const = 0;
  /// Returns a statement that runs once per row, outside the loops.
  virtual Statements oncePerRow(std::string_view statement,
                                int64_t columns) const = 0;

  /// Declares `name` as a pointer to the first element of operand `index`.
  std::string pointer(std::string_view name, size_t index, qlora_dtype dtype,
                      bool isResult) const;
  /// Returns the C++ type of a pointer to elements of `dtype`; const unless
  /// `isResult`.
  std::string pointerType(qlora_dtype dtype, bool isResult) const;
  /// Returns C++ that loads element `index` of `pointer` as a float. store()
  /// returns C++ that stores the float `value` there.
  std::string load(qlora_dtype dtype, std::string_view pointer,
                   std::string_view index) const;
  std::string store(qlora_dtype dtype, std::string_view pointer,
                    std::string_view index, std::string_view value) const;
  /// True if one load can cover several elements of this type.
  static bool hasLanes(qlora_dtype dtype) { return dtype != QLORA_DTYPE_I32; }
  /// Returns C++ that loads the elements from `index` on into variable `name`.
  /// storeLanes() returns C++ that stores `name` to these elements.
  std::string loadLanes(qlora_dtype dtype, std::string_view name,
                        std::string_view pointer, std::string_view index,
                        int64_t lanes) const;
  std::string storeLanes(qlora_dtype dtype, std::string_view name,
                         std::string_view pointer,
                         std::string_view index) const;
};

/// Host C++ for `--target cpu`.
const KernelSpelling &hostSpelling();
/// CUDA C++ for `--target cuda`. A block computes a wide row, a warp computes a
/// narrow row.
const KernelSpelling &cudaSpelling();

/// Appends `text` after `indent` spaces, as one line.
void appendStatement(Statements &lines, int indent, std::string_view text);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_KERNELSPELLING_H
