// SPDX-License-Identifier: MIT

#include "runtime/Kernels/Cuda/CudnnObject.h"

#include <utility>

namespace qlora {

CudnnObject::CudnnObject(const Cudnn &api, int kind, const char *name)
    : api(&api), name(name) {
  status = api.check(api.createDescriptor(kind, &descriptor), name);
}

CudnnObject::CudnnObject(CudnnObject &&other) noexcept
    : api(other.api), name(other.name),
      descriptor(std::exchange(other.descriptor, nullptr)),
      status(std::move(other.status)) {}

CudnnObject &CudnnObject::operator=(CudnnObject &&other) noexcept {
  std::swap(api, other.api);
  std::swap(name, other.name);
  std::swap(descriptor, other.descriptor);
  std::swap(status, other.status);
  return *this;
}

CudnnObject::~CudnnObject() {
  if (descriptor)
    (void)api->destroyDescriptor(descriptor);
}

CudnnObject &CudnnObject::setRaw(int attribute, int type, int64_t count,
                                 const void *values) {
  if (status.isOk())
    status = api->check(
        api->setAttribute(descriptor, attribute, type, count, values), name);
  return *this;
}

Status CudnnObject::finish() {
  if (status.isOk())
    status = api->check(api->finalize(descriptor), name);
  return status;
}

} // namespace qlora
