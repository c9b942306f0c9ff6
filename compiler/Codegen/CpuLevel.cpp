// SPDX-License-Identifier: MIT

// Lists three levels, each with the features that the previous level lacks.

#include "compiler/Codegen/CpuLevel.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/TargetParser/Host.h"

#include <vector>

using namespace qlora;

namespace {

/// A feature's names in LLVM and in /proc/cpuinfo.
struct Feature {
  const char *ofLlvm, *ofLinux;
};

struct Level {
  const char *march;
  std::vector<Feature> adds;
};

} // namespace

static const std::vector<Level> &levels() {
  static const std::vector<Level> kLevels = {
      {"x86-64-v2",
       {{"cx16", "cx16"}, {"sahf", "lahf_lm"}, {"popcnt", "popcnt"},
        {"sse3", "pni"}, {"ssse3", "ssse3"}, {"sse4.1", "sse4_1"},
        {"sse4.2", "sse4_2"}}},
      {"x86-64-v3",
       {{"avx", "avx"}, {"avx2", "avx2"}, {"bmi", "bmi1"}, {"bmi2", "bmi2"},
        {"f16c", "f16c"}, {"fma", "fma"}, {"lzcnt", "abm"},
        {"movbe", "movbe"}, {"xsave", "xsave"}}},
      {"x86-64-v4",
       {{"avx512f", "avx512f"}, {"avx512bw", "avx512bw"},
        {"avx512cd", "avx512cd"}, {"avx512dq", "avx512dq"},
        {"avx512vl", "avx512vl"}}},
  };
  return kLevels;
}

static bool hostHas(const Level &level) {
  static const llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
  return llvm::all_of(level.adds, [&](const Feature &feature) {
    return features.lookup(feature.ofLlvm);
  });
}

StatusOr<CpuLevel> qlora::cpuLevel(const std::string &march) {
  CpuLevel found;
  for (const Level &level : levels()) {
    if (march == "native" && !hostHas(level))
      break;
    found.march = level.march;
    for (const Feature &feature : level.adds)
      found.features += (found.features.empty() ? "" : ",") +
                        std::string(feature.ofLinux);
    if (march == level.march)
      return found;
  }
  if (march == "native" && !found.march.empty())
    return found;
  if (march == "native")
    return Status::unavailable(
        "--march native: this CPU is below x86-64-v2; give "
        "the training machine's level, as --march x86-64-v3");
  return Status::invalid("--march '{}' is not one of native, x86-64-v2, "
                         "x86-64-v3 and x86-64-v4", march);
}
