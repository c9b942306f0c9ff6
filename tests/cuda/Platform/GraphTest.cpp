// SPDX-License-Identifier: MIT

// Captures: the contents of a graph, its order, and refused calls.

#include "tests/cuda/Platform/Platform.h"

#include <gtest/gtest.h>

using namespace qlora;
using namespace qlora::platform;

static void beginCapture(CUstream stream) {
  Client::require(cuStreamBeginCapture_v2(stream, kCudaCaptureThreadLocal),
                  "begin");
}

static CUgraphExec endCapture(CUstream stream) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  Client::require(cuStreamEndCapture(stream, &graph), "end");
  Client::require(cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
  Client::require(cuGraphDestroy(graph), "destroy");
  return exec;
}

/// Captures value += 1 on one stream and a copy on a second stream. The second
/// stream forks from the first one and, if `joins`, joins it again. The last
/// node adds one to the copy.
static CUresult captureFork(Client &client, CUdeviceptr value, CUdeviceptr copy,
                            CUdeviceptr result, bool waits, bool joins,
                            CUgraph *graph) {
  const CUstream side = client.newStream();
  const CUevent forked = client.newEvent();
  const CUevent joined = client.newEvent();
  client.require(client.launch("add_one", {result, result}, client.stream),
                 "load");
  beginCapture(client.stream);
  client.require(cuEventRecord(forked, client.stream), "record");
  client.require(cuStreamWaitEvent(side, forked, 0), "fork");
  client.require(client.launch("add_one", {value, value}, client.stream), "+");
  if (waits) {
    client.require(cuEventRecord(forked, client.stream), "record");
    client.require(cuStreamWaitEvent(side, forked, 0), "wait");
  }
  client.require(cuMemcpyDtoDAsync_v2(copy, value, 256, side), "copy");
  client.require(cuEventRecord(joined, side), "record");
  if (joins)
    client.require(cuStreamWaitEvent(client.stream, joined, 0), "join");
  client.require(client.launch("add_one", {result, copy}, client.stream), "+");
  return cuStreamEndCapture(client.stream, graph);
}

/// Returns the result after three launches of the graph of captureFork().
static float replayed(bool waits) {
  Client client;
  const CUdeviceptr value = client.allocate(64);
  const CUdeviceptr copy = client.allocate(64);
  const CUdeviceptr result = client.allocate(64);
  client.write(value, std::vector<float>(64, 0.0f));
  CUgraph graph = nullptr;
  client.require(captureFork(client, value, copy, result, waits, true, &graph),
                 "capture");
  CUgraphExec exec = nullptr;
  client.require(cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
  if (client.read(value, 1)[0] != 0)
    return -1; // a capture must run nothing
  for (int i = 0; i < 3; ++i)
    client.require(cuGraphLaunch(exec, client.stream), "launch");
  return client.read(result, 64)[63];
}

TEST(Graph, ReplaysInTheOrderOfItsDependencies) {
  for (int seed = 1; seed <= 16; ++seed)
    EXPECT_TRUE(inProcess({{"QLORA_TEST_CUDA_SEED", std::to_string(seed)}},
                          [] { return replayed(true) == 4; }))
        << seed;
}

TEST(Graph, AMissingDependencyShows) {
  int wrong = 0;
  for (int seed = 1; seed <= 16; ++seed)
    wrong += !inProcess({{"QLORA_TEST_CUDA_SEED", std::to_string(seed)}},
                        [] { return replayed(false) == 4; });
  EXPECT_GT(wrong, 3);
}

TEST(Graph, AStreamMustJoinAgain) {
  std::string errors;
  EXPECT_TRUE(inProcess(
      {},
      [] {
        Client client;
        CUgraph graph = nullptr;
        const CUdeviceptr a = client.allocate(64);
        return captureFork(client, a, client.allocate(64), a, true, false,
                           &graph) == kCaptureUnjoined;
      },
      &errors));
  EXPECT_NE(errors.find("copy on the device: its stream did not join"),
            std::string::npos)
      << errors;
}

constexpr size_t kStepFloats = sizeof(qlora_step_block) / sizeof(float);

TEST(Graph, HoldsArgumentsByValueAndTheStepByAddress) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    const CUdeviceptr out = client.allocate(64);
    const CUdeviceptr step = client.allocate(kStepFloats);
    qlora_cuda_args args = {};
    args.buffers[0] = reinterpret_cast<void *>(out);
    args.step = reinterpret_cast<const qlora_step_block *>(step);
    args.rows = 64;
    void *parameters[] = {&args};
    const auto launch = [&] {
      client.require(cuLaunchKernel(client.function("read_step"), 1, 1, 1, 64,
                                    1, 1, 0, client.stream, parameters,
                                    nullptr),
                     "launch");
    };
    launch(); // the first launch loads the kernel
    beginCapture(client.stream);
    launch();
    args = {};
    CUgraphExec exec = endCapture(client.stream);
    bool isRight = true;
    for (const float rate : {0.5f, 0.25f}) {
      client.write(step, std::vector<float>(kStepFloats, rate));
      client.require(cuGraphLaunch(exec, client.stream), "graph");
      isRight = isRight && client.read(out, 1)[0] == rate;
    }
    return isRight;
  }));
}

TEST(Graph, WaitingAndAllocatingSpoilACapture) {
  EXPECT_TRUE(inProcess({}, [] {
    const auto isSpoilt = [](const std::function<CUresult(Client &)> &call) {
      static Client client;
      CUgraph graph = nullptr;
      beginCapture(client.stream);
      return call(client) == kCaptureUnsupported &&
             cuStreamEndCapture(client.stream, &graph) == kCaptureInvalidated;
    };
    return isSpoilt([](Client &client) {
             return cuStreamSynchronize(client.stream);
           }) &&
           isSpoilt([](Client &) {
             CUdeviceptr unused;
             return cuMemAlloc_v2(&unused, 4);
           });
  }));
}

TEST(Graph, AKernelIsNotLoadedInACapture) {
  std::string errors;
  EXPECT_TRUE(inProcess(
      {},
      [] {
        Client client;
        CUgraph graph = nullptr;
        const CUdeviceptr a = client.allocate(64);
        const auto captured = [&](const char *name) {
          beginCapture(client.stream);
          const CUresult launched = client.launch(name, {a, a}, client.stream);
          return std::pair(launched, cuStreamEndCapture(client.stream, &graph));
        };
        client.require(client.launch("fill", {a}, client.stream), "fill");
        return captured("fill") == std::pair(0, 0) &&
               captured("add_one") ==
                   std::pair(int(kCaptureUnsupported),
                             int(kCaptureInvalidated)) &&
               client.launch("add_one", {a, a}, client.stream) == 0 &&
               captured("add_one") == std::pair(0, 0);
      },
      &errors));
  EXPECT_NE(errors.find("add_one at "), std::string::npos) << errors;
  EXPECT_NE(errors.find("is first used inside of a capture"),
            std::string::npos)
      << errors;
}

TEST(Graph, AKernelThatWasLoadedEagerlyIs) {
  EXPECT_TRUE(inProcess({{"CUDA_MODULE_LOADING", "EAGER"}}, [] {
    Client client;
    const CUdeviceptr a = client.allocate(64);
    beginCapture(client.stream);
    return client.launch("fill", {a}, client.stream) == 0;
  }));
}

TEST(Graph, APageableCopyIsRefused) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    const CUdeviceptr a = client.allocate(1);
    float host = 0;
    beginCapture(client.stream);
    return cuMemcpyDtoHAsync_v2(&host, a, 4, client.stream) ==
           kCaptureUnsupported;
  }));
}

TEST(Graph, EventsFromOutsideAreRefused) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    const CUstream other = client.newStream();
    const CUevent event = client.newEvent();
    client.require(cuEventRecord(event, other), "record");
    beginCapture(client.stream);
    return cuStreamWaitEvent(client.stream, event, 0) == kCaptureIsolation;
  }));
}
