// SPDX-License-Identifier: MIT

// Handles, and the lifetime of descriptors: creation, attributes, finalisation.

#include "tests/cuda/Cudnn/Objects.h"

#include "tests/cuda/Driver/Hook.h"
#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

namespace qlora {

using namespace platform;
namespace attribute = cudnn_attribute;
namespace descriptor = cudnn_descriptor;
namespace type = cudnn_type;

static thread_local std::string lastError;

int platform::refuse(const char *symbol, const Refusal &refusal) {
  if (!refusal)
    return kDnnSuccess;
  lastError = refusal.why;
  explain(fmt::format("{}: {}", symbol, refusal.why));
  return refusal.status;
}

extern "C" size_t cudnnGetVersion() { return size_t(settings().dnnVersion); }

extern "C" void cudnnGetLastErrorString(char *text, size_t size) {
  const size_t length = std::min(size - 1, lastError.size());
  std::copy_n(lastError.data(), length, text);
  text[length] = 0;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
  if (const int code = countAndInject("cudnnCreate"))
    return code;
  const int device = currentDevice();
  if (device < 0)
    return refuse("cudnnCreate",
                  {kDnnNotInitialized, "no context is current"});
  *handle = new cudnnContext{device, nullptr};
  return kDnnSuccess;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  if (const int code = countAndInject("cudnnDestroy"))
    return code;
  delete handle;
  return kDnnSuccess;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, CUstream stream) {
  if (const int code = countAndInject("cudnnSetStream"))
    return code;
  if (!handle)
    return refuse("cudnnSetStream", {kDnnNotInitialized, "no handle"});
  handle->stream = stream;
  return kDnnSuccess;
}

// Attributes ------------------------------------------------------------------

namespace {
/// An attribute of a kind of descriptor: the type of its values, whether it is
/// a single value, and whether it is required.
struct Known {
  int kind, attribute, type;
  bool isSingle = true, isNeeded = true;
};
} // namespace

static constexpr Known kKnown[] = {
    {descriptor::kTensor, attribute::kTensorUniqueId, type::kInt64},
    {descriptor::kTensor, attribute::kTensorDataType, type::kDataType},
    {descriptor::kTensor, attribute::kTensorDimensions, type::kInt64, false},
    {descriptor::kTensor, attribute::kTensorStrides, type::kInt64, false},
    {descriptor::kTensor, attribute::kTensorAlignment, type::kInt64},
    {descriptor::kTensor, attribute::kTensorIsVirtual, type::kBoolean, true,
     false},
    {descriptor::kTensor, attribute::kTensorIsByValue, type::kBoolean, true,
     false},
    {descriptor::kPointwise, attribute::kPointwiseMode, type::kPointwiseMode},
    {descriptor::kPointwise, attribute::kPointwiseMathType, type::kDataType},
    {descriptor::kPointwise, attribute::kPointwiseAxis, type::kInt64, true,
     false},
    {descriptor::kPointwiseOperation, attribute::kPointwiseDescriptor,
     type::kDescriptor},
    {descriptor::kPointwiseOperation, attribute::kPointwiseX,
     type::kDescriptor},
    {descriptor::kPointwiseOperation, attribute::kPointwiseB,
     type::kDescriptor, true, false},
    {descriptor::kPointwiseOperation, attribute::kPointwiseT,
     type::kDescriptor, true, false},
    {descriptor::kPointwiseOperation, attribute::kPointwiseY,
     type::kDescriptor},
    {descriptor::kMatmul, attribute::kMatmulMathType, type::kDataType},
    {descriptor::kMatmulOperation, attribute::kMatmulDescriptor,
     type::kDescriptor},
    {descriptor::kMatmulOperation, attribute::kMatmulA, type::kDescriptor},
    {descriptor::kMatmulOperation, attribute::kMatmulB, type::kDescriptor},
    {descriptor::kMatmulOperation, attribute::kMatmulC, type::kDescriptor},
    {descriptor::kReduction, attribute::kReductionOperator,
     type::kReductionOperator},
    {descriptor::kReduction, attribute::kReductionMathType, type::kDataType},
    {descriptor::kReductionOperation, attribute::kReductionDescriptor,
     type::kDescriptor},
    {descriptor::kReductionOperation, attribute::kReductionX,
     type::kDescriptor},
    {descriptor::kReductionOperation, attribute::kReductionY,
     type::kDescriptor},
    {descriptor::kReshapeOperation, attribute::kReshapeX, type::kDescriptor},
    {descriptor::kReshapeOperation, attribute::kReshapeY, type::kDescriptor},
    {descriptor::kOperationGraph, attribute::kGraphOperations,
     type::kDescriptor, false},
    {descriptor::kOperationGraph, attribute::kGraphHandle, type::kHandle},
    {descriptor::kEngineHeuristics, attribute::kHeuristicsGraph,
     type::kDescriptor},
    {descriptor::kEngineHeuristics, attribute::kHeuristicsMode,
     type::kHeuristicsMode},
    {descriptor::kEngine, attribute::kEngineGraph, type::kDescriptor},
    {descriptor::kEngine, attribute::kEngineIndex, type::kInt64},
    {descriptor::kKnobChoice, attribute::kKnobType, type::kKnobType},
    {descriptor::kKnobChoice, attribute::kKnobValue, type::kInt64},
    {descriptor::kEngineConfig, attribute::kConfigEngine, type::kDescriptor},
    {descriptor::kEngineConfig, attribute::kConfigKnobs, type::kDescriptor,
     false, false},
    {descriptor::kExecutionPlan, attribute::kPlanConfig, type::kDescriptor},
    {descriptor::kExecutionPlan, attribute::kPlanHandle, type::kHandle},
    {descriptor::kVariantPack, attribute::kPackUniqueIds, type::kInt64, false},
    {descriptor::kVariantPack, attribute::kPackPointers, type::kVoidPointer,
     false},
    {descriptor::kVariantPack, attribute::kPackWorkspace, type::kVoidPointer}};

static size_t bytesOfValue(int valueType) {
  switch (valueType) {
  case type::kBoolean:
    return sizeof(bool);
  case type::kDataType:
  case type::kHeuristicsMode:
  case type::kKnobType:
  case type::kPointwiseMode:
  case type::kReductionOperator:
    return sizeof(int);
  default:
    return 8;
  }
}

// Life ------------------------------------------------------------------------

static std::mutex &mutex() {
  static std::mutex mutex;
  return mutex;
}
static std::map<void *, DescriptorPointer> &live() {
  static auto *live = new std::map<void *, DescriptorPointer>;
  return *live;
}

/// Returns the live descriptor of a handle, or nullptr if there is none.
static DescriptorPointer find(cudnnBackendDescriptor_t handle) {
  const std::lock_guard lock(mutex());
  const auto found = live().find(handle);
  return found == live().end() ? nullptr : found->second;
}

cudnnStatus_t cudnnBackendCreateDescriptor(int kind,
                                           cudnnBackendDescriptor_t *made) {
  constexpr const char *kSymbol = "cudnnBackendCreateDescriptor";
  if (const int code = countAndInject(kSymbol))
    return code;
  if (std::none_of(std::begin(kKnown), std::end(kKnown),
                   [&](const Known &known) { return known.kind == kind; }))
    return refuse(kSymbol, {kDnnNotSupported,
                            fmt::format("descriptors of kind {}", kind)});
  auto descriptor = std::make_shared<Descriptor>();
  descriptor->kind = kind;
  const std::lock_guard lock(mutex());
  live().emplace(descriptor.get(), descriptor);
  *made = descriptor.get();
  return kDnnSuccess;
}

cudnnStatus_t
cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  constexpr const char *kSymbol = "cudnnBackendDestroyDescriptor";
  if (const int code = countAndInject(kSymbol))
    return code;
  const std::lock_guard lock(mutex());
  if (live().erase(descriptor) == 0)
    return refuse(kSymbol, {kDnnBadParam, "no descriptor"});
  return kDnnSuccess;
}

/// Collects the descriptors that an attribute will name.
static Refusal collect(const void *from, int64_t count,
                       std::vector<DescriptorPointer> &named) {
  for (int64_t i = 0; i < count; ++i) {
    const auto descriptor =
        find(static_cast<const cudnnBackendDescriptor_t *>(from)[i]);
    if (!descriptor)
      return {kDnnBadParam, "an attribute names no descriptor"};
    if (!descriptor->isFinal)
      return {kDnnNotFinalized,
              fmt::format("an attribute names a descriptor of kind {} that is "
                          "not finished",
                          descriptor->kind)};
    named.push_back(descriptor);
  }
  return {};
}

static Refusal set(const DescriptorPointer &to, int name, int valueType,
                   int64_t count, const void *values) {
  if (!to || to->isFinal)
    return {kDnnBadParam, to ? "it is finished" : "no descriptor"};
  const Known *known =
      std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known &k) {
        return k.kind == to->kind && k.attribute == name;
      });
  if (known == std::end(kKnown))
    return {kDnnNotSupported, fmt::format("attribute {} of kind {}", name,
                                          to->kind)};
  if (valueType != known->type)
    return {kDnnAttributeType, fmt::format("attribute {} has values of type {}",
                                           name, known->type)};
  if (count < 1 || (known->isSingle && count != 1) || !values)
    return {kDnnBadParam,
            fmt::format("{} values of attribute {}", count, name)};
  Values kept{valueType, {}, {}};
  if (valueType == type::kDescriptor) {
    if (const Refusal refusal = collect(values, count, kept.descriptors))
      return refusal;
  } else {
    const auto *bytes = static_cast<const uint8_t *>(values);
    kept.bytes.assign(bytes, bytes + size_t(count) * bytesOfValue(valueType));
  }
  to->attributes[name] = std::move(kept);
  return {};
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       int name, int valueType, int64_t count,
                                       const void *values) {
  constexpr const char *kSymbol = "cudnnBackendSetAttribute";
  if (const int code = countAndInject(kSymbol))
    return code;
  return refuse(kSymbol, set(find(descriptor), name, valueType, count, values));
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t handle) {
  constexpr const char *kSymbol = "cudnnBackendFinalize";
  if (const int code = countAndInject(kSymbol))
    return code;
  const DescriptorPointer descriptor = find(handle);
  if (!descriptor || descriptor->isFinal)
    return refuse(kSymbol, {kDnnBadParam, "no descriptor, or a finished one"});
  for (const Known &known : kKnown)
    if (known.kind == descriptor->kind && known.isNeeded &&
        !descriptor->has(known.attribute))
      return refuse(kSymbol, {kDnnBadParam,
                              fmt::format("kind {} lacks attribute {}",
                                          known.kind, known.attribute)});
  const Refusal refusal = checkFinished(*descriptor);
  descriptor->isFinal = !refusal;
  return refuse(kSymbol, refusal);
}

/// Copies the found configurations into descriptors of the caller.
static Refusal copyResults(const Descriptor &from, int64_t wanted,
                           int64_t *count, void *values) {
  *count = int64_t(from.results.size());
  if (!values)
    return {};
  *count = std::min(*count, wanted);
  for (int64_t i = 0; i < *count; ++i) {
    const auto to = find(static_cast<cudnnBackendDescriptor_t *>(values)[i]);
    if (!to || to->kind != descriptor::kEngineConfig || to->isFinal)
      return {kDnnBadParam, "results are no new configurations"};
    *to = *from.results[size_t(i)];
  }
  return {};
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t handle,
                                       int name, int valueType, int64_t wanted,
                                       int64_t *count, void *values) {
  constexpr const char *kSymbol = "cudnnBackendGetAttribute";
  if (const int code = countAndInject(kSymbol))
    return code;
  const DescriptorPointer from = find(handle);
  if (!from || !from->isFinal)
    return refuse(kSymbol, {kDnnNotFinalized, "it is not finished"});
  if (from->kind == descriptor::kEngineHeuristics &&
      name == attribute::kHeuristicsResults && valueType == type::kDescriptor)
    return refuse(kSymbol, copyResults(*from, wanted, count, values));
  if (from->kind != descriptor::kExecutionPlan ||
      name != attribute::kPlanWorkspaceBytes || valueType != type::kInt64 ||
      wanted != 1)
    return refuse(kSymbol, {kDnnNotSupported,
                            fmt::format("attribute {} of kind {}", name,
                                        from->kind)});
  std::memcpy(values, &from->workspaceBytes, sizeof(int64_t));
  *count = 1;
  return kDnnSuccess;
}

} // namespace qlora
