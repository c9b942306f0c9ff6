// SPDX-License-Identifier: MIT

// The algorithms of the cuBLASLt look-alike, and the attributes that each of
// them reports.

#include "tests/cuda/CublasLt/Algorithms.h"

#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

namespace qlora {
namespace platform {

static constexpr uint64_t kMark = 0x716c6f7261000000u;
static constexpr uint32_t kAlignedId = 21, kAnyId = 10, kOpaqueId = 66;
static constexpr uint32_t kMostSplits = 3;
/// Bytes of the counters in the workspace, for the reduction scheme "in place".
static constexpr uint64_t kCounterBytes = 64;

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u; // the golden ratio
  return hash ^ hash >> 29;
}

uint64_t hashOf(const Product &p) {
  uint64_t hash = 1;
  for (const uint64_t value :
       {uint64_t(p.m), uint64_t(p.n), uint64_t(p.k),
        uint64_t(p.description.transposeA), uint64_t(p.description.transposeB),
        uint64_t(p.a.leading), uint64_t(p.b.leading), uint64_t(p.c.leading),
        uint64_t(p.d.leading), uint64_t(p.a.type), uint64_t(p.d.type)})
    hash = mix(hash, value);
  return hash;
}

uint64_t hashOf(const Algorithm &algorithm) {
  uint64_t hash = 1;
  for (const uint64_t word : algorithm.bytes().data)
    hash = mix(hash, word);
  return hash;
}

uint64_t packAlignments(const uint32_t (&alignments)[4]) {
  uint64_t packed = 0;
  for (int i = 0; i < 4; ++i)
    packed |= uint64_t(std::countr_zero(alignments[i])) << (8 * i);
  return packed;
}

static uint64_t markOfVersion() {
  return kMark + uint64_t(settings().blasVersion);
}

cublasLtMatmulAlgo_t Algorithm::bytes() const {
  Algorithm marked = *this;
  marked.mark = markOfVersion();
  return std::bit_cast<cublasLtMatmulAlgo_t>(marked);
}

std::optional<Algorithm> Algorithm::read(const cublasLtMatmulAlgo_t *bytes) {
  if (!bytes)
    return std::nullopt;
  const auto algorithm = std::bit_cast<Algorithm>(*bytes);
  return algorithm.mark == markOfVersion() ? std::optional(algorithm)
                                           : std::nullopt;
}

uint32_t alignmentOf(const Algorithm &of, int type) {
  const uint32_t element = type == kCudaR32F ? 4 : 2;
  return of.id == kAnyId ? element : 16;
}

static bool hasTile(const Algorithm &of) {
  switch (of.id) {
  case kAlignedId:
    return of.tile == 15 || of.tile == 18 || of.tile == 20;
  case kAnyId:
    return of.tile == 1 || of.tile == 2;
  }
  return of.id == kOpaqueId && of.tile == 0;
}

std::string refusalOf(const Algorithm &of, const Product &product) {
  const bool isOpaque = of.id == kOpaqueId;
  if (!hasTile(of) || isOpaque != (of.kernel != 0) ||
      of.kernel > kUncapturedKernel)
    return fmt::format("no tile {} or kernel {} of algorithm {}", of.tile,
                       of.kernel, of.id);
  const bool isScheme = of.reduction == kCublasReductionNone ||
                        of.reduction == kCublasReductionInPlace ||
                        of.reduction == kCublasReductionComputeType ||
                        of.reduction == kCublasReductionOutputType;
  if (!isScheme || of.split < 1 || of.split > (isOpaque ? 1 : kMostSplits) ||
      (of.split > 1) != (of.reduction != kCublasReductionNone))
    return fmt::format("a split into {} with reduction scheme {}", of.split,
                       of.reduction);
  if (of.split > product.k)
    return fmt::format("a depth of {} split into {}", product.k, of.split);
  const uint32_t stages = of.id == kAlignedId ? 4 : 0;
  const uint32_t cluster = of.id == kAlignedId ? 2 : 0;
  if (of.stages != stages || of.clusterShape != cluster || of.swizzle ||
      of.custom || of.innerShape)
    return fmt::format("stages {}, cluster shape {}, swizzle {}, custom option "
                       "{}, inner shape {}",
                       of.stages, of.clusterShape, of.swizzle, of.custom,
                       of.innerShape);
  return "";
}

uint64_t workspaceOf(const Algorithm &of, const Product &product) {
  const uint64_t count = uint64_t(product.m * product.n) * of.split;
  switch (of.reduction) {
  case kCublasReductionInPlace:
    return kCounterBytes;
  case kCublasReductionComputeType:
    return count * 4;
  case kCublasReductionOutputType:
    return count * (product.d.type == kCudaR32F ? 4 : 2);
  }
  return 0;
}

/// Returns the algorithm's simulated time as a percentage of a base time.
static uint64_t percentOf(const Algorithm &of, uint64_t hash) {
  if (of.reduction == kCublasReductionInPlace ||
      of.kernel >= kUnsupportedKernel)
    return 30;
  return of.id == kOpaqueId ? 50 + hash % 40 : 60 + hash % 90;
}

std::chrono::nanoseconds timeOf(const Algorithm &of, const Product &product) {
  uint64_t hash = mix(hashOf(product), settings().blasSpeeds);
  for (const uint64_t value : {uint64_t(of.id), uint64_t(of.tile),
                               uint64_t(of.split), uint64_t(of.reduction),
                               of.kernel})
    hash = mix(hash, value);
  const auto work = uint64_t(product.m * product.n * product.k);
  return std::chrono::nanoseconds((20000 + work / 10) * percentOf(of, hash) /
                                  100);
}

static Algorithm splitAlgorithm(uint32_t id, uint32_t tile, uint32_t split,
                                uint32_t reduction) {
  Algorithm algorithm;
  algorithm.id = id;
  algorithm.tile = tile;
  algorithm.split = split;
  algorithm.reduction = reduction;
  if (id == kAlignedId) {
    algorithm.stages = 4;
    algorithm.clusterShape = 2;
  }
  return algorithm;
}

static Algorithm opaqueAlgorithm(uint64_t kernel) {
  Algorithm algorithm;
  algorithm.id = kOpaqueId;
  algorithm.kernel = kernel;
  return algorithm;
}

std::vector<Algorithm> algorithmsFor(const Product &product) {
  std::vector<Algorithm> all = {
      splitAlgorithm(kAlignedId, 18, 2, kCublasReductionComputeType),
      splitAlgorithm(kAlignedId, 15, 1, kCublasReductionNone),
      opaqueAlgorithm(kUnsupportedKernel),
      splitAlgorithm(kAlignedId, 15, 2, kCublasReductionInPlace),
      opaqueAlgorithm(kSilentKernel),
      splitAlgorithm(kAnyId, 2, 2, kCublasReductionComputeType),
      opaqueAlgorithm(kUncapturedKernel),
      opaqueAlgorithm(kPlainKernel),
      splitAlgorithm(kAlignedId, 20, 3, kCublasReductionComputeType),
      splitAlgorithm(kAlignedId, 18, 1, kCublasReductionNone),
      splitAlgorithm(kAlignedId, 18, 2, kCublasReductionOutputType),
      splitAlgorithm(kAlignedId, 20, 1, kCublasReductionNone),
      splitAlgorithm(kAnyId, 1, 1, kCublasReductionNone),
      splitAlgorithm(kAnyId, 2, 1, kCublasReductionNone)};
  std::erase_if(all, [&](const Algorithm &algorithm) {
    return !refusalOf(algorithm, product).empty();
  });
  for (Algorithm &algorithm : all)
    algorithm.product = hashOf(product);
  return all;
}

} // namespace platform

using namespace platform;

namespace {
/// Offset and size in bytes of an attribute in Algorithm.
struct Place {
  size_t offset, bytes;
};
} // namespace

/// Indexed by cublasLtMatmulAlgoConfigAttributes_t.
static constexpr Place kPlaces[] = {
    {offsetof(Algorithm, id), 4},         {offsetof(Algorithm, tile), 4},
    {offsetof(Algorithm, split), 4},      {offsetof(Algorithm, reduction), 4},
    {offsetof(Algorithm, swizzle), 4},    {offsetof(Algorithm, custom), 4},
    {offsetof(Algorithm, stages), 4},     {offsetof(Algorithm, innerShape), 2},
    {offsetof(Algorithm, clusterShape), 2}};

cublasStatus_t
cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *bytes,
                                     int attribute, void *value, size_t size,
                                     size_t *written) {
  constexpr const char *kSymbol = "cublasLtMatmulAlgoConfigGetAttribute";
  if (const int code = countAndInject(kSymbol))
    return code;
  const std::optional<Algorithm> algorithm = Algorithm::read(bytes);
  if (!algorithm)
    return refuse(kSymbol, kBlasInvalidValue, "no algorithm of this version");
  if (attribute < 0 || size_t(attribute) >= std::size(kPlaces))
    return refuse(kSymbol, kBlasInvalidValue,
                  fmt::format("attribute {}", attribute));
  const Place &place = kPlaces[attribute];
  if (!value || size != place.bytes)
    return refuse(
        kSymbol, kBlasInvalidValue,
        fmt::format("attribute {} has {} bytes", attribute, place.bytes));
  if (algorithm->kernel == kSilentKernel)
    return kBlasNotSupported;
  std::memcpy(value, reinterpret_cast<const char *>(bytes) + place.offset,
              size);
  if (written)
    *written = size;
  return kBlasSuccess;
}

} // namespace qlora
