// SPDX-License-Identifier: MIT

// The shared memory of the running block. When a block begins, it is filled
// with 0xff, so that reads of unwritten memory give NaN. The kernels of a file
// may declare half a megabyte together. So the first blocks of a kernel
// determine which bytes it writes; later, only those bytes are filled again.

#ifndef QLORA_TESTS_CUDA_DRIVER_SHAREDMEMORY_H
#define QLORA_TESTS_CUDA_DRIVER_SHAREDMEMORY_H

#include "tests/cuda/HostImage.h"

#include <cstddef>
#include <map>
#include <vector>

namespace qlora::platform {

class SharedMemory {
public:
  void beginLaunch(const qlora_host_image &image,
                   const qlora_host_kernel &kernel, size_t dynamicBytes);
  void beginBlock();
  void endBlock();
  void *dynamic() { return dynamicBytes.data(); }

private:
  struct Range {
    char *begin;
    size_t bytes;
  };
  /// The ranges that the blocks of a kernel have written so far.
  struct Written {
    std::vector<Range> ranges;
    int blocksSeen = 0;
  };
  void findWritten();

  const qlora_host_image *image = nullptr;
  Written *written = nullptr;
  std::map<const qlora_host_kernel *, Written> known;
  std::vector<char> dynamicBytes;
};

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_SHAREDMEMORY_H
