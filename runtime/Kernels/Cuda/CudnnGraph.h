// SPDX-License-Identifier: MIT

// C++ interface of cuDNN's backend graphs: operations over 4-dimensional
// tensors, and a plan that runs them. plan() returns the first error.
//
//   CudnnGraph graph(target);
//   Tensor x = graph.operand(kX, cudnn_data::kBFloat16, shape);
//   Tensor y = graph.operand(kY, cudnn_data::kFloat, shape);
//   graph.pointwise(cudnn_pointwise::kExponential, {x}, y);
//   QLORA_ASSIGN_OR_RETURN(CudnnPlan plan, graph.plan({}, limitBytes));
//   plan.execute(handle, bindings, workspace);
//
// A tensor belongs to the graph that created it. Not thread-safe.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUDNNGRAPH_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUDNNGRAPH_H

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/Kernels/Cuda/CudaApi.h"

namespace qlora {

/// A cuDNN backend descriptor: first created, then given attributes, then
/// finalized. Destroyed with the object.
class CudnnObject {
public:
  /// `kind` is from cudnn_descriptor. `name` is for errors and must stay valid.
  CudnnObject(const Cudnn &api, int kind, const char *name);

  /// Sets an attribute. Does nothing after an error, which finish() returns.
  template <typename T>
  CudnnObject &set(int attribute, int type, std::span<const T> values) {
    return setRaw(attribute, type, static_cast<int64_t>(values.size()),
                  values.data());
  }
  template <typename T> CudnnObject &set(int attribute, int type, T value) {
    return set(attribute, type, std::span<const T>(&value, 1));
  }
  CudnnObject &set(int attribute, cudnnBackendDescriptor_t descriptor) {
    return set(attribute, cudnn_type::kDescriptor, descriptor);
  }
  /// Finalizes the descriptor; returns the first error so far.
  Status finish();
  cudnnBackendDescriptor_t get() const { return descriptor.get(); }

private:
  CudnnObject &setRaw(int attribute, int type, int64_t count,
                      const void *values);

  struct Destroy {
    const Cudnn *api;
    void operator()(cudnnBackendDescriptor_t descriptor) const {
      (void)api->destroyDescriptor(descriptor);
    }
  };

  const Cudnn *api;
  const char *name;
  std::unique_ptr<std::remove_pointer_t<cudnnBackendDescriptor_t>, Destroy>
      descriptor;
  Status status;
};

/// The GPU that plans are made for: the GPU of `handle`, or the GPU that the
/// descriptor `device` describes. Plans for `device` cannot run.
struct CudnnTarget {
  const Cudnn &api;
  cudnnHandle_t handle = nullptr;
  cudnnBackendDescriptor_t device = nullptr;
};

/// An engine that cuDNN's heuristics do not offer.
struct CudnnEngine {
  int64_t index;
  std::vector<std::pair<int, int64_t>> knobs;
};

/// Address of an operand: in device memory, or in host memory for a scalar.
struct CudnnBinding {
  int64_t id;
  void *address;
};

class CudnnPlan {
public:
  /// Enqueues the plan on the stream of the handle.
  Status execute(cudnnHandle_t handle, std::span<const CudnnBinding> bindings,
                 void *workspace) const;
  uint64_t workspaceBytes() const { return bytes; }

private:
  friend class CudnnGraph;
  CudnnPlan(const Cudnn &api, CudnnObject plan, uint64_t bytes)
      : api(&api), object(std::move(plan)), bytes(bytes) {}

  const Cudnn *api;
  CudnnObject object;
  uint64_t bytes;
};

class CudnnGraph {
public:
  using Tensor = cudnnBackendDescriptor_t;
  struct Shape {
    std::array<int64_t, 4> dimensions, strides; ///< in elements
  };

  explicit CudnnGraph(const CudnnTarget &target) : target(target) {}

  /// A tensor in memory, aligned to 16 bytes.
  Tensor operand(int64_t id, int type, const Shape &shape);
  /// An f32 scalar in host memory.
  Tensor value(int64_t id);
  /// A tensor that exists only inside the fused kernel.
  Tensor intermediate(int type, const Shape &shape);

  /// y := mode(x...). `x` has one or two operands, then the predicate if `mode`
  /// is kSelect. Only kIndex uses `axis`.
  void pointwise(int mode, std::initializer_list<Tensor> x, Tensor y,
                 int mathType = cudnn_data::kFloat,
                 std::optional<int64_t> axis = std::nullopt);
  /// c := a . b over the last two dimensions, with f32 sums.
  void matmul(Tensor a, Tensor b, Tensor c);
  /// Reduces x over the dimensions that are 1 in y.
  void reduce(int reduction, Tensor x, Tensor y);
  void reshape(Tensor x, Tensor y);

  /// Returns a plan with at most `limitBytes` of workspace, for `engine` or, by
  /// default, for the first engine of cuDNN's heuristics that fits. Returns
  /// kUnavailable with the last engine's reason if no engine fits.
  StatusOr<CudnnPlan> plan(const std::optional<CudnnEngine> &engine,
                           uint64_t limitBytes);

private:
  Tensor tensor(int64_t id, int type, const Shape &shape, bool isVirtual,
                bool isValue);
  /// Finalizes an object and stores it.
  cudnnBackendDescriptor_t keep(CudnnObject object);
  /// Adds an operation. `parts` pairs its attributes with descriptors; null
  /// descriptors are skipped.
  void addOperation(
      int kind, const char *name,
      std::initializer_list<std::pair<int, cudnnBackendDescriptor_t>> parts);
  Status finishOperations();
  StatusOr<std::vector<CudnnObject>> configurations(int mode) const;
  StatusOr<CudnnObject> configurationOf(const CudnnEngine &engine) const;
  StatusOr<CudnnPlan> build(const CudnnObject &configuration,
                            uint64_t limitBytes) const;
  void setDevice(CudnnObject &object, int attribute) const;

  CudnnTarget target;
  Status status;
  std::vector<CudnnObject> objects; ///< later objects refer to earlier ones
  std::vector<cudnnBackendDescriptor_t> operations;
  std::optional<CudnnObject> graph;
  int64_t nextVirtual = kFirstVirtual;

  static constexpr int64_t kFirstVirtual = 1000; ///< above operand ids
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDNNGRAPH_H
