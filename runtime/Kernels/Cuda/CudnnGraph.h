// SPDX-License-Identifier: MIT

// cuDNN's backend graphs in C++: operations over tensors of four dimensions,
// then a plan that runs them. Written like arithmetic; the first thing that
// cuDNN refuses is kept, and plan() reports it.
//
//   CudnnGraph graph(target);
//   Tensor x = graph.operand(kX, cudnn_data::kBFloat16, shape);
//   Tensor y = graph.operand(kY, cudnn_data::kFloat, shape);
//   graph.pointwise(cudnn_pointwise::kExponential, {x}, y);
//   QLORA_ASSIGN_OR_RETURN(CudnnPlan plan, graph.plan({}, limitBytes));
//   plan.execute(handle, bindings, workspace);
//
// A tensor is of the graph that made it. Nothing here is thread-safe.

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

/// A descriptor of cuDNN's backend, which everything is said with: made, given
/// attributes, and finished. It is destroyed with the object.
class CudnnObject {
public:
  /// `kind` is one of cudnn_descriptor; `name` is for errors, and lives long.
  CudnnObject(const Cudnn &api, int kind, const char *name);

  /// Sets an attribute; nothing after a failure.
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
  /// The first failure of all of this.
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

/// For which device plans are made: that of a handle, or one described by a
/// device-properties descriptor, whose plans can be looked at and not run.
struct CudnnTarget {
  const Cudnn &api;
  cudnnHandle_t handle = nullptr;
  cudnnBackendDescriptor_t device = nullptr;
};

/// An engine that cuDNN's heuristics do not offer by themselves.
struct CudnnEngine {
  int64_t index;
  std::vector<std::pair<int, int64_t>> knobs;
};

/// Where an operand is: an address on the device, or on the host for a value.
struct CudnnBinding {
  int64_t id;
  void *address;
};

class CudnnPlan {
public:
  /// Enqueues it on the stream of the handle.
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

  /// A tensor in memory, at multiples of 16 bytes.
  Tensor operand(int64_t id, int type, const Shape &shape);
  /// One f32 on the host.
  Tensor value(int64_t id);
  /// A tensor that exists inside the kernel only.
  Tensor intermediate(int type, const Shape &shape);

  /// y := mode(x...): x, then the second operand, then the predicate of a
  /// selection. `axis` is that of kIndex.
  void pointwise(int mode, std::initializer_list<Tensor> x, Tensor y,
                 int mathType = cudnn_data::kFloat,
                 std::optional<int64_t> axis = std::nullopt);
  /// c := a . b over the last two dimensions, with f32 sums.
  void matmul(Tensor a, Tensor b, Tensor c);
  /// y := x over the dimensions that are 1 in y.
  void reduce(int reduction, Tensor x, Tensor y);
  void reshape(Tensor x, Tensor y);

  /// A plan of at most so many bytes of workspace: the named engine, or the
  /// first that fits of those that cuDNN's heuristics offer. kUnavailable, with
  /// the last engine's reason, where there is none.
  StatusOr<CudnnPlan> plan(const std::optional<CudnnEngine> &engine,
                           uint64_t limitBytes);

private:
  Tensor tensor(int64_t id, int type, const Shape &shape, bool isVirtual,
                bool isValue);
  /// Finishes an object and keeps it.
  cudnnBackendDescriptor_t keep(CudnnObject object);
  /// Of these descriptors, by attribute; those that are null are left out.
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
  std::vector<CudnnObject> objects; ///< destroyed after what uses them
  std::vector<cudnnBackendDescriptor_t> operations;
  std::optional<CudnnObject> graph;
  int64_t nextVirtual = kFirstVirtual;

  static constexpr int64_t kFirstVirtual = 1000; ///< ids of operands are below
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDNNGRAPH_H
