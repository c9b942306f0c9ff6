// SPDX-License-Identifier: MIT

// The cuDNN look-alike: a small graph, (a . b) . c of 16 x 16 matrices, and
// calls that are refused while a graph is built.

#include "tests/cuda/Cudnn/Objects.h"
#include "tests/cuda/Platform/Platform.h"

#include "runtime/Kernels/Rows.h"

#include <gtest/gtest.h>

#include <initializer_list>

using namespace qlora;
using namespace qlora::platform;
namespace attribute = qlora::cudnn_attribute;
namespace descriptor = qlora::cudnn_descriptor;
namespace type = qlora::cudnn_type;

namespace {
using Handle = cudnnBackendDescriptor_t;
constexpr int64_t kSide = 16;

template <typename T>
int set(Handle to, int name, int valueType, std::initializer_list<T> values) {
  return cudnnBackendSetAttribute(to, name, valueType, int64_t(values.size()),
                                  values.begin());
}

Handle make(int kind) {
  Handle made = nullptr;
  Client::require(cudnnBackendCreateDescriptor(kind, &made), "descriptor");
  return made;
}

Handle finish(Handle made) {
  Client::require(cudnnBackendFinalize(made), "finish");
  return made;
}

/// Returns a descriptor that is not finalised.
Handle tensor(int64_t id, bool isVirtual, int64_t rows = kSide) {
  Handle made = make(descriptor::kTensor);
  set<int64_t>(made, attribute::kTensorUniqueId, type::kInt64, {id});
  set<int>(made, attribute::kTensorDataType, type::kDataType,
           {cudnn_data::kBFloat16});
  set<int64_t>(made, attribute::kTensorDimensions, type::kInt64,
               {1, 1, rows, kSide});
  set<int64_t>(made, attribute::kTensorStrides, type::kInt64,
               {rows * kSide, rows * kSide, kSide, 1});
  set<int64_t>(made, attribute::kTensorAlignment, type::kInt64, {16});
  set<bool>(made, attribute::kTensorIsVirtual, type::kBoolean, {isVirtual});
  return made;
}

/// Returns a descriptor that is not finalised.
Handle product(Handle a, Handle b, Handle c) {
  Handle what = make(descriptor::kMatmul);
  set<int>(what, attribute::kMatmulMathType, type::kDataType,
           {cudnn_data::kFloat});
  Handle made = make(descriptor::kMatmulOperation);
  set<Handle>(made, attribute::kMatmulDescriptor, type::kDescriptor,
              {finish(what)});
  set<Handle>(made, attribute::kMatmulA, type::kDescriptor, {a});
  set<Handle>(made, attribute::kMatmulB, type::kDescriptor, {b});
  set<Handle>(made, attribute::kMatmulC, type::kDescriptor, {c});
  return made;
}

/// A context, a handle and matrices in device memory: a, b, c, out.
struct Session {
  Session() {
    Client::require(cudnnCreate(&handle), "cudnnCreate");
    Client::require(cudnnSetStream(handle, client.stream), "stream");
    for (int salt = 0; salt < 4; ++salt) {
      std::vector<float> bits(kSide * kSide / 2);
      for (int64_t i = 0; i < kSide * kSide; ++i)
        qlora_store_bf16(bits.data(), i, at(salt, i));
      addresses.push_back(client.allocate(bits.size()));
      client.write(addresses.back(), bits);
    }
  }
  static float at(int salt, int64_t i) { return float((i * 7 + salt) % 5) - 2; }

  /// Finalises the operations; returns their plan, which is finalised too.
  Handle plan(std::initializer_list<Handle> operations) {
    for (Handle operation : operations)
      finish(operation);
    Handle graph = make(descriptor::kOperationGraph);
    set(graph, attribute::kGraphOperations, type::kDescriptor, operations);
    set<cudnnHandle_t>(graph, attribute::kGraphHandle, type::kHandle,
                       {handle});
    Handle heuristics = make(descriptor::kEngineHeuristics);
    set<Handle>(heuristics, attribute::kHeuristicsGraph, type::kDescriptor,
                {finish(graph)});
    set<int>(heuristics, attribute::kHeuristicsMode, type::kHeuristicsMode,
             {cudnn_engine::kHeuristicsA});
    Handle configs[] = {make(descriptor::kEngineConfig),
                        make(descriptor::kEngineConfig)};
    int64_t count = 0;
    Client::require(cudnnBackendGetAttribute(
                        finish(heuristics), attribute::kHeuristicsResults,
                        type::kDescriptor, 2, &count, configs),
                    "heuristics");
    Handle made = make(descriptor::kExecutionPlan);
    set<Handle>(made, attribute::kPlanConfig, type::kDescriptor, {configs[1]});
    set<cudnnHandle_t>(made, attribute::kPlanHandle, type::kHandle, {handle});
    return finish(made);
  }
  Handle usualPlan() {
    Handle a = finish(tensor(1, false)), b = finish(tensor(2, false)),
           c = finish(tensor(3, false)), out = finish(tensor(4, false)),
           between = finish(tensor(5, true));
    return plan({product(a, b, between), product(between, c, out)});
  }
  int execute(Handle plan, std::vector<int64_t> ids = {1, 2, 3, 4}) {
    Handle pack = make(descriptor::kVariantPack);
    std::vector<void *> pointers;
    for (const int64_t id : ids)
      pointers.push_back(reinterpret_cast<void *>(addresses[size_t(id - 1)]));
    cudnnBackendSetAttribute(pack, attribute::kPackUniqueIds, type::kInt64,
                             int64_t(ids.size()), ids.data());
    cudnnBackendSetAttribute(pack, attribute::kPackPointers,
                             type::kVoidPointer, int64_t(ids.size()),
                             pointers.data());
    set<void *>(pack, attribute::kPackWorkspace, type::kVoidPointer,
                {nullptr});
    return cudnnBackendExecute(handle, plan, finish(pack));
  }
  /// Returns whether the result is right. Values are small integers, so
  /// rounding affects only the intermediate values, which are bf16.
  bool isRight() {
    const std::vector<float> bits =
        client.read(addresses[3], kSide * kSide / 2);
    float between[kSide * kSide] = {};
    for (int64_t i = 0; i < kSide * kSide; ++i)
      for (int64_t k = 0; k < kSide; ++k)
        between[i] +=
            at(0, i / kSide * kSide + k) * at(1, k * kSide + i % kSide);
    for (int64_t i = 0; i < kSide * kSide; ++i) {
      float sum = 0;
      for (int64_t k = 0; k < kSide; ++k)
        sum += between[i / kSide * kSide + k] * at(2, k * kSide + i % kSide);
      uint16_t rounded;
      qlora_store_bf16(&rounded, 0, sum);
      if (qlora_load_bf16(bits.data(), i) != qlora_load_bf16(&rounded, 0))
        return false;
    }
    return true;
  }

  Client client;
  cudnnHandle_t handle = nullptr;
  std::vector<CUdeviceptr> addresses;
};
} // namespace

TEST(Cudnn, RunsAGraphAtOnceAndCaptured) {
  EXPECT_TRUE(inProcess({}, [] {
    Session session;
    Handle plan = session.usualPlan();
    if (session.execute(plan) || !session.isRight())
      return false;
    const std::vector<float> zeros(kSide * kSide / 2);
    session.client.write(session.addresses[3], zeros);
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    Client::require(cuStreamBeginCapture_v2(session.client.stream, 1), "begin");
    Client::require(session.execute(plan), "execute");
    Client::require(cuStreamEndCapture(session.client.stream, &graph), "end");
    if (session.client.read(session.addresses[3], 1)[0] != 0)
      return false; // a capture runs nothing
    Client::require(cuGraphInstantiateWithFlags(&executable, graph, 0), "make");
    Client::require(cuGraphLaunch(executable, session.client.stream), "launch");
    return session.isRight();
  }));
}

TEST(Cudnn, RefusesDescriptorsThatDoNotFit) {
  EXPECT_TRUE(inProcess({}, [] {
    Session session;
    Handle a = finish(tensor(1, false)), b = tensor(2, false);
    Handle operation = make(descriptor::kMatmulOperation);
    const bool isUnfinished = set<Handle>(operation, attribute::kMatmulB,
                                          type::kDescriptor,
                                          {b}) == kDnnNotFinalized;
    const bool isLate = set<int64_t>(a, attribute::kTensorAlignment,
                                     type::kInt64, {32}) == kDnnBadParam;
    const bool isOfType = set<int>(b, attribute::kTensorAlignment,
                                   type::kDataType, {32}) == kDnnAttributeType;
    set<int64_t>(b, attribute::kTensorStrides, type::kInt64, {1, 1, 1});
    const bool isRank = cudnnBackendFinalize(b) == kDnnBadParam;
    Handle shape = product(a, finish(tensor(3, false, 8)),
                           finish(tensor(4, false)));
    const bool isShape = cudnnBackendFinalize(shape) == kDnnShapeMismatch;
    return isUnfinished && isLate && isOfType && isRank && isShape;
  }));
}

TEST(Cudnn, RefusesAGraphThatReadsBeforeItWrites) {
  EXPECT_TRUE(inProcess({}, [] {
    Session session;
    Handle a = finish(tensor(1, false)), out = finish(tensor(4, false)),
           between = finish(tensor(5, true));
    const std::initializer_list<Handle> operations = {
        finish(product(between, a, out)), finish(product(a, a, between))};
    Handle graph = make(descriptor::kOperationGraph);
    set(graph, attribute::kGraphOperations, type::kDescriptor, operations);
    set<cudnnHandle_t>(graph, attribute::kGraphHandle, type::kHandle,
                       {session.handle});
    return cudnnBackendFinalize(graph) == kDnnBadParam;
  }));
}

TEST(Cudnn, RefusesOperandsThatAreMissingMisalignedOrOutside) {
  EXPECT_TRUE(inProcess({}, [] {
    Session session;
    Handle plan = session.usualPlan();
    const bool isMissing = session.execute(plan, {1, 2, 4}) == kDnnBadParam;
    const CUdeviceptr right = session.addresses[0];
    session.addresses[0] = right + 2;
    const bool isAligned = session.execute(plan) == kDnnMisaligned;
    session.addresses[0] = right + 16;
    const bool isInside = session.execute(plan) == kDnnBadParam;
    session.addresses[0] = session.addresses[3];
    const bool isApart = session.execute(plan) == kDnnBadParam;
    return isMissing && isAligned && isInside && isApart;
  }));
}
