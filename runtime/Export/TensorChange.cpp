// SPDX-License-Identifier: MIT

// The arithmetic of adapters. Compiled without contraction of products and
// sums, so that merged files have the same bytes on all machines.

#include "runtime/Export/TensorChange.h"

#include <algorithm>
#include <cmath>

#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Weights/ConvertWeights.h"
#include "runtime/Weights/FileWeight.h"

namespace qlora {

/// Values of the base that are read at a time for norms.
static constexpr int64_t kNormWindow = int64_t{1} << 20;

StatusOr<std::vector<float>> readFactor(const SafetensorsFile &adapter,
                                        const SafetensorsTensor &tensor) {
  QLORA_ASSIGN_OR_RETURN(const FileWeight weight,
                         FileWeight::of(adapter, tensor, tensor.shape));
  std::vector<uint8_t> bytes(tensor.byteCount());
  QLORA_RETURN_IF_ERROR(weight.read(0, bytes));
  std::vector<float> values(static_cast<size_t>(tensor.elementCount()));
  convertWeights(weight.dtype, bytes.data(), QLORA_DTYPE_F32,
                 reinterpret_cast<uint8_t *>(values.data()),
                 tensor.elementCount());
  return values;
}

/// Reads a factor that may be missing.
static StatusOr<std::vector<float>>
readFloats(const SafetensorsFile &file, const SafetensorsTensor *tensor) {
  if (!tensor)
    return std::vector<float>();
  return readFactor(file, *tensor);
}

static std::vector<float> turned(const std::vector<float> &values,
                                 int64_t rows, int64_t columns) {
  std::vector<float> result(values.size());
  if (!values.empty())
    turnWeights(QLORA_DTYPE_F32,
                reinterpret_cast<const uint8_t *>(values.data()), rows, columns,
                reinterpret_cast<uint8_t *>(result.data()));
  return result;
}

StatusOr<AppliedChange> AppliedChange::make(const SafetensorsFile &adapter,
                                            const TensorChange &change,
                                            const std::vector<int64_t> &shape,
                                            const ReadBase &base) {
  AppliedChange applied;
  applied.change = change;
  if (!shape.empty())
    applied.columns = shape.back();
  if (shape.size() > 1)
    applied.rows = shape[shape.size() - 2];
  for (size_t i = 0; i + 2 < shape.size(); ++i)
    applied.matrices *= shape[i];
  QLORA_ASSIGN_OR_RETURN(applied.a, readFloats(adapter, change.a));
  {
    QLORA_ASSIGN_OR_RETURN(const std::vector<float> b,
                           readFloats(adapter, change.b));
    if (change.b)
      applied.bTurned = turned(b, change.b->shape[0], change.b->shape[1]);
  }
  QLORA_ASSIGN_OR_RETURN(applied.tokens, readFloats(adapter, change.tokens));
  QLORA_ASSIGN_OR_RETURN(applied.bias, readFloats(adapter, change.bias));
  QLORA_ASSIGN_OR_RETURN(applied.factor, readFloats(adapter, change.magnitude));
  if (change.magnitude)
    QLORA_RETURN_IF_ERROR(applied.findNorms(base));
  return applied;
}

uint64_t AppliedChange::bytes(const TensorChange &change) {
  uint64_t values = 0;
  for (const SafetensorsTensor *tensor :
       {change.a, change.b, change.b, change.tokens, change.bias,
        change.magnitude, change.magnitude})
    values += tensor ? static_cast<uint64_t>(tensor->elementCount()) : 0;
  return 4 * values + (change.magnitude ? 4 * kNormWindow : 0);
}

/// out[i] += factor * from[i].
QLORA_VECTOR static void addScaled(float factor, const float *from,
                                   int64_t count, float *out) {
  for (int64_t i = 0; i < count; ++i)
    out[i] += factor * from[i];
}

/// Adds scale * (B A) to `values`, which begin at `column` of row `row` of all
/// matrices together.
void AppliedChange::addProductOfRow(int64_t row, int64_t column,
                                    std::span<float> values) const {
  const int64_t expert = change.firstExpert + row / rows;
  const int64_t inputs = change.a->shape[1], outputs = change.b->shape[0];
  const int64_t rank = change.rank();
  std::vector<float> sums(values.size());
  for (int64_t k = 0; k < rank; ++k) {
    const float *const ofA = a.data() + (expert * rank + k) * inputs;
    const float *const ofB = bTurned.data() +
                             (k * change.experts + expert) * outputs +
                             change.firstOutput;
    if (change.isInOut)
      addScaled(ofA[row % rows], ofB + column, std::ssize(values), sums.data());
    else
      addScaled(ofB[row % rows], ofA + column, std::ssize(values), sums.data());
  }
  addScaled(static_cast<float>(change.scale), sums.data(), std::ssize(values),
            values.data());
}

void AppliedChange::addProduct(int64_t first, std::span<float> values) const {
  const int64_t end = first + std::ssize(values);
  const int64_t firstRow = first / columns;
  const int64_t rowCount = (end + columns - 1) / columns - firstRow;
  parallelRanges(rowCount, 1, [&](int64_t from, int64_t to) {
    for (int64_t row = firstRow + from; row < firstRow + to; ++row) {
      const int64_t begin = std::max(first, row * columns);
      const int64_t stop = std::min(end, (row + 1) * columns);
      const std::span<float> part =
          values.subspan(static_cast<size_t>(begin - first),
                         static_cast<size_t>(stop - begin));
      addProductOfRow(row, begin - row * columns, part);
      if (factor.empty())
        continue;
      for (int64_t i = 0; i < std::ssize(part); ++i)
        part[static_cast<size_t>(i)] *= factor[static_cast<size_t>(
            change.isInOut ? begin - row * columns + i : row)];
    }
  });
}

/// Divides the magnitudes by the norms of W + scale * B A.
Status AppliedChange::findNorms(const ReadBase &base) {
  const std::vector<float> magnitudes = std::move(factor);
  factor.clear(); // addProduct() must not use it yet
  std::vector<double> squares(magnitudes.size());
  const int64_t most = std::max<int64_t>(1, kNormWindow / columns);
  std::vector<float> window;
  for (int64_t row = 0; row < rows; row += most) {
    const int64_t count = std::min(most, rows - row);
    window.resize(static_cast<size_t>(count * columns));
    QLORA_RETURN_IF_ERROR(base(row * columns, window));
    addProduct(row * columns, window);
    for (int64_t i = 0; i < std::ssize(window); ++i) {
      const double value = window[static_cast<size_t>(i)];
      squares[static_cast<size_t>(change.isInOut ? i % columns
                                                 : row + i / columns)] +=
          value * value;
    }
  }
  factor = magnitudes;
  for (size_t i = 0; i < factor.size(); ++i)
    factor[i] /= static_cast<float>(std::sqrt(squares[i]));
  return Status::ok();
}

void AppliedChange::replaceTokens(int64_t first,
                                  std::span<float> values) const {
  const int64_t end = first + std::ssize(values);
  for (size_t i = 0; i < change.tokenIds.size(); ++i) {
    const int64_t row = change.tokenIds[i] * columns;
    for (int64_t at = std::max(first, row); at < std::min(end, row + columns);
         ++at)
      values[static_cast<size_t>(at - first)] =
          tokens[i * static_cast<size_t>(columns) +
                 static_cast<size_t>(at - row)];
  }
}

void AppliedChange::apply(int64_t first, std::span<float> values) const {
  if (change.a)
    addProduct(first, values);
  if (change.tokens)
    replaceTokens(first, values);
  if (change.bias)
    for (size_t i = 0; i < values.size(); ++i)
      values[i] += static_cast<float>(change.scale) *
                   bias[static_cast<size_t>(first) + i];
}

} // namespace qlora
