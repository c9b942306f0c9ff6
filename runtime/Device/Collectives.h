// SPDX-License-Identifier: MIT

// What ranks do together through the host. Called by a device's communication
// thread (and by the session between steps, never at the same time). GPUs add
// up among themselves (Cuda/NcclCollectives.h) and use this to find each other
// and to notice a rank that is gone.

#ifndef QLORA_RUNTIME_DEVICE_COLLECTIVES_H
#define QLORA_RUNTIME_DEVICE_COLLECTIVES_H

#include <chrono>
#include <cstdint>

#include "runtime/Base/Status.h"

namespace qlora {

/// One group of ranks. Every rank makes the same calls in the same order.
class Collectives {
public:
  virtual ~Collectives() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// data[0, count) := its sum over all ranks, in the same order on each, so
  /// that all have the same bits. Blocks. kAborted when another rank failed.
  virtual Status allReduceSum(float *data, int64_t count) = 0;
  /// kAborted once another rank is known to have failed or ended; does not
  /// block. Between calls of allReduceSum, from their thread.
  virtual Status checkOthers() { return Status::ok(); }
  /// How long a rank waits for the slowest one.
  virtual std::chrono::milliseconds timeout() const {
    return std::chrono::hours(1);
  }
  /// Makes calls that are blocked, here and on other ranks, return kAborted.
  /// The one method that any thread may call at any time.
  virtual void abort() = 0;

  /// Returns when every rank has called it.
  Status barrier() {
    float zero = 0;
    return allReduceSum(&zero, 1);
  }
};

/// A group of one: a sum is what it was.
class SingleRank final : public Collectives {
public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status allReduceSum(float *, int64_t) override { return Status::ok(); }
  void abort() override {}
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_COLLECTIVES_H
