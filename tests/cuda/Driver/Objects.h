// SPDX-License-Identifier: MIT

// The structs behind the driver's handles: streams, events, graphs, modules and
// functions. A handle is live from its create call to its destroy call. Calls
// with any other handle return CUDA_ERROR_INVALID_HANDLE.

#ifndef QLORA_TESTS_CUDA_DRIVER_OBJECTS_H
#define QLORA_TESTS_CUDA_DRIVER_OBJECTS_H

#include "runtime/Kernels/Cuda/CudaTypes.h"
#include "tests/cuda/Driver/BlockRunner.h"
#include "tests/cuda/Driver/Schedule.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace qlora {

/// A node of a captured graph. It depends only on earlier nodes.
struct GraphNode {
  std::string what;
  platform::Work work;
  std::vector<size_t> dependencies;
  /// The stream that captured the node. Each launch of the graph gives every
  /// captured stream a new priority.
  const CUstream_st *stream;
  platform::MayRun mayRun;
};

struct CUgraph_st {
  std::vector<GraphNode> nodes;
};

struct CUgraphExec_st {
  std::vector<GraphNode> nodes;
  platform::OperationRef last; ///< previous launch, which must end first
};

namespace platform {
/// A capture in progress, shared by its streams.
struct Capture {
  CUgraph_st graph;
  CUstream_st *origin = nullptr;
  std::vector<CUstream_st *> streams; ///< the origin is first
  bool isInvalid = false;
};
} // namespace platform

struct CUctx_st {
  int device = 0;
  int retained = 0;
  std::unique_ptr<CUstream_st> defaultStream;
};

struct CUstream_st {
  CUctx_st *context = nullptr;
  bool isBlocking = false; ///< whether it is ordered with the default stream
  uint64_t priority = 0;
  platform::OperationRef last;
  /// Operations that the stream's next operation waits for, besides `last`.
  std::vector<platform::OperationRef> waits;
  std::shared_ptr<platform::Capture> capture; ///< null: not capturing
  std::vector<size_t> captured; ///< nodes that its next node depends on
};

struct CUevent_st {
  bool hasTiming = false;
  platform::OperationRef recorded;
  std::shared_ptr<platform::Capture> capture; ///< capture of the last record
  std::vector<size_t> captured;
};

struct CUmod_st {
  void *library = nullptr;
  platform::ImageSymbols image = {};
  std::vector<std::unique_ptr<CUfunc_st>> functions;
};

struct CUfunc_st {
  const CUmod_st *module = nullptr;
  const qlora_host_kernel *kernel = nullptr;
  unsigned maxDynamicShared = 48 << 10;
  CUctx_st *context = nullptr;
};

namespace platform {

/// Live handles of one kind.
template <typename T> class Handles {
public:
  T *add(std::unique_ptr<T> object) {
    T *handle = object.get();
    live[handle] = std::move(object);
    return handle;
  }
  bool has(T *handle) const { return live.count(handle) != 0; }
  template <typename Visit> void forEach(Visit visit) {
    for (auto &[handle, object] : live)
      visit(*object);
  }
  bool remove(T *handle) { return live.erase(handle) != 0; }

private:
  std::map<T *, std::unique_ptr<T>> live;
};

struct Objects {
  Handles<CUstream_st> streams;
  Handles<CUevent_st> events;
  Handles<CUgraph_st> graphs;
  Handles<CUgraphExec_st> graphExecs;
  Handles<CUmod_st> modules;
  std::vector<std::unique_ptr<CUctx_st>> contexts; ///< one per GPU
};
Objects &objects();

/// Returns the context of the calling thread, or null.
CUctx_st *&currentContext();

/// Returns the live stream of a handle in the current context, or null. A null
/// handle means the context's default stream.
CUstream_st *streamOf(CUstream handle);

/// Adds work to a stream, or to the graph that the stream captures.
int enqueue(CUstream_st &stream, std::string what, Work work,
            MayRun mayRun = {});

/// If any stream is capturing, invalidates all captures and returns true. Then
/// the caller, which waits or allocates, must fail with
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
bool spoilCaptures();

} // namespace platform
} // namespace qlora

#endif // QLORA_TESTS_CUDA_DRIVER_OBJECTS_H
