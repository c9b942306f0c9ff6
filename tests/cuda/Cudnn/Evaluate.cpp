// SPDX-License-Identifier: MIT

// Evaluates a graph op by op in float32, and rounds each result to the tensor's
// type. Stores all values of a tensor contiguously in the order of its
// dimensions. int32 values are exact up to 2^24.

#include "tests/cuda/Cudnn/Objects.h"

#include "runtime/Kernels/Rows.h"
#include "tests/cuda/Driver/Settings.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace qlora::platform {

namespace attribute = cudnn_attribute;
namespace descriptor = cudnn_descriptor;
namespace pointwise = cudnn_pointwise;

namespace {
using Index = std::array<int64_t, 4>;

/// A tensor's values.
struct Numbers {
  TensorView view;
  std::vector<float> values;

  const std::vector<int64_t> &dimensions() const { return view.dimensions; }
};

class Evaluation {
public:
  Evaluation(const Addresses &addresses, bool isOrdered)
      : addresses(addresses), isOrdered(isOrdered) {}
  void run(const Descriptor &operation);

private:
  const Numbers &read(const Descriptor *tensor);
  /// Rounds the result and stores it for later operations. Also writes it to
  /// memory if the tensor is not virtual.
  void write(Numbers result);
  void pointwise(const Descriptor &operation);
  void matmul(const Descriptor &operation);
  void reduce(const Descriptor &operation);
  void reshape(const Descriptor &operation);

  const Addresses &addresses;
  bool isOrdered;
  std::map<int64_t, Numbers> known;
};
} // namespace

/// Calls visit(position, index) for each element, in the order of positions.
/// `index` has the coordinates.
template <typename Visit>
static void forEach(const std::vector<int64_t> &d, const Visit &visit) {
  int64_t position = 0;
  Index i;
  for (i[0] = 0; i[0] < d[0]; ++i[0])
    for (i[1] = 0; i[1] < d[1]; ++i[1])
      for (i[2] = 0; i[2] < d[2]; ++i[2])
        for (i[3] = 0; i[3] < d[3]; ++i[3])
          visit(size_t(position++), i);
}

static int64_t offsetOf(const std::vector<int64_t> &strides, const Index &i) {
  return strides[0] * i[0] + strides[1] * i[1] + strides[2] * i[2] +
         strides[3] * i[3];
}

/// Returns the strides of contiguous values with these dimensions; 0 for an
/// axis of size 1.
static std::vector<int64_t> packed(const std::vector<int64_t> &d) {
  std::vector<int64_t> strides = {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1};
  for (size_t axis = 0; axis < 4; ++axis)
    if (d[axis] == 1)
      strides[axis] = 0;
  return strides;
}

static float rounded(int type, float x) {
  if (type == cudnn_data::kBFloat16) {
    uint16_t stored;
    qlora_store_bf16(&stored, 0, x);
    return qlora_load_bf16(&stored, 0);
  }
  return type == cudnn_data::kInt32 ? std::trunc(x) : x;
}

static float load(const TensorView &view, const void *base, int64_t offset) {
  switch (view.type) {
  case cudnn_data::kBFloat16:
    return qlora_load_bf16(base, offset);
  case cudnn_data::kInt32:
    return float(static_cast<const int32_t *>(base)[offset]);
  default:
    return static_cast<const float *>(base)[offset];
  }
}

const Numbers &Evaluation::read(const Descriptor *tensor) {
  const TensorView view(*tensor);
  if (const auto found = known.find(view.id); found != known.end())
    return found->second;
  Numbers numbers = {view, std::vector<float>(size_t(view.elements()))};
  const void *base = addresses.at(view.id);
  forEach(view.dimensions, [&](size_t position, const Index &i) {
    numbers.values[position] = load(view, base, offsetOf(view.strides, i));
  });
  return known.emplace(view.id, std::move(numbers)).first->second;
}

void Evaluation::write(Numbers result) {
  const TensorView &view = result.view;
  for (float &value : result.values)
    value = rounded(view.type, value);
  if (!view.isVirtual) {
    void *base = addresses.at(view.id);
    forEach(view.dimensions, [&](size_t position, const Index &i) {
      const int64_t offset = offsetOf(view.strides, i);
      if (view.type == cudnn_data::kBFloat16)
        qlora_store_bf16(base, offset, result.values[position]);
      else
        static_cast<float *>(base)[offset] = result.values[position];
    });
  }
  known.insert_or_assign(view.id, std::move(result));
}

static float apply(int mode, float x, float b, float predicate) {
  switch (mode) {
  case pointwise::kAdd:
    return x + b;
  case pointwise::kMultiply:
    return x * b;
  case pointwise::kDivide:
    return x / b;
  case pointwise::kSubtract:
    return x - b;
  case pointwise::kExponential:
    return std::exp(x);
  case pointwise::kLogarithm:
    return std::log(x);
  case pointwise::kEqual:
    return x == b;
  case pointwise::kGreater:
    return x > b;
  case pointwise::kGreaterOrEqual:
    return x >= b;
  case pointwise::kSelect:
    return predicate != 0 ? x : b;
  default:
    return x;
  }
}

void Evaluation::pointwise(const Descriptor &operation) {
  const Descriptor &what = *operation.named(attribute::kPointwiseDescriptor);
  const int mode = what.get<int>(attribute::kPointwiseMode);
  const OperationView view(operation);
  Numbers y = {TensorView(*view.output), {}};
  y.values.resize(size_t(y.view.elements()));
  if (mode == pointwise::kIndex) {
    const auto axis = size_t(what.get<int64_t>(attribute::kPointwiseAxis));
    forEach(y.dimensions(), [&](size_t position, const Index &i) {
      y.values[position] = float(i[axis]);
    });
    return write(std::move(y));
  }
  // For an absent input, x[k] points to the first input, and is not used.
  std::array<const Numbers *, 3> x;
  std::array<std::vector<int64_t>, 3> strides;
  for (size_t k = 0; k < 3; ++k) {
    x[k] = &read(view.inputs[k < view.inputs.size() ? k : 0]);
    strides[k] = packed(x[k]->dimensions());
  }
  forEach(y.dimensions(), [&](size_t position, const Index &i) {
    const auto at = [&](size_t k) {
      return x[k]->values[size_t(offsetOf(strides[k], i))];
    };
    y.values[position] = apply(mode, at(0), at(1), at(2));
  });
  write(std::move(y));
}

/// Computes c := a . b for one head. The sum over the depth starts at index
/// `first` and wraps around.
static void multiply(const float *a, const float *b, float *c, int64_t m,
                     int64_t n, int64_t depth, int64_t first) {
  std::fill_n(c, m * n, 0.0f);
  for (int64_t row = 0; row < m; ++row)
    for (int64_t step = 0; step < depth; ++step) {
      const int64_t k = (first + step) % depth;
      const float factor = a[row * depth + k];
      for (int64_t column = 0; column < n; ++column)
        c[row * n + column] += factor * b[k * n + column];
    }
}

void Evaluation::matmul(const Descriptor &operation) {
  Numbers a = read(operation.named(attribute::kMatmulA));
  const Numbers &b = read(operation.named(attribute::kMatmulB));
  Numbers c = {TensorView(*operation.named(attribute::kMatmulC)), {}};
  c.values.resize(size_t(c.view.elements()));
  // Tensor cores need operands of one type, so round a to b's type.
  for (float &value : a.values)
    value = rounded(b.view.type, value);
  const int64_t batch = a.dimensions()[0], heads = a.dimensions()[1];
  const int64_t m = a.dimensions()[2], depth = a.dimensions()[3];
  const int64_t n = b.dimensions()[3], headsOfB = b.dimensions()[1];
  // Thread blocks add to a float sum in memory in any order.
  const bool isAnyOrder = !isOrdered && !c.view.isVirtual &&
                          c.view.type == cudnn_data::kFloat;
  for (int64_t i = 0; i < batch * heads; ++i) {
    const int64_t ofB = i / heads * headsOfB + i % heads / (heads / headsOfB);
    multiply(a.values.data() + i * m * depth, b.values.data() + ofB * depth * n,
             c.values.data() + i * m * n, m, n, depth,
             isAnyOrder ? int64_t(nextRandom() % uint64_t(depth)) : 0);
  }
  write(std::move(c));
}

void Evaluation::reduce(const Descriptor &operation) {
  const bool isSum = operation.named(attribute::kReductionDescriptor)
                         ->get<int>(attribute::kReductionOperator) ==
                     cudnn_reduce::kSum;
  const Numbers &x = read(operation.named(attribute::kReductionX));
  Numbers y = {TensorView(*operation.named(attribute::kReductionY)), {}};
  y.values.assign(size_t(y.view.elements()), isSum ? 0 : -INFINITY);
  const std::vector<int64_t> strides = packed(y.dimensions());
  Index group;
  for (size_t axis = 0; axis < 4; ++axis)
    group[axis] = x.dimensions()[axis] / y.dimensions()[axis];
  forEach(x.dimensions(), [&](size_t position, const Index &i) {
    const Index to = {i[0] / group[0], i[1] / group[1], i[2] / group[2],
                      i[3] / group[3]};
    float &sum = y.values[size_t(offsetOf(strides, to))];
    const float value = x.values[position];
    sum = isSum ? sum + value : std::max(sum, value);
  });
  write(std::move(y));
}

/// Copies the values to a tensor with other dimensions and strides.
void Evaluation::reshape(const Descriptor &operation) {
  const Numbers &x = read(operation.named(attribute::kReshapeX));
  Numbers y = {TensorView(*operation.named(attribute::kReshapeY)), {}};
  y.values.resize(size_t(y.view.elements()));
  std::array<size_t, 4> axes = {0, 1, 2, 3};
  const std::vector<int64_t> &strides = x.view.strides;
  std::stable_sort(axes.begin(), axes.end(), [&](size_t left, size_t right) {
    return strides[left] > strides[right];
  });
  const std::vector<int64_t> order = packed(x.dimensions());
  forEach(y.dimensions(), [&](size_t position, const Index &i) {
    int64_t offset = offsetOf(y.view.strides, i), from = 0;
    for (const size_t axis : axes) {
      if (x.dimensions()[axis] == 1)
        continue;
      from += offset / strides[axis] * order[axis];
      offset %= strides[axis];
    }
    y.values[position] = x.values[size_t(from)];
  });
  write(std::move(y));
}

void Evaluation::run(const Descriptor &operation) {
  switch (operation.kind) {
  case descriptor::kPointwiseOperation:
    return pointwise(operation);
  case descriptor::kMatmulOperation:
    return matmul(operation);
  case descriptor::kReductionOperation:
    return reduce(operation);
  case descriptor::kReshapeOperation:
    return reshape(operation);
  }
}

void evaluate(const Descriptor &graph, const Addresses &addresses,
              bool isOrdered) {
  Evaluation evaluation(addresses, isOrdered);
  for (const auto &operation :
       graph.attributes.at(attribute::kGraphOperations).descriptors)
    evaluation.run(*operation);
}

} // namespace qlora::platform
