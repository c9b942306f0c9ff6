// SPDX-License-Identifier: MIT

// How a printed kernel is spelled in one dialect of C++. KernelFunction.cpp
// decides what each loop computes. All differences between host C++ and CUDA
// C++ are here, so a second target is a second KernelSpelling.
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

/// Launch geometry, as in qlora_kernel: a block of `threads` computes
/// `rowsPerBlock` rows. Zeros on a CPU, whose device splits the rows itself.
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
  /// Columns of a kernel row: 2 * `columns` if an iteration handles two.
  int64_t rowColumns = 0;
  /// The body fills an array of the row that a later loop reads.
  bool fillsArray = false;
  /// Columns that are loaded and stored at once. The body computes column
  /// `c + lane`. 1: it computes column `c`, and `lane` does not exist.
  int64_t lanes = 1;
  Statements loads, stores; ///< for all lanes, before and after the body
  Statements body;
  std::vector<Reduction> reductions;
};

struct KernelSpelling {
  virtual ~KernelSpelling() = default;

  // The launch, for rows of `columns` elements.
  virtual KernelGeometry geometry(int64_t columns) const = 0;
  /// Ends the sentence "rows of 64 columns": empty, or starts with a comma.
  virtual std::string geometryText(int64_t columns) const = 0;
  /// Returns how many arrays of one row (rowArray) a kernel may have.
  virtual int64_t maxRowArrays(int64_t columns) const = 0;
  /// True if sigmoids, inverse roots and random numbers cost about as much as
  /// an array's store and load. They are then recomputed.
  virtual bool hasQuickFunctions() const = 0;

  /// Returns the lanes of a loop over `columns` of the `rowColumns` of a kernel
  /// whose rows are aligned to `aligned` elements.
  virtual int64_t lanes(int64_t columns, int64_t rowColumns,
                        int64_t aligned) const = 0;

  // The function.
  /// Returns the file that a source with kernels includes.
  virtual std::string include() const = 0;
  /// Returns the type of a file-scope array of constants, without the `*`.
  virtual std::string tableType() const = 0;
  /// Returns the function up to its opening brace.
  virtual Statements signature(std::string_view name,
                               int64_t columns) const = 0;
  /// Returns a field of the function's argument: "args->step" for "step".
  virtual std::string argument(std::string_view field) const = 0;
  /// Returns the lines before and after the code for one row. They declare
  /// `row`. Without an end, the function computes one row.
  virtual Statements beginRows(int64_t columns) const = 0;
  virtual Statements endRows() const = 0;
  /// Returns row / divisor and row % divisor, as 64 bits (for strides).
  virtual std::string rowQuotient(int64_t divisor) const = 0;
  virtual std::string rowRemainder(int64_t divisor) const = 0;
  /// Declares an array of one row that outlives a column loop.
  virtual Statements rowArray(std::string_view name,
                              int64_t columns) const = 0;
  /// Returns a whole column loop with its reductions, as lines indented for the
  /// loop's own nesting.
  virtual Statements loop(const ColumnLoop &loop) const = 0;
  /// Returns a statement that runs once per row, outside the loops.
  virtual Statements oncePerRow(std::string_view statement,
                                int64_t columns) const = 0;

  // Common to every dialect.
  /// Declares `name` as the start of operand `index`.
  std::string pointer(std::string_view name, size_t index, qlora_dtype dtype,
                      bool isResult) const;
  /// Returns the type of that pointer to elements that a row reads or writes.
  std::string pointerType(qlora_dtype dtype, bool isResult) const;
  /// Loads element `index` of a pointer as float, or stores a float to it.
  std::string load(qlora_dtype dtype, std::string_view pointer,
                   std::string_view index) const;
  std::string store(qlora_dtype dtype, std::string_view pointer,
                    std::string_view index, std::string_view value) const;
  /// True if elements of this type are loaded in lanes.
  static bool hasLanes(qlora_dtype dtype) {
    return dtype != QLORA_DTYPE_I32;
  }
  /// Loads lanes from element `index` on as `name`, or stores them.
  std::string loadLanes(qlora_dtype dtype, std::string_view name,
                        std::string_view pointer, std::string_view index,
                        int64_t lanes) const;
  std::string storeLanes(qlora_dtype dtype, std::string_view name,
                         std::string_view pointer,
                         std::string_view index) const;
};

/// Host C++ for `--target cpu`.
const KernelSpelling &hostSpelling();
/// CUDA C++ for `--target cuda`: blocks compute wide rows, warps narrow ones.
const KernelSpelling &cudaSpelling();

/// Appends `text` after `indent` spaces, as one line.
void appendStatement(Statements &lines, int indent, std::string_view text);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_KERNELSPELLING_H
