// SPDX-License-Identifier: MIT

// Descriptors of libcudnn.so.9's backend interface. The runtime's own table
// declares the functions, so a different signature does not compile. Attributes
// own the descriptors that they name, because cuDNN copies those.

#ifndef QLORA_TESTS_CUDA_CUDNN_OBJECTS_H
#define QLORA_TESTS_CUDA_CUDNN_OBJECTS_H

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Kernels/Cuda/CudaTypes.h"
#include "runtime/Kernels/Cuda/CudnnTypes.h"
#include "tests/cuda/Cudnn/Codes.h"

namespace qlora {
extern "C" {
#define QLORA_CUDNN(Name, Symbol, Parameters) cudnnStatus_t Symbol Parameters;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
size_t cudnnGetVersion();
void cudnnGetLastErrorString(char *text, size_t size);
}

struct cudnnContext {
  int device;
  CUstream stream;
};

namespace platform {

/// An error for cudnnGetLastErrorString and stderr; converts to false if there
/// is no error.
struct Refusal {
  int status = kDnnSuccess;
  std::string why;
  explicit operator bool() const { return status != kDnnSuccess; }
};

/// Stores the error as this thread's last error and returns its status.
int refuse(const char *symbol, const Refusal &refusal);

struct Descriptor;
using DescriptorPointer = std::shared_ptr<Descriptor>;

/// The values of an attribute.
struct Values {
  int type;
  std::vector<uint8_t> bytes;
  std::vector<DescriptorPointer> descriptors;
};

struct Descriptor : std::enable_shared_from_this<Descriptor> {
  int kind;
  bool isFinal = false;
  std::map<int, Values> attributes;
  /// Configurations that finalising a heuristics descriptor found.
  std::vector<DescriptorPointer> results;
  uint64_t workspaceBytes = 0; ///< of a plan

  bool has(int attribute) const { return attributes.count(attribute) != 0; }
  template <typename T> std::vector<T> list(int attribute) const {
    std::vector<T> values;
    if (const auto found = attributes.find(attribute);
        found != attributes.end()) {
      values.resize(found->second.bytes.size() / sizeof(T));
      std::memcpy(values.data(), found->second.bytes.data(),
                  values.size() * sizeof(T));
    }
    return values;
  }
  /// Returns the first value, or `otherwise` if the attribute is absent.
  template <typename T> T get(int attribute, T otherwise = T()) const {
    const std::vector<T> values = list<T>(attribute);
    return values.empty() ? otherwise : values.front();
  }
  /// Returns the descriptor that the attribute names; nullptr if it is absent.
  const Descriptor *named(int attribute) const;
  DescriptorPointer namedPointer(int attribute) const;
};

/// Returns an error if a descriptor with these attributes cannot be finalised.
Refusal checkFinished(Descriptor &descriptor);

/// The attributes of a tensor descriptor.
struct TensorView {
  explicit TensorView(const Descriptor &tensor);
  int64_t id, alignment;
  int type;
  bool isVirtual, isByValue;
  std::vector<int64_t> dimensions, strides;

  int64_t elements() const;
  /// Returns the bytes from the tensor's first element to the end of its last.
  uint64_t bytes() const;
};
size_t bytesOfType(int type);

/// An operation of a graph: its output, and its inputs in order.
struct OperationView {
  explicit OperationView(const Descriptor &operation);
  const Descriptor *output = nullptr;
  std::vector<const Descriptor *> inputs;
};

/// Returns the configurations that heuristics offer for a graph on a GPU.
std::vector<DescriptorPointer> offeredConfigs(const DescriptorPointer &graph,
                                              int arch);
/// Returns an error if the GPU does not support this engine for its graph.
Refusal checkEngine(const Descriptor &engine, int arch);
/// Returns the workspace bytes of a plan with this configuration.
uint64_t workspaceOf(const Descriptor &config);
/// Returns whether the configuration's engine adds to sums in any order.
bool addsInAnyOrder(const Descriptor &config);

/// Addresses of a plan's operands, keyed by tensor id.
using Addresses = std::map<int64_t, void *>;

/// Runs the operations of a graph. If `isOrdered` is false, matmuls add to sums
/// in memory in any order.
void evaluate(const Descriptor &graph, const Addresses &addresses,
              bool isOrdered);

} // namespace platform
} // namespace qlora

#endif // QLORA_TESTS_CUDA_CUDNN_OBJECTS_H
