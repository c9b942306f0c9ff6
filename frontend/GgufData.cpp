// SPDX-License-Identifier: MIT

// Reads, reorders, quantizes and writes tensors of GGUF files.

#include "frontend/GgufData.h"

#include <algorithm>
#include <vector>

#include "runtime/Gguf/GgufQuantize.h"

namespace qlora {

namespace {

/// Reads rows of one tensor of the file.
class RowReader {
public:
  RowReader(const GgufSource &source, const OpenTensor &open)
      : source(source), open(open), width(source.rowValues()),
        matrixRows(source.matrixRows()),
        storedRows(matrixRows * source.stride),
        matricesPerPart(source.parts.empty()
                            ? 1
                            : source.tensor.elements() / width / matrixRows /
                                  static_cast<int64_t>(source.parts.size())) {}

  /// Fills `out` with rows of one matrix, from `row` of the matrix on.
  Status read(int64_t matrix, int64_t row, std::span<float> out);

private:
  Status openPart(size_t part);
  Status readTransposed(int64_t matrix, int64_t row, std::span<float> out);
  Status readPermuted(int64_t first, std::span<float> out);

  const GgufSource &source;
  const OpenTensor &open;
  const int64_t width, matrixRows, storedRows, matricesPerPart;
  size_t openedPart = SIZE_MAX;
  ReadValues values;
  std::vector<float> scratch;
};

} // namespace

Status RowReader::openPart(size_t part) {
  if (part == openedPart)
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(values, open(source.parts[part]));
  openedPart = part;
  return Status::ok();
}

/// Reads the whole [in, out] matrix.
Status RowReader::readTransposed(int64_t matrix, int64_t row,
                                 std::span<float> out) {
  scratch.resize(static_cast<size_t>(width * storedRows));
  QLORA_RETURN_IF_ERROR(values(matrix * width * storedRows, scratch));
  for (int64_t i = 0; i * width < static_cast<int64_t>(out.size()); ++i) {
    const int64_t stored = source.storedRow(row + i);
    for (int64_t c = 0; c < width; ++c)
      out[static_cast<size_t>(i * width + c)] =
          scratch[static_cast<size_t>(c * storedRows + stored)];
  }
  return Status::ok();
}

/// Reads the folder's rows that `out` covers at once, and picks from them.
/// `out` has whole heads.
Status RowReader::readPermuted(int64_t first, std::span<float> out) {
  const auto rows = static_cast<int64_t>(out.size()) / width;
  const int64_t begin = first * source.stride;
  scratch.resize(out.size() * static_cast<size_t>(source.stride));
  const int64_t row = begin % storedRows / source.stride;
  QLORA_RETURN_IF_ERROR(values(begin * width, scratch));
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t stored = source.storedRow(row + i) - row * source.stride;
    std::copy_n(scratch.begin() + stored * width, width,
                out.begin() + i * width);
  }
  return Status::ok();
}

Status RowReader::read(int64_t matrix, int64_t row, std::span<float> out) {
  if (source.parts.empty()) {
    std::copy_n(source.values.begin() + row, out.size(), out.begin());
    return Status::ok();
  }
  QLORA_RETURN_IF_ERROR(
      openPart(static_cast<size_t>(matrix / matricesPerPart)));
  const int64_t inPart = matrix % matricesPerPart;
  if (source.isTransposed)
    QLORA_RETURN_IF_ERROR(readTransposed(inPart, row, out));
  else if (source.permutedHead || source.stride > 1)
    QLORA_RETURN_IF_ERROR(readPermuted(inPart * matrixRows + row, out));
  else
    QLORA_RETURN_IF_ERROR(values((inPart * storedRows + row) * width, out));
  if (source.factor != 1 || source.addend != 0)
    for (float &value : out)
      value = value * source.factor + source.addend;
  return Status::ok();
}

/// Rows of a matrix that are read at a time: whole heads if their rows are
/// reordered, and whole rows of the file.
static int64_t windowRows(const GgufSource &source) {
  const int64_t rows = source.matrixRows(), width = source.rowValues();
  if (source.isTransposed || width == 1)
    return rows;
  const int64_t unit = std::max<int64_t>(1, source.permutedHead);
  const int64_t units = std::max<int64_t>(1, kGgufWindow / (unit * width));
  return std::min(rows, units * unit);
}

int64_t ggufPeakValues(std::span<const GgufSource> sources) {
  int64_t peak = 0;
  for (const GgufSource &source : sources) {
    const int64_t window = windowRows(source) * source.rowValues();
    const bool hasScratch = source.isTransposed || source.permutedHead ||
                            source.stride > 1;
    peak = std::max(peak, window * (hasScratch ? 1 + source.stride : 1));
  }
  return peak;
}

static Status writeSource(const GgufSource &source, const OpenTensor &open,
                          GgufWriter &writer) {
  const GgufTensor &tensor = source.tensor;
  const int64_t width = source.rowValues(), rows = source.matrixRows();
  const int64_t matrices = tensor.elements() / (width * rows);
  const int64_t window = windowRows(source);
  RowReader reader(source, open);
  std::vector<float> values;
  std::vector<uint8_t> bytes;
  for (int64_t matrix = 0; matrix < matrices; ++matrix)
    for (int64_t row = 0; row < rows; row += window) {
      const int64_t count = std::min(window, rows - row) * width;
      values.resize(static_cast<size_t>(count));
      QLORA_RETURN_IF_ERROR(reader.read(matrix, row, values));
      // A bias or norm is one row.
      const int64_t columns = width == 1 ? count : width;
      bytes.resize(static_cast<size_t>(ggufBytes(tensor.type, count)));
      QLORA_RETURN_IF_ERROR(quantizeGguf(tensor.type, values.data(),
                                         count / columns, columns,
                                         bytes.data()));
      QLORA_RETURN_IF_ERROR(writer.append(bytes));
    }
  return Status::ok();
}

Status writeGgufData(std::span<const GgufSource> sources,
                     const OpenTensor &open, GgufWriter &writer) {
  for (const GgufSource &source : sources)
    if (Status status = writeSource(source, open, writer);
        !status.isOk())
      return status.withContext(source.tensor.name);
  return Status::ok();
}

} // namespace qlora
