// SPDX-License-Identifier: MIT

// PEFT's matching, case by case. The expected values are what
// check_target_module_exists and get_pattern_key of peft 0.21 return.

#include "runtime/Options/AdapterTargets.h"

#include <gtest/gtest.h>

#include "runtime/Base/JsonText.h"

using namespace qlora;

namespace {

constexpr const char *kQuery = "model.layers.0.self_attn.q_proj";
constexpr const char *kQuery10 = "model.layers.10.self_attn.q_proj";
constexpr const char *kDown = "model.layers.1.mlp.down_proj";

struct TargetCase {
  const char *json;
  const char *path;
  bool matches;
};

class TargetsTest : public testing::TestWithParam<TargetCase> {};

TEST_P(TargetsTest, MatchesAsPeft) {
  Targets targets;
  std::string error;
  ASSERT_TRUE(targets.parse(GetParam().json, error)) << error;
  EXPECT_EQ(targets.matches(GetParam().path), GetParam().matches)
      << GetParam().json << " " << GetParam().path;
}

INSTANTIATE_TEST_SUITE_P(
    Lists, TargetsTest,
    testing::Values(
        // A name may be the path's last component, its last few, or all of
        // them.
        TargetCase{R"(["q_proj"])", kQuery, true},
        TargetCase{R"(["self_attn.q_proj"])", kQuery, true},
        TargetCase{R"(["model.layers.0.self_attn.q_proj"])", kQuery, true},
        TargetCase{R"(["model.layers.0.self_attn.q_proj"])", kQuery10, false},
        TargetCase{R"(["0.self_attn.q_proj"])", kQuery10, false},
        TargetCase{R"(["k_proj", "q_proj"])", kQuery, true},
        // A name must match complete components, at the end of the path.
        TargetCase{R"(["proj"])", kQuery, false},
        TargetCase{R"(["_proj"])", kQuery, false},
        TargetCase{R"(["self_attn"])", kQuery, false},
        TargetCase{R"(["model"])", kQuery, false},
        TargetCase{R"([".q_proj"])", kQuery, false},
        // Names in a list are not regular expressions, and are case-sensitive.
        TargetCase{R"([".*q_proj"])", kQuery, false},
        TargetCase{R"(["Q_proj"])", kQuery, false},
        TargetCase{R"([""])", kQuery, false},
        TargetCase{R"(["all-linear"])", kQuery, false},
        TargetCase{R"(["q_proj"])", "q_proj", true}));

INSTANTIATE_TEST_SUITE_P(
    Patterns, TargetsTest,
    testing::Values(
        // The whole path must match.
        TargetCase{R"("q_proj")", kQuery, false},
        TargetCase{R"(".*q_proj")", kQuery, true},
        TargetCase{R"(".*\\.q_proj")", kQuery, true},
        TargetCase{R"(".*\\.q_proj")", "q_proj", false},
        TargetCase{R"("model\\.layers\\.\\d\\.self_attn\\.q_proj")", kQuery10,
                   false},
        TargetCase{R"("model\\.layers\\.\\d+\\.self_attn\\.q_proj")", kQuery10,
                   true},
        TargetCase{R"(".*\\.(q|k|v)_proj")", kQuery, true},
        TargetCase{R"(".*\\.(q|k|v)_proj")", kDown, false},
        // Alternatives need no parentheses: if the first one does not match the
        // complete path, the next one is tried.
        TargetCase{R"(".*q_proj|.*down_proj")", kDown, true},
        TargetCase{R"("model.*q|model.*q_proj")", kQuery, true},
        TargetCase{R"("(?!.*layers\\.10).*q_proj")", kQuery10, false},
        TargetCase{R"("(?!.*layers\\.10).*q_proj")", kQuery, true},
        TargetCase{R"("^model.*_proj$")", kQuery, true},
        TargetCase{R"("")", kQuery, false},
        TargetCase{R"("all-linear")", kDown, true},
        TargetCase{R"("ALL-Linear")", kDown, true},
        TargetCase{R"("all_linear")", kDown, false}));

struct PatternCase {
  const char *json;
  const char *path;
  std::optional<double> value;
};

class ValuePatternsTest : public testing::TestWithParam<PatternCase> {};

TEST_P(ValuePatternsTest, LooksUpAsPeft) {
  ValuePatterns patterns;
  std::string error;
  ASSERT_TRUE(patterns.parse(GetParam().json, error)) << error;
  EXPECT_EQ(patterns.lookup(GetParam().path), GetParam().value)
      << GetParam().json << " " << GetParam().path;
}

INSTANTIATE_TEST_SUITE_P(
    All, ValuePatternsTest,
    testing::Values(
        PatternCase{R"({})", kQuery, std::nullopt},
        PatternCase{R"({"q_proj": 4})", kQuery, 4},
        PatternCase{R"({"q_proj": 4})", kDown, std::nullopt},
        PatternCase{R"({"proj": 4})", kQuery, std::nullopt},
        PatternCase{R"({".*proj": 4})", kQuery, 4},
        PatternCase{R"({"layers.0.self_attn.q_proj": 4})", kQuery, 4},
        // A key starts after a dot, or is anchored at the start of the path.
        PatternCase{R"({"0.self_attn.q_proj": 4})", kQuery10, std::nullopt},
        PatternCase{R"({"^model.*q_proj": 4})", kQuery, 4},
        PatternCase{R"({"^self_attn.*": 4})", kQuery, std::nullopt},
        PatternCase{R"({"layers.0": 4})", kQuery, std::nullopt},
        PatternCase{R"({"layers\\.0\\..*": 4})", kQuery, 4},
        PatternCase{R"({"layers\\.0\\..*": 4})", kQuery10, std::nullopt},
        // The first matching key counts, in the order of the text.
        PatternCase{R"({".*proj": 4, "q_proj": 8})", kQuery, 4},
        PatternCase{R"({"q_proj": 8, ".*proj": 4})", kQuery, 8},
        PatternCase{R"({"z": 1, "a|q_proj": 8})", kQuery, 8},
        PatternCase{R"({"q_proj": 0.5})", kQuery, 0.5}));

/// layers_to_transform and layers_pattern, as in check_target_module_exists.
TEST(Targets, LeavesTheLayersThatAreNamed) {
  struct {
    const char *targets, *layers, *patterns, *path;
    bool matches;
  } cases[] = {
      {R"(["q_proj"])", "[0]", "[]", kQuery, true},
      {R"(["q_proj"])", "[0]", "[]", kQuery10, false},
      {R"(["q_proj"])", "[1, 10]", "[]", kQuery10, true},
      {R"(["q_proj"])", "[]", "[]", kQuery10, true},
      // The layer is the last number that another component follows.
      {R"(["q_proj"])", "[2]", "[]", "model.h.1.x.2.q_proj", true},
      {R"(["q_proj"])", "[1]", "[]", "model.h.1.x.2.q_proj", false},
      {R"(["q_proj"])", "[1]", R"(["h"])", "model.h.1.x.2.q_proj", true},
      {R"(["q_proj"])", "[1]", R"(["blocks", "h"])", "model.h.1.q_proj", true},
      {R"(["q_proj"])", "[1]", R"j(["(a|h)"])j", "model.h.1.q_proj", true},
      {R"(["q_proj"])", "[0]", R"(["h"])", kQuery, false},
      // PEFT finds no layer: the first path has no number, the second only one
      // component before the number.
      {R"(["embed_tokens"])", "[0]", "[]", "model.embed_tokens", false},
      {R"(["q_proj"])", "[1]", "[]", "h.1.q_proj", false},
      // layers_to_transform does not apply to a target given by its full path.
      {R"(["model.layers.1.mlp.down_proj"])", "[0]", "[]", kDown, true},
  };
  for (const auto &test : cases) {
    Targets targets;
    std::string error;
    ASSERT_TRUE(targets.parse(test.targets, error)) << error;
    ASSERT_TRUE(targets.parseLayers(test.layers, test.patterns, error))
        << error;
    EXPECT_EQ(targets.matches(test.path), test.matches)
        << test.layers << test.patterns << test.path;
  }
}

TEST(Targets, RefusesLayersWithoutAList) {
  for (const auto &[json, layers, patterns, wanted] :
       {std::tuple(R"("all-linear")", "[0]", "[]", "layers_to_transform needs"),
        std::tuple(R"(".*q_proj")", "[0]", "[]", "layers_to_transform needs"),
        std::tuple(R"(["q"])", "[]", R"(["h"])", "layers_pattern needs "),
        std::tuple(R"(["q"])", "[0]", R"j(["("])j", "'(' is not a regular ")}) {
    Targets targets;
    std::string error;
    ASSERT_TRUE(targets.parse(json, error)) << error;
    EXPECT_FALSE(targets.parseLayers(layers, patterns, error));
    EXPECT_EQ(error.find(wanted), 0u) << error;
  }
}

TEST(Targets, SaysWhatIsWrong) {
  struct {
    const char *json;
    const char *error;
  } cases[] = {
      {R"([])", "expects a list of module names, a regular expression or "
                "\"all-linear\", but got []"},
      {R"(7)", "expects a list of module names, a regular expression or "
               "\"all-linear\", but got 7"},
      {R"(q_proj)", "expects a list of module names, a regular expression or "
                    "\"all-linear\", but got q_proj"},
      {R"(["q_proj", 7])", "expects names of modules, but got 7"},
      // Syntax that ECMAScript lacks, or reads differently.
      {R"("(?i)q_proj")", "'(?i)q_proj' is not a regular expression: "},
      {R"("(?P<a>q)_proj")", "'(?P<a>q)_proj' is not a regular expression: "},
      {R"("(?<=\\.)q_proj")", "is not a regular expression: "},
      {R"(".*q_proj\\Z")", "uses Python syntax that is not supported here"},
      {R"(".*[[:alpha:]]")", "uses Python syntax that is not supported here"},
      {R"("*_proj")", "'*_proj' is not a regular expression: "},
  };
  for (const auto &test : cases) {
    Targets targets;
    std::string error;
    EXPECT_FALSE(targets.parse(test.json, error)) << test.json;
    EXPECT_NE(error.find(test.error), std::string::npos)
        << test.json << ": " << error;
  }
}

TEST(ValuePatterns, SaysWhatIsWrong) {
  ValuePatterns patterns;
  std::string error;
  EXPECT_FALSE(patterns.parse("[4]", error));
  EXPECT_EQ(error, "expects an object of module patterns, but got [4]");
  EXPECT_FALSE(patterns.parse(R"({"q_proj": "4"})", error));
  EXPECT_EQ(error, "expects a number for 'q_proj', but got \"4\"");
  EXPECT_FALSE(patterns.parse(R"({"(": 4})", error));
  EXPECT_EQ(error.find("'(' is not a regular expression"), 0u);
}

TEST(ValuePatterns, FindsWhatIsNoRank) {
  for (const char *json : {R"({"a": 8, "q": 2.5})", R"({"q": 0})",
                           R"({"q": -4})", R"({"q": 1e300})"}) {
    ValuePatterns patterns;
    std::string error;
    ASSERT_TRUE(patterns.parse(json, error));
    ASSERT_TRUE(patterns.findNoRank().has_value()) << json;
    EXPECT_EQ(patterns.findNoRank()->first, "q");
  }
  ValuePatterns patterns;
  std::string error;
  ASSERT_TRUE(patterns.parse(R"({"q": 8, "k": 1})", error));
  EXPECT_FALSE(patterns.findNoRank().has_value());
}

// The expected values are what LayerNamePattern in axolotl's utils/freeze.py
// returns.
TEST(ParameterPatterns, MatchFromTheStartWithPlainDots) {
  const auto matches = [](const char *pattern, const char *name) {
    ParameterPatterns patterns;
    std::string error;
    EXPECT_TRUE(patterns.parse(dumpJson(nlohmann::json{pattern}), error))
        << error;
    return patterns.matches(name);
  };
  EXPECT_TRUE(matches("model.layers.1.mlp", "model.layers.1.mlp.up.weight"));
  EXPECT_TRUE(matches("^lm_head.weight$", "lm_head.weight"));
  EXPECT_FALSE(matches("^lm_head.weight$", "lm_head.weights"));
  EXPECT_FALSE(matches("layers.1", "model.layers.1.mlp.up.weight"));
  EXPECT_TRUE(matches(".+.layers.1[0-9]", "model.layers.12.mlp.up.weight"));
  EXPECT_FALSE(matches("model.layers", "modelxlayers"));
  EXPECT_TRUE(matches("model.language_model.*", "model.language_model.norm"));
  EXPECT_FALSE(matches("model.*norm", "model.language_model.norm"));
  EXPECT_TRUE(matches("(.+)?norm", "model.norm.weight"));
}

TEST(ParameterPatterns, SayWhatIsWrong) {
  ParameterPatterns patterns;
  std::string error;
  EXPECT_FALSE(patterns.parse(R"(["model.embed.weight$[:32000]"])", error));
  EXPECT_EQ(error, "'model.embed.weight$[:32000]' chooses rows of a weight, "
                   "which is not supported. Fix: remove the range in [], to "
                   "train all rows");
  EXPECT_FALSE(patterns.parse(R"(["("])", error));
  EXPECT_EQ(error.find("'(' is not a regular expression"), 0u);
  ParameterPatterns two;
  ASSERT_TRUE(two.parse(R"(["a", "b"])", error));
  EXPECT_TRUE(two.matches("abc"));
  EXPECT_EQ(two.unmatched(), std::vector<std::string>{"b"});
}

TEST(SavedModules, AreWholeComponents) {
  EXPECT_TRUE(isSavedModule("lm_head", {"lm_head"}));
  EXPECT_TRUE(isSavedModule(kDown, {"mlp"}));
  EXPECT_TRUE(isSavedModule(kDown, {"embed", "mlp.down_proj"}));
  EXPECT_TRUE(isSavedModule(kDown, {"model"}));
  EXPECT_FALSE(isSavedModule(kDown, {"ml"}));
  EXPECT_FALSE(isSavedModule(kDown, {"proj"}));
  EXPECT_FALSE(isSavedModule(kDown, {"mlp.up_proj"}));
  EXPECT_FALSE(isSavedModule(kDown, {}));
}

} // namespace
