// SPDX-License-Identifier: MIT

// cudnnBackendExecute. Every operand of the graph must have one address,
// aligned as in its descriptor and within one live allocation. Reads host
// values during the call, because a captured graph stores them. Fills the
// workspace with NaN when the plan runs, which exposes concurrent use of it.

#include "tests/cuda/Cudnn/Objects.h"

#include "tests/cuda/Driver/Hook.h"
#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

#include <set>

namespace qlora {

using namespace platform;
namespace attribute = cudnn_attribute;
namespace descriptor = cudnn_descriptor;

static constexpr int kIllegalAddress = 700; // CUDA_ERROR_ILLEGAL_ADDRESS

namespace {
/// The arguments of one call.
struct Execution {
  DescriptorPointer plan; ///< kept: a captured graph may run it later
  int device;
  std::vector<TensorView> operands; ///< in device memory
  std::set<int64_t> written;
  Addresses addresses;
  std::shared_ptr<std::map<int64_t, float>> values;
  void *workspace;

  const Descriptor &config() const {
    return *plan->named(attribute::kPlanConfig);
  }
  const Descriptor &graph() const {
    return *config()
                .named(attribute::kConfigEngine)
                ->named(attribute::kEngineGraph);
  }
  Refusal bind(const Descriptor &pack);
  Refusal check() const;

private:
  Refusal bind(const TensorView &tensor);
  bool overlap(const TensorView &x, const TensorView &y) const;
};
} // namespace

Refusal Execution::bind(const TensorView &tensor) {
  const auto found = addresses.find(tensor.id);
  if (found == addresses.end() || !found->second)
    return {kDnnBadParam, fmt::format("tensor {} has no address", tensor.id)};
  if (!tensor.isByValue) {
    operands.push_back(tensor);
    return {};
  }
  float &kept = (*values)[tensor.id];
  std::memcpy(&kept, found->second, sizeof kept);
  found->second = &kept;
  return {};
}

Refusal Execution::bind(const Descriptor &pack) {
  const auto ids = pack.list<int64_t>(attribute::kPackUniqueIds);
  const auto pointers = pack.list<void *>(attribute::kPackPointers);
  for (size_t i = 0; i < ids.size(); ++i)
    addresses[ids[i]] = pointers[i];
  workspace = pack.get<void *>(attribute::kPackWorkspace);
  std::set<int64_t> bound;
  for (const auto &operation :
       graph().attributes.at(attribute::kGraphOperations).descriptors) {
    const OperationView view(*operation);
    written.insert(TensorView(*view.output).id);
    std::vector<const Descriptor *> tensors = view.inputs;
    tensors.push_back(view.output);
    for (const Descriptor *tensor : tensors)
      if (const TensorView x(*tensor);
          !x.isVirtual && bound.insert(x.id).second)
        if (const Refusal refusal = bind(x))
          return refusal;
  }
  for (const int64_t id : ids)
    if (!bound.count(id))
      return {kDnnBadParam, fmt::format("the graph has no tensor {}", id)};
  return check();
}

bool Execution::overlap(const TensorView &x, const TensorView &y) const {
  const auto *beginX = static_cast<const char *>(addresses.at(x.id));
  const auto *beginY = static_cast<const char *>(addresses.at(y.id));
  // Two column ranges of one matrix may overlap as address ranges, but must not
  // share elements.
  const bool isColumns = x.strides == y.strides && x.type == y.type;
  const auto extent = [&](const TensorView &tensor) {
    return isColumns ? uint64_t(tensor.dimensions[1] * tensor.strides[1]) *
                           bytesOfType(tensor.type)
                     : tensor.bytes();
  };
  return beginX < beginY + extent(y) && beginY < beginX + extent(x);
}

Refusal Execution::check() const {
  for (const TensorView &x : operands) {
    void *address = addresses.at(x.id);
    if (reinterpret_cast<uintptr_t>(address) % uintptr_t(x.alignment) != 0)
      return {kDnnMisaligned,
              fmt::format("tensor {} is not aligned to {} bytes", x.id,
                          x.alignment)};
    const std::string wrong = checkDeviceRange(address, x.bytes(), device);
    if (!wrong.empty())
      return {kDnnBadParam, fmt::format("tensor {}: {}", x.id, wrong)};
    for (const TensorView &y : operands)
      if (written.count(x.id) && x.id != y.id && overlap(x, y))
        return {kDnnBadParam,
                fmt::format("tensor {} overlaps tensor {}", x.id, y.id)};
  }
  if (plan->workspaceBytes == 0)
    return {};
  if (reinterpret_cast<uintptr_t>(workspace) % 16 != 0)
    return {kDnnMisaligned, "the workspace is not aligned to 16 bytes"};
  const std::string wrong =
      checkDeviceRange(workspace, plan->workspaceBytes, device);
  return wrong.empty() ? Refusal()
                       : Refusal{kDnnBadParam, "the workspace: " + wrong};
}

/// Checks the operands and runs the plan. Runs when the stream reaches the
/// call. Returns a CUresult.
static int run(const Execution &execution) {
  if (const Refusal refusal = execution.check()) {
    explain("cudnnBackendExecute runs: " + refusal.why);
    return kIllegalAddress;
  }
  if (execution.plan->workspaceBytes != 0)
    std::memset(execution.workspace, 0xff, execution.plan->workspaceBytes);
  spendTime(std::chrono::microseconds(20));
  evaluate(execution.graph(), execution.addresses,
           !addsInAnyOrder(execution.config()));
  return 0;
}

/// Returns an owning pointer to a live descriptor.
static DescriptorPointer kept(cudnnBackendDescriptor_t handle) {
  return static_cast<Descriptor *>(handle)->shared_from_this();
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle,
                                  cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  constexpr const char *kSymbol = "cudnnBackendExecute";
  if (const int code = countAndInject(kSymbol))
    return code;
  if (!handle || handle->device != currentDevice())
    return refuse(kSymbol, {kDnnNotInitialized,
                            "no handle of the current context"});
  if (!plan || !pack)
    return refuse(kSymbol, {kDnnBadParam, "no plan or no operands"});
  Execution execution = {kept(plan), handle->device, {}, {}, {},
                         std::make_shared<std::map<int64_t, float>>(),
                         nullptr};
  const DescriptorPointer operands = kept(pack);
  if (!execution.plan->isFinal || !operands->isFinal)
    return refuse(kSymbol, {kDnnNotFinalized, "plan or operands"});
  if (execution.plan->kind != descriptor::kExecutionPlan ||
      operands->kind != descriptor::kVariantPack ||
      execution.plan->get<cudnnHandle_t>(attribute::kPlanHandle) != handle)
    return refuse(kSymbol, {kDnnBadParam, "no plan of this handle, or no "
                                          "operands"});
  if (const Refusal refusal = execution.bind(*operands))
    return refuse(kSymbol, refusal);
  if (!mayUse(handle->stream, fmt::format("cuDNN's plan at {}",
                                          fmt::ptr(execution.plan.get()))))
    return kDnnExecutionFailed;
  countEvent(execution.operands.size() < 8 ? "attention by cuDNN"
                                           : "gradients by cuDNN");
  const int code = enqueueLibraryWork(handle->stream, kSymbol,
                                      [=] { return run(execution); });
  return code ? kDnnExecutionFailed : kDnnSuccess;
}

} // namespace qlora
