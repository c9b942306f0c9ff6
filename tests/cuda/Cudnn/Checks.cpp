// SPDX-License-Identifier: MIT

// Checks descriptors when they are finalised: types, ranks, matching shapes. In
// a graph, each tensor must have one writer, which precedes its readers.

#include "tests/cuda/Cudnn/Objects.h"

#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <set>

namespace qlora::platform {

namespace attribute = cudnn_attribute;
namespace descriptor = cudnn_descriptor;
namespace pointwise = cudnn_pointwise;
using Dimensions = std::vector<int64_t>;

// Views -----------------------------------------------------------------------

DescriptorPointer Descriptor::namedPointer(int attribute) const {
  const auto found = attributes.find(attribute);
  return found == attributes.end() || found->second.descriptors.empty()
             ? nullptr
             : found->second.descriptors.front();
}

const Descriptor *Descriptor::named(int attribute) const {
  return namedPointer(attribute).get();
}

TensorView::TensorView(const Descriptor &tensor)
    : id(tensor.get<int64_t>(attribute::kTensorUniqueId)),
      alignment(tensor.get<int64_t>(attribute::kTensorAlignment)),
      type(tensor.get<int>(attribute::kTensorDataType)),
      isVirtual(tensor.get<uint8_t>(attribute::kTensorIsVirtual) != 0),
      isByValue(tensor.get<uint8_t>(attribute::kTensorIsByValue) != 0),
      dimensions(tensor.list<int64_t>(attribute::kTensorDimensions)),
      strides(tensor.list<int64_t>(attribute::kTensorStrides)) {}

int64_t TensorView::elements() const {
  int64_t count = 1;
  for (const int64_t dimension : dimensions)
    count *= dimension;
  return count;
}

uint64_t TensorView::bytes() const {
  int64_t last = 0;
  for (size_t i = 0; i < dimensions.size(); ++i)
    last += (dimensions[i] - 1) * strides[i];
  return uint64_t(last + 1) * bytesOfType(type);
}

size_t bytesOfType(int type) {
  switch (type) {
  case cudnn_data::kFloat:
  case cudnn_data::kInt32:
    return 4;
  case cudnn_data::kBFloat16:
    return 2;
  case cudnn_data::kBoolean:
    return 1;
  default:
    return 0;
  }
}

OperationView::OperationView(const Descriptor &operation) {
  struct Names {
    int output;
    std::vector<int> inputs;
  };
  const auto names = [&]() -> Names {
    switch (operation.kind) {
    case descriptor::kPointwiseOperation:
      return {attribute::kPointwiseY,
              {attribute::kPointwiseX, attribute::kPointwiseB,
               attribute::kPointwiseT}};
    case descriptor::kMatmulOperation:
      return {attribute::kMatmulC,
              {attribute::kMatmulA, attribute::kMatmulB}};
    case descriptor::kReductionOperation:
      return {attribute::kReductionY, {attribute::kReductionX}};
    default:
      return {attribute::kReshapeY, {attribute::kReshapeX}};
    }
  }();
  output = operation.named(names.output);
  for (const int name : names.inputs)
    if (const Descriptor *input = operation.named(name))
      inputs.push_back(input);
}

// Tensors and operations ------------------------------------------------------

static Refusal checkTensor(const Descriptor &tensor) {
  const TensorView view(tensor);
  if (bytesOfType(view.type) == 0)
    return {kDnnNotSupported, fmt::format("data type {}", view.type)};
  if (view.dimensions.size() != 4 || view.strides.size() != 4)
    return {kDnnBadParam, "dimensions and strides are not four each"};
  for (size_t i = 0; i < 4; ++i)
    if (view.dimensions[i] < 1 || view.strides[i] < 1)
      return {kDnnBadParam, fmt::format("dimensions {} with strides {}",
                                        view.dimensions, view.strides)};
  if (view.alignment < 1 || !std::has_single_bit(uint64_t(view.alignment)) ||
      size_t(view.alignment) < bytesOfType(view.type))
    return {kDnnBadParam, fmt::format("alignment {}", view.alignment)};
  if (view.isByValue && (view.isVirtual || view.elements() != 1))
    return {kDnnBadParam, "a value is one element, and not virtual"};
  return {};
}

static Refusal mismatch(const char *what, const TensorView &x,
                        const TensorView &y) {
  return {kDnnShapeMismatch, fmt::format("{}: {} and {}", what, x.dimensions,
                                         y.dimensions)};
}

/// Returns the number of inputs of a pointwise mode; 0 if it is unknown.
static size_t inputsOf(int mode) {
  switch (mode) {
  case pointwise::kExponential:
  case pointwise::kLogarithm:
  case pointwise::kIdentity:
  case pointwise::kIndex:
    return 1;
  case pointwise::kAdd:
  case pointwise::kMultiply:
  case pointwise::kDivide:
  case pointwise::kSubtract:
  case pointwise::kEqual:
  case pointwise::kGreater:
  case pointwise::kGreaterOrEqual:
    return 2;
  case pointwise::kSelect:
    return 3;
  }
  return 0;
}

static Refusal checkPointwise(const Descriptor &operation) {
  const Descriptor &what = *operation.named(attribute::kPointwiseDescriptor);
  const int mode = what.get<int>(attribute::kPointwiseMode);
  const OperationView view(operation);
  if (what.kind != descriptor::kPointwise ||
      view.inputs.size() != inputsOf(mode))
    return {kDnnBadParam, fmt::format("{} inputs of mode {}",
                                      view.inputs.size(), mode)};
  const TensorView y(*view.output);
  const bool isComparison = mode == pointwise::kEqual ||
                            mode == pointwise::kGreater ||
                            mode == pointwise::kGreaterOrEqual;
  if (isComparison != (y.type == cudnn_data::kBoolean) ||
      (mode == pointwise::kIndex && y.type != cudnn_data::kInt32))
    return {kDnnNotSupported,
            fmt::format("mode {} into type {}", mode, y.type)};
  for (size_t i = 0; i < view.inputs.size(); ++i) {
    const TensorView x(*view.inputs[i]);
    if ((x.type == cudnn_data::kBoolean) != (i == 2))
      return {kDnnNotSupported, fmt::format("input {} of mode {} has type {}",
                                            i, mode, x.type)};
    for (size_t axis = 0; axis < 4; ++axis)
      if (x.dimensions[axis] != y.dimensions[axis] && x.dimensions[axis] != 1)
        return mismatch("a pointwise operation", x, y);
  }
  return {};
}

static Refusal checkMatmul(const Descriptor &operation) {
  const TensorView a(*operation.named(attribute::kMatmulA));
  const TensorView b(*operation.named(attribute::kMatmulB));
  const TensorView c(*operation.named(attribute::kMatmulC));
  if (a.type != b.type || a.type != cudnn_data::kBFloat16)
    if (a.type != cudnn_data::kFloat || b.type != cudnn_data::kBFloat16)
      return {kDnnNotSupported, fmt::format("a product of types {} and {}",
                                            a.type, b.type)};
  // Each head of B is used by a group of A's heads.
  if (a.dimensions[0] != b.dimensions[0] ||
      a.dimensions[1] % b.dimensions[1] != 0 ||
      a.dimensions[3] != b.dimensions[2])
    return mismatch("a product", a, b);
  if (c.dimensions != Dimensions{a.dimensions[0], a.dimensions[1],
                                 a.dimensions[2], b.dimensions[3]})
    return mismatch("a product's result", a, c);
  return {};
}

static Refusal checkReduction(const Descriptor &operation) {
  const Descriptor &what = *operation.named(attribute::kReductionDescriptor);
  const int how = what.get<int>(attribute::kReductionOperator);
  if (how != cudnn_reduce::kSum && how != cudnn_reduce::kMaximum)
    return {kDnnNotSupported, fmt::format("reduction {}", how)};
  const TensorView x(*operation.named(attribute::kReductionX));
  const TensorView y(*operation.named(attribute::kReductionY));
  for (size_t axis = 0; axis < 4; ++axis)
    if (x.dimensions[axis] % y.dimensions[axis] != 0)
      return mismatch("a reduction", x, y);
  return {};
}

static Refusal checkReshape(const Descriptor &operation) {
  const TensorView x(*operation.named(attribute::kReshapeX));
  const TensorView y(*operation.named(attribute::kReshapeY));
  return x.elements() == y.elements() && y.isVirtual
             ? Refusal()
             : mismatch("a reshape", x, y);
}

// Graphs and derived descriptors ---------------------------------------------

static bool isOperation(int kind) {
  return kind == descriptor::kPointwiseOperation ||
         kind == descriptor::kMatmulOperation ||
         kind == descriptor::kReductionOperation ||
         kind == descriptor::kReshapeOperation;
}

static Refusal checkGraph(const Descriptor &graph) {
  std::map<int64_t, const Descriptor *> tensors;
  std::set<int64_t> written;
  for (const auto &operation :
       graph.attributes.at(attribute::kGraphOperations).descriptors) {
    if (!isOperation(operation->kind))
      return {kDnnBadParam, fmt::format("kind {} is no operation",
                                        operation->kind)};
    const OperationView view(*operation);
    for (const Descriptor *input : view.inputs) {
      const TensorView x(*input);
      if (x.isVirtual && !written.count(x.id))
        return {kDnnBadParam, fmt::format("tensor {} is read before it is "
                                          "written",
                                          x.id)};
      if (tensors.emplace(x.id, input).first->second != input)
        return {kDnnBadParam, fmt::format("two tensors {}", x.id)};
    }
    const TensorView y(*view.output);
    if (y.isByValue || !written.insert(y.id).second ||
        !tensors.emplace(y.id, view.output).second)
      return {kDnnBadParam, fmt::format("tensor {} is written too late, twice, "
                                        "or a value",
                                        y.id)};
  }
  return {};
}

static int archOf(const cudnnContext *handle) {
  return settings().gpus[size_t(handle->device)].arch;
}

/// Returns the cuDNN handle with which the graph was created.
static const cudnnContext *handleOf(const Descriptor &graph) {
  return graph.get<const cudnnContext *>(attribute::kGraphHandle);
}

static Refusal checkPlan(Descriptor &plan) {
  const Descriptor *config = plan.named(attribute::kPlanConfig);
  if (config->kind != descriptor::kEngineConfig)
    return {kDnnBadParam, "a plan of no configuration"};
  const Descriptor *engine = config->named(attribute::kConfigEngine);
  if (handleOf(*engine->named(attribute::kEngineGraph)) !=
      plan.get<const cudnnContext *>(attribute::kPlanHandle))
    return {kDnnBadParam, "a plan for another handle than its graph's"};
  plan.workspaceBytes = workspaceOf(*config);
  return {};
}

static Refusal checkPack(const Descriptor &pack) {
  const auto ids = pack.list<int64_t>(attribute::kPackUniqueIds);
  if (ids.size() != pack.list<void *>(attribute::kPackPointers).size() ||
      std::set(ids.begin(), ids.end()).size() != ids.size())
    return {kDnnBadParam, "not one pointer for each id, or an id twice"};
  return {};
}

Refusal checkFinished(Descriptor &d) {
  switch (d.kind) {
  case descriptor::kTensor:
    return checkTensor(d);
  case descriptor::kPointwise: {
    const int mode = d.get<int>(attribute::kPointwiseMode);
    if (inputsOf(mode) == 0 ||
        (mode == pointwise::kIndex) != d.has(attribute::kPointwiseAxis))
      return {kDnnNotSupported, fmt::format("pointwise mode {}", mode)};
    return {};
  }
  case descriptor::kPointwiseOperation:
    return checkPointwise(d);
  case descriptor::kMatmulOperation:
    return checkMatmul(d);
  case descriptor::kReductionOperation:
    return checkReduction(d);
  case descriptor::kReshapeOperation:
    return checkReshape(d);
  case descriptor::kOperationGraph:
    return checkGraph(d);
  case descriptor::kEngineHeuristics: {
    const auto graph = d.namedPointer(attribute::kHeuristicsGraph);
    if (d.get<int>(attribute::kHeuristicsMode) == cudnn_engine::kHeuristicsA)
      d.results = offeredConfigs(graph, archOf(handleOf(*graph)));
    return {};
  }
  case descriptor::kEngine:
    return checkEngine(d,
                       archOf(handleOf(*d.named(attribute::kEngineGraph))));
  case descriptor::kExecutionPlan:
    return checkPlan(d);
  case descriptor::kVariantPack:
    return checkPack(d);
  default:
    return {};
  }
}

} // namespace qlora::platform
