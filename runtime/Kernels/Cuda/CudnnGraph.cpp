// SPDX-License-Identifier: MIT

// Creates cuDNN backend descriptors for operations, and selects a plan.

#include "runtime/Kernels/Cuda/CudnnGraph.h"

#include <algorithm>

namespace qlora {

namespace attribute = cudnn_attribute;
namespace descriptor = cudnn_descriptor;
namespace type = cudnn_type;

// Descriptors -----------------------------------------------------------------

CudnnObject::CudnnObject(const Cudnn &api, int kind, const char *name)
    : api(&api), name(name) {
  cudnnBackendDescriptor_t made = nullptr;
  status = api.check(api.createDescriptor(kind, &made), name);
  descriptor = {made, {&api}};
}

CudnnObject &CudnnObject::setRaw(int attribute, int type, int64_t count,
                                 const void *values) {
  if (status.isOk())
    status = api->check(
        api->setAttribute(get(), attribute, type, count, values), name);
  return *this;
}

Status CudnnObject::finish() {
  if (status.isOk())
    status = api->check(api->finalize(get()), name);
  return status;
}

// Tensors and operations ------------------------------------------------------

cudnnBackendDescriptor_t CudnnGraph::keep(CudnnObject object) {
  if (status.isOk())
    status = object.finish();
  objects.push_back(std::move(object));
  return objects.back().get();
}

CudnnGraph::Tensor CudnnGraph::tensor(int64_t id, int dataType,
                                      const Shape &shape, bool isVirtual,
                                      bool isValue) {
  CudnnObject tensor(target.api, descriptor::kTensor, "a tensor of cuDNN");
  tensor.set(attribute::kTensorUniqueId, type::kInt64, id)
      .set(attribute::kTensorDataType, type::kDataType, dataType)
      .set(attribute::kTensorDimensions, type::kInt64,
           std::span<const int64_t>(shape.dimensions))
      .set(attribute::kTensorStrides, type::kInt64,
           std::span<const int64_t>(shape.strides))
      .set(attribute::kTensorAlignment, type::kInt64, int64_t{16})
      .set(attribute::kTensorIsVirtual, type::kBoolean, isVirtual)
      .set(attribute::kTensorIsByValue, type::kBoolean, isValue);
  return keep(std::move(tensor));
}

CudnnGraph::Tensor CudnnGraph::operand(int64_t id, int dataType,
                                       const Shape &shape) {
  return tensor(id, dataType, shape, false, false);
}

CudnnGraph::Tensor CudnnGraph::value(int64_t id) {
  static constexpr Shape kOne = {{1, 1, 1, 1}, {1, 1, 1, 1}};
  return tensor(id, cudnn_data::kFloat, kOne, false, true);
}

CudnnGraph::Tensor CudnnGraph::intermediate(int dataType, const Shape &shape) {
  return tensor(nextVirtual++, dataType, shape, true, false);
}

void CudnnGraph::addOperation(
    int kind, const char *name,
    std::initializer_list<std::pair<int, cudnnBackendDescriptor_t>> parts) {
  CudnnObject operation(target.api, kind, name);
  for (const auto &[attribute, part] : parts)
    if (part)
      operation.set(attribute, part);
  operations.push_back(keep(std::move(operation)));
}

void CudnnGraph::pointwise(int mode, std::initializer_list<Tensor> x, Tensor y,
                           int mathType, std::optional<int64_t> axis) {
  CudnnObject what(target.api, descriptor::kPointwise, "a pointwise mode");
  what.set(attribute::kPointwiseMode, type::kPointwiseMode, mode)
      .set(attribute::kPointwiseMathType, type::kDataType, mathType);
  if (axis)
    what.set(attribute::kPointwiseAxis, type::kInt64, *axis);
  addOperation(descriptor::kPointwiseOperation, "a pointwise operation",
               {{attribute::kPointwiseDescriptor, keep(std::move(what))},
                {attribute::kPointwiseX, x.begin()[0]},
                {attribute::kPointwiseY, y},
                {attribute::kPointwiseB, x.size() > 1 ? x.begin()[1] : nullptr},
                {attribute::kPointwiseT,
                 x.size() > 2 ? x.begin()[2] : nullptr}});
}

void CudnnGraph::matmul(Tensor a, Tensor b, Tensor c) {
  CudnnObject what(target.api, descriptor::kMatmul, "a matmul");
  what.set(attribute::kMatmulMathType, type::kDataType, cudnn_data::kFloat);
  addOperation(descriptor::kMatmulOperation, "a matmul",
               {{attribute::kMatmulDescriptor, keep(std::move(what))},
                {attribute::kMatmulA, a},
                {attribute::kMatmulB, b},
                {attribute::kMatmulC, c}});
}

void CudnnGraph::reduce(int reduction, Tensor x, Tensor y) {
  CudnnObject what(target.api, descriptor::kReduction, "a reduction");
  what.set(attribute::kReductionOperator, type::kReductionOperator, reduction)
      .set(attribute::kReductionMathType, type::kDataType, cudnn_data::kFloat);
  addOperation(descriptor::kReductionOperation, "a reduction",
               {{attribute::kReductionDescriptor, keep(std::move(what))},
                {attribute::kReductionX, x},
                {attribute::kReductionY, y}});
}

void CudnnGraph::reshape(Tensor x, Tensor y) {
  addOperation(descriptor::kReshapeOperation, "a reshape",
               {{attribute::kReshapeX, x}, {attribute::kReshapeY, y}});
}

// Plans -----------------------------------------------------------------------

void CudnnGraph::setDevice(CudnnObject &object, int which) const {
  if (target.device)
    object.set(which, target.device);
}

Status CudnnGraph::finishOperations() {
  QLORA_RETURN_IF_ERROR(status);
  if (graph)
    return Status::ok();
  graph.emplace(target.api, descriptor::kOperationGraph, "an operation graph");
  graph->set(attribute::kGraphOperations, type::kDescriptor,
             std::span<const cudnnBackendDescriptor_t>(operations));
  if (target.handle)
    graph->set(attribute::kGraphHandle, type::kHandle, target.handle);
  return status = graph->finish();
}

StatusOr<std::vector<CudnnObject>> CudnnGraph::configurations(int mode) const {
  const Cudnn &api = target.api;
  CudnnObject heuristics(api, descriptor::kEngineHeuristics,
                         "cuDNN's heuristics");
  heuristics.set(attribute::kHeuristicsGraph, graph->get())
      .set(attribute::kHeuristicsMode, type::kHeuristicsMode, mode);
  setDevice(heuristics, attribute::kHeuristicsDevice);
  QLORA_RETURN_IF_ERROR(heuristics.finish());
  int64_t count = 0;
  QLORA_RETURN_IF_ERROR(api.check(
      api.getAttribute(heuristics.get(), attribute::kHeuristicsResults,
                       type::kDescriptor, 0, &count, nullptr),
      "cuDNN's heuristics"));
  std::vector<CudnnObject> found;
  std::vector<cudnnBackendDescriptor_t> handles;
  for (int64_t i = 0; i < count; ++i) {
    found.emplace_back(api, descriptor::kEngineConfig, "an engine of cuDNN");
    handles.push_back(found.back().get());
  }
  if (count != 0)
    QLORA_RETURN_IF_ERROR(api.check(
        api.getAttribute(heuristics.get(), attribute::kHeuristicsResults,
                         type::kDescriptor, count, &count, handles.data()),
        "cuDNN's heuristics"));
  found.erase(found.begin() + std::min<int64_t>(count, int64_t(found.size())),
              found.end());
  return found;
}

StatusOr<CudnnObject>
CudnnGraph::configurationOf(const CudnnEngine &engine) const {
  const Cudnn &api = target.api;
  CudnnObject chosen(api, descriptor::kEngine, "an engine of cuDNN");
  chosen.set(attribute::kEngineGraph, graph->get())
      .set(attribute::kEngineIndex, type::kInt64, engine.index);
  setDevice(chosen, attribute::kEngineDevice);
  QLORA_RETURN_IF_ERROR(chosen.finish());
  std::vector<CudnnObject> choices;
  std::vector<cudnnBackendDescriptor_t> handles;
  for (const auto &[knob, value] : engine.knobs) {
    choices.emplace_back(api, descriptor::kKnobChoice, "a knob of cuDNN");
    choices.back()
        .set(attribute::kKnobType, type::kKnobType, knob)
        .set(attribute::kKnobValue, type::kInt64, value);
    QLORA_RETURN_IF_ERROR(choices.back().finish());
    handles.push_back(choices.back().get());
  }
  CudnnObject configuration(api, descriptor::kEngineConfig,
                            "an engine of cuDNN");
  configuration.set(attribute::kConfigEngine, chosen.get())
      .set(attribute::kConfigKnobs, type::kDescriptor,
           std::span<const cudnnBackendDescriptor_t>(handles));
  QLORA_RETURN_IF_ERROR(configuration.finish());
  return configuration;
}

StatusOr<CudnnPlan> CudnnGraph::build(const CudnnObject &configuration,
                                      uint64_t limitBytes) const {
  const Cudnn &api = target.api;
  CudnnObject plan(api, descriptor::kExecutionPlan, "a plan of cuDNN");
  plan.set(attribute::kPlanConfig, configuration.get());
  if (target.handle)
    plan.set(attribute::kPlanHandle, type::kHandle, target.handle);
  setDevice(plan, attribute::kPlanDevice);
  QLORA_RETURN_IF_ERROR(plan.finish());
  int64_t bytes = 0, count = 0;
  QLORA_RETURN_IF_ERROR(
      api.check(api.getAttribute(plan.get(), attribute::kPlanWorkspaceBytes,
                                 type::kInt64, 1, &count, &bytes),
                "a plan of cuDNN"));
  if (bytes < 0 || static_cast<uint64_t>(bytes) > limitBytes)
    return Status::unavailable(
        "cuDNN's plan needs a workspace of {} bytes, the "
        "program has {} for it",
        bytes, limitBytes);
  return CudnnPlan(api, std::move(plan), static_cast<uint64_t>(bytes));
}

StatusOr<CudnnPlan> CudnnGraph::plan(const std::optional<CudnnEngine> &engine,
                                     uint64_t limitBytes) {
  QLORA_RETURN_IF_ERROR(finishOperations());
  if (engine) {
    QLORA_ASSIGN_OR_RETURN(CudnnObject configuration, configurationOf(*engine));
    return build(configuration, limitBytes);
  }
  Status last = Status::unavailable("cuDNN offers no engine for this graph");
  for (int mode :
       {cudnn_engine::kHeuristicsA, cudnn_engine::kHeuristicsFallback}) {
    auto offered = configurations(mode);
    if (!offered.isOk()) {
      last = offered.status();
      continue;
    }
    for (const CudnnObject &configuration : *offered) {
      auto built = build(configuration, limitBytes);
      if (built.isOk() || built.status().code() != StatusCode::kUnavailable)
        return built;
      last = built.status();
    }
  }
  return last;
}

Status CudnnPlan::execute(cudnnHandle_t handle,
                          std::span<const CudnnBinding> bindings,
                          void *workspace) const {
  std::vector<int64_t> ids;
  std::vector<void *> addresses;
  for (const CudnnBinding &binding : bindings) {
    ids.push_back(binding.id);
    addresses.push_back(binding.address);
  }
  CudnnObject pack(*api, descriptor::kVariantPack, "operands of cuDNN");
  pack.set(attribute::kPackUniqueIds, type::kInt64,
           std::span<const int64_t>(ids))
      .set(attribute::kPackPointers, type::kVoidPointer,
           std::span<void *const>(addresses))
      .set(attribute::kPackWorkspace, type::kVoidPointer, workspace);
  Status status = pack.finish();
  if (status.isOk())
    status = api->check(api->execute(handle, object.get(), pack.get()),
                        "cudnnBackendExecute");
  // A prepared kernel has no alternative, so every failure is kInternal.
  if (!status.isOk())
    return Status::error(StatusCode::kInternal, "{}", status.message());
  return status;
}

} // namespace qlora
