// SPDX-License-Identifier: MIT

// Descriptors of cuDNN's backend, which everything is said with: made, given
// attributes, and finished.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUDNNOBJECT_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUDNNOBJECT_H

#include <span>

#include "runtime/Kernels/Cuda/CudnnApi.h"

namespace qlora {

/// A descriptor of cuDNN that is destroyed with it.
class CudnnObject {
public:
  /// `kind` is one of cudnn_descriptor; `name` is for errors, and lives long.
  CudnnObject(const Cudnn &api, int kind, const char *name);
  CudnnObject(CudnnObject &&other) noexcept;
  CudnnObject &operator=(CudnnObject &&other) noexcept;
  ~CudnnObject();

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
  cudnnBackendDescriptor_t get() const { return descriptor; }

private:
  CudnnObject &setRaw(int attribute, int type, int64_t count,
                      const void *values);

  const Cudnn *api;
  const char *name;
  cudnnBackendDescriptor_t descriptor = nullptr;
  Status status;
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDNNOBJECT_H
