// SPDX-License-Identifier: MIT

// How a printed kernel is spelled in one dialect of C++. KernelFunction.cpp
// decides what is computed in which loop; everything that host C++ and CUDA
// C++ say differently is here, so a second target is a second KernelSpelling.
//
// Statements speak of `row` (the row being computed) and `c` (a column of
// it); they are complete lines without indentation.

#ifndef QLORA_COMPILER_CODEGEN_KERNELSPELLING_H
#define QLORA_COMPILER_CODEGEN_KERNELSPELLING_H

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ABI/kernel.h"

namespace qlora {

using Statements = std::vector<std::string>;

/// How a launch is cut, as qlora_kernel has it: a block of `threads` computes
/// `rowsPerBlock` rows. Zeros on a CPU, whose device splits the rows itself.
struct KernelGeometry {
  uint32_t threads = 0;
  uint32_t rowsPerBlock = 0;
};

/// What a loop makes of the terms of all columns: their sum, or the largest.
struct Reduction {
  std::string name;
  bool isMax = false;
  /// Of one column; two where the loop takes two.
  std::vector<std::string> terms;
};

/// A loop over the columns [0, columns) of a row.
struct ColumnLoop {
  int64_t columns = 0;
  /// Of the kernel's rows: twice `columns` where the loop takes two columns.
  int64_t rowColumns = 0;
  /// The body fills an array of the row that a later loop reads.
  bool fillsArray = false;
  /// Columns that are loaded and stored at once: the body computes column
  /// `c + lane`. 1: it computes `c`, and there is no lane.
  int64_t lanes = 1;
  Statements loads, stores; ///< of all lanes, around the body
  Statements body;
  std::vector<Reduction> reductions;
};

struct KernelSpelling {
  virtual ~KernelSpelling() = default;

  // What a launch of rows of `columns` elements looks like.
  virtual KernelGeometry geometry(int64_t columns) const = 0;
  /// Ends the sentence "rows of 64 columns": empty, or starts with a comma.
  virtual std::string geometryText(int64_t columns) const = 0;
  /// How many arrays of one row (rowArray) a kernel may have.
  virtual int64_t maxRowArrays(int64_t columns) const = 0;
  /// Sigmoids, inverse roots and random numbers cost about as much as the
  /// store and the load of an array, and are computed again.
  virtual bool hasQuickFunctions() const = 0;

  /// Lanes of a loop over `columns` of a kernel's `rowColumns`, where rows are
  /// aligned to `aligned` elements.
  virtual int64_t lanes(int64_t columns, int64_t rowColumns,
                        int64_t aligned) const = 0;

  // The function.
  /// What a source with kernels includes.
  virtual std::string include() const = 0;
  /// The type of a file-scope array of constants, without the `*`.
  virtual std::string tableType() const = 0;
  /// The function up to its opening brace.
  virtual Statements signature(std::string_view name,
                               int64_t columns) const = 0;
  /// A field of the function's argument: "args->step" for "step".
  virtual std::string argument(std::string_view field) const = 0;
  /// Between these two lists `row` is a row. Without an end, the function
  /// computes one row.
  virtual Statements beginRows(int64_t columns) const = 0;
  virtual Statements endRows() const = 0;
  /// Numbers of 64 bits, to be multiplied by strides.
  virtual std::string rowQuotient(int64_t divisor) const = 0;
  virtual std::string rowRemainder(int64_t divisor) const = 0;
  /// An array of one row that outlives a column loop.
  virtual Statements rowArray(std::string_view name,
                              int64_t columns) const = 0;
  /// A whole column loop, its reductions included, as lines with the
  /// indentation of the loop's own nesting.
  virtual Statements loop(const ColumnLoop &loop) const = 0;
  /// A statement that is to happen once for a row, outside the loops.
  virtual Statements oncePerRow(std::string_view statement,
                                int64_t columns) const = 0;

  // The same in every C++.
  /// Declares `name` as the start of operand `index`.
  std::string pointer(std::string_view name, size_t index, qlora_dtype dtype,
                      bool isResult) const;
  /// The type of such a pointer to elements that a row reads or writes.
  std::string pointerType(qlora_dtype dtype, bool isResult) const;
  /// Element `index` of a pointer as float, and the way back.
  std::string load(qlora_dtype dtype, std::string_view pointer,
                   std::string_view index) const;
  std::string store(qlora_dtype dtype, std::string_view pointer,
                    std::string_view index, std::string_view value) const;
  /// Whether elements of this type are loaded in lanes.
  static bool hasLanes(qlora_dtype dtype) {
    return dtype != QLORA_DTYPE_I32;
  }
  /// Declares `name` as the lanes from element `index` on, and the way back.
  std::string loadLanes(qlora_dtype dtype, std::string_view name,
                        std::string_view pointer, std::string_view index,
                        int64_t lanes) const;
  std::string storeLanes(qlora_dtype dtype, std::string_view name,
                         std::string_view pointer,
                         std::string_view index) const;
};

/// Host C++ for `--target cpu`.
const KernelSpelling &hostSpelling();
/// CUDA C++ for `--target cuda`: a wide row is computed by a block of
/// threads, a narrow one by a warp.
const KernelSpelling &cudaSpelling();

/// `text` after `indent` spaces, as one more line.
void appendStatement(Statements &lines, int indent, std::string_view text);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_KERNELSPELLING_H
