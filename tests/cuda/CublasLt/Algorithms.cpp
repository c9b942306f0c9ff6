// SPDX-License-Identifier: MIT

// Algorithms as attributes, and the calls that make, read and check them.

#include "tests/cuda/CublasLt/Algorithms.h"

#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace qlora {
namespace platform {

static constexpr uint64_t kMark = 0x716c6f7261626c61u;
static constexpr uint32_t kAlignedId = 21, kAnyId = 10;
static constexpr uint32_t kMostSplits = 3;
/// Of a split that is added in place: its counters.
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
  return hash | 1; // 0 is none
}

uint64_t hashOf(const Algorithm &algorithm) {
  uint64_t hash = 1;
  for (const uint64_t word : algorithm.words().data)
    hash = mix(hash, word);
  return hash;
}

uint64_t packAlignments(const uint32_t (&alignments)[4]) {
  uint64_t packed = 0;
  for (int i = 0; i < 4; ++i)
    packed |= uint64_t(std::countr_zero(alignments[i])) << (8 * i);
  return packed;
}

cublasLtMatmulAlgo_t Algorithm::words() const {
  cublasLtMatmulAlgo_t algorithm = {{kMark}};
  for (int i = 0; i < kAttributeCount; ++i)
    algorithm.data[1 + i / 4] |= uint64_t(attributes[i] & 0xffff)
                                 << (16 * (i % 4));
  algorithm.data[4] = uint64_t(input) << 8 | uint64_t(output);
  algorithm.data[5] = product;
  algorithm.data[6] = alignments;
  return algorithm;
}

std::optional<Algorithm> Algorithm::read(const cublasLtMatmulAlgo_t &words) {
  if (words.data[0] != kMark)
    return std::nullopt;
  Algorithm algorithm;
  for (int i = 0; i < kAttributeCount; ++i)
    algorithm.attributes[i] =
        words.data[1 + i / 4] >> (16 * (i % 4)) & 0xffff;
  algorithm.input = int(words.data[4] >> 8);
  algorithm.output = int(words.data[4] & 0xff);
  algorithm.product = words.data[5];
  algorithm.alignments = words.data[6];
  return algorithm;
}

uint32_t alignmentOf(const Attributes &attributes, int type) {
  const uint32_t element = type == kCudaR32F ? 4 : 2;
  return attributes[kId] == kAlignedId ? 16 : element;
}

std::string refusalOf(const Attributes &of, const Product &product) {
  const bool isAligned = of[kId] == kAlignedId;
  const bool isTile = isAligned ? of[kTile] == 15 || of[kTile] == 18 ||
                                      of[kTile] == 20
                                : of[kTile] == 1 || of[kTile] == 2;
  if ((!isAligned && of[kId] != kAnyId) || !isTile)
    return fmt::format("no tile {} of algorithm {}", of[kTile], of[kId]);
  const bool isScheme = of[kReduction] == kCublasReductionNone ||
                        of[kReduction] == kCublasReductionInPlace ||
                        of[kReduction] == kCublasReductionComputeType ||
                        of[kReduction] == kCublasReductionOutputType;
  if (!isScheme || of[kSplit] < 1 || of[kSplit] > kMostSplits ||
      (of[kSplit] > 1) != (of[kReduction] != kCublasReductionNone))
    return fmt::format("a split into {} with reduction scheme {}", of[kSplit],
                       of[kReduction]);
  if (of[kSplit] > product.k)
    return fmt::format("a depth of {} split into {}", product.k, of[kSplit]);
  const uint32_t stages = isAligned ? 4 : 0, cluster = isAligned ? 2 : 0;
  if (of[kStages] != stages || of[kClusterShape] != cluster || of[kSwizzle] ||
      of[kCustom] || of[kInnerShape])
    return fmt::format("stages {}, cluster shape {}, swizzle {}, custom option "
                       "{}, inner shape {}",
                       of[kStages], of[kClusterShape], of[kSwizzle],
                       of[kCustom], of[kInnerShape]);
  return "";
}

uint64_t workspaceOf(const Attributes &of, const Product &product) {
  const uint64_t count = uint64_t(product.m * product.n) * of[kSplit];
  switch (of[kReduction]) {
  case kCublasReductionInPlace:
    return kCounterBytes;
  case kCublasReductionComputeType:
    return count * 4;
  case kCublasReductionOutputType:
    return count * (product.d.type == kCudaR32F ? 4 : 2);
  }
  return 0;
}

std::chrono::nanoseconds timeOf(const Attributes &of, const Product &product) {
  uint64_t hash = mix(hashOf(product), settings().blasSpeeds);
  for (const uint32_t value : of)
    hash = mix(hash, value);
  const uint64_t percent =
      of[kReduction] == kCublasReductionInPlace ? 30 : 60 + hash % 90;
  const auto work = uint64_t(product.m * product.n * product.k);
  return std::chrono::nanoseconds((20000 + work / 10) * percent / 100);
}

std::vector<Attributes> algorithmsFor(const Product &product) {
  const auto aligned = [](uint32_t tile, uint32_t split, uint32_t reduction) {
    return Attributes{kAlignedId, tile, split, reduction, 0, 0, 4, 0, 2};
  };
  const auto any = [](uint32_t tile, uint32_t split, uint32_t reduction) {
    return Attributes{kAnyId, tile, split, reduction, 0, 0, 0, 0, 0};
  };
  std::vector<Attributes> all = {
      aligned(18, 2, kCublasReductionComputeType),
      aligned(15, 2, kCublasReductionInPlace),
      any(2, 2, kCublasReductionComputeType),
      aligned(15, 1, kCublasReductionNone),
      aligned(20, 3, kCublasReductionComputeType),
      aligned(18, 1, kCublasReductionNone),
      aligned(18, 2, kCublasReductionOutputType),
      aligned(20, 1, kCublasReductionNone),
      any(1, 1, kCublasReductionNone),
      any(2, 1, kCublasReductionNone)};
  std::erase_if(all, [&](const Attributes &attributes) {
    return !refusalOf(attributes, product).empty();
  });
  return all;
}

static size_t bytesOfAttribute(int attribute) {
  return attribute == kInnerShape || attribute == kClusterShape ? 2 : 4;
}

/// Empty, or what is wrong with the arguments of a get or set call.
static std::string checkAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                  int attribute, const void *value,
                                  size_t bytes) {
  if (!algorithm || !Algorithm::read(*algorithm))
    return "no algorithm";
  if (attribute < 0 || attribute >= kAttributeCount)
    return fmt::format("attribute {}", attribute);
  if (!value || bytes != bytesOfAttribute(attribute))
    return fmt::format("attribute {} has {} bytes", attribute,
                       bytesOfAttribute(attribute));
  return "";
}

} // namespace platform

using namespace platform;

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle, int compute,
                                      int scale, int a, int b, int c, int d,
                                      int id, cublasLtMatmulAlgo_t *algorithm) {
  constexpr const char *kSymbol = "cublasLtMatmulAlgoInit";
  if (const int code = countAndInject(kSymbol))
    return code;
  if (!handle)
    return refuse(kSymbol, kBlasNotInitialized, "no handle");
  if (!algorithm || compute != kCublasCompute32F || scale != kCudaR32F ||
      a != b || c != d)
    return refuse(kSymbol, kBlasInvalidValue, "types that no algorithm has");
  if (uint32_t(id) != kAlignedId && uint32_t(id) != kAnyId)
    return refuse(kSymbol, kBlasInvalidValue,
                  fmt::format("no algorithm {}", id));
  Algorithm made;
  made.attributes[kId] = uint32_t(id);
  made.attributes[kSplit] = 1;
  made.input = a;
  made.output = d;
  *algorithm = made.words();
  return kBlasSuccess;
}

cublasStatus_t
cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algorithm,
                                     int attribute, const void *value,
                                     size_t bytes) {
  constexpr const char *kSymbol = "cublasLtMatmulAlgoConfigSetAttribute";
  if (const int code = countAndInject(kSymbol))
    return code;
  std::string wrong = checkAttribute(algorithm, attribute, value, bytes);
  if (wrong.empty() && attribute == kId)
    wrong = "the id is read only";
  if (!wrong.empty())
    return refuse(kSymbol, kBlasInvalidValue, wrong);
  Algorithm changed = *Algorithm::read(*algorithm);
  uint32_t number = 0;
  std::memcpy(&number, value, bytes);
  if (number > 0xffff)
    return refuse(kSymbol, kBlasInvalidValue,
                  fmt::format("attribute {} of {}", attribute, number));
  changed.attributes[attribute] = number;
  // What was found for one product is another algorithm now.
  changed.product = 0;
  *algorithm = changed.words();
  return kBlasSuccess;
}

cublasStatus_t
cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                     int attribute, void *value, size_t bytes,
                                     size_t *written) {
  constexpr const char *kSymbol = "cublasLtMatmulAlgoConfigGetAttribute";
  if (const int code = countAndInject(kSymbol))
    return code;
  const std::string wrong = checkAttribute(algorithm, attribute, value, bytes);
  if (!wrong.empty())
    return refuse(kSymbol, kBlasInvalidValue, wrong);
  std::memcpy(value, &Algorithm::read(*algorithm)->attributes[attribute],
              bytes);
  if (written)
    *written = bytes;
  return kBlasSuccess;
}

} // namespace qlora
