// SPDX-License-Identifier: MIT

// Descriptors of libcudnn.so.9's backend interface, declared from the
// runtime's own table so that a signature that differs does not compile. An
// attribute that is a descriptor keeps what it names alive, as cuDNN copies it.

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

/// What is wrong, for cudnnGetLastErrorString and stderr; empty: nothing.
struct Refusal {
  int status = kDnnSuccess;
  std::string why;
  explicit operator bool() const { return status != kDnnSuccess; }
};

/// Keeps it for this thread, and gives the status back.
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
  /// What finalisation finds: of heuristics.
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
  /// The first value; one that is absent is `otherwise`.
  template <typename T> T get(int attribute, T otherwise = T()) const {
    const std::vector<T> values = list<T>(attribute);
    return values.empty() ? otherwise : values.front();
  }
  /// Of an attribute that names descriptors; nullptr where it is absent.
  const Descriptor *named(int attribute) const;
  DescriptorPointer namedPointer(int attribute) const;
};

/// Whether a descriptor with these attributes can be finished.
Refusal checkFinished(Descriptor &descriptor);

/// A tensor in words of its own.
struct TensorView {
  explicit TensorView(const Descriptor &tensor);
  int64_t id, alignment;
  int type;
  bool isVirtual, isByValue;
  std::vector<int64_t> dimensions, strides;

  int64_t elements() const;
  /// From the first to the last one.
  uint64_t bytes() const;
};
size_t bytesOfType(int type);

/// An operation: its output and its inputs in their order.
struct OperationView {
  explicit OperationView(const Descriptor &operation);
  const Descriptor *output = nullptr;
  std::vector<const Descriptor *> inputs;
};

/// The configurations that heuristics offer for a graph on a card.
std::vector<DescriptorPointer> offeredConfigs(const DescriptorPointer &graph,
                                              int arch);
/// Whether there is such an engine for its graph on a card.
Refusal checkEngine(const Descriptor &engine, int arch);
/// What a plan of the configuration needs.
uint64_t workspaceOf(const Descriptor &config);
/// Whether blocks of its engine add to a sum in the order in which they come.
bool addsInAnyOrder(const Descriptor &config);

/// Where a plan's operands are.
using Addresses = std::map<int64_t, void *>;

/// Runs the operations of a graph; `isOrdered` as above.
void evaluate(const Descriptor &graph, const Addresses &addresses,
              bool isOrdered);

} // namespace platform
} // namespace qlora

#endif // QLORA_TESTS_CUDA_CUDNN_OBJECTS_H
