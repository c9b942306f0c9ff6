// SPDX-License-Identifier: MIT

// Compares the kernels of MoE experts with sums in f64: odd shapes, experts
// without rows, and ties between router logits.

#include "tests/conformance/KernelCase.h"

#include <algorithm>
#include <numeric>

namespace qlora {
namespace {

constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
constexpr qlora_dtype BF16 = QLORA_DTYPE_BF16;
constexpr qlora_dtype I32 = QLORA_DTYPE_I32;

struct Routing {
  int64_t rows, experts, chosen;
  bool overAll;
  int64_t ld() const { return experts + 3; }
};
const Routing kRoutings[] = {{1, 1, 1, false},  {7, 4, 2, false},
                             {7, 4, 2, true},   {300, 9, 9, false},
                             {300, 9, 4, true}, {33, 128, 8, false}};

/// Fills the logits with only eleven distinct values, so that ties occur.
void fillLogits(KernelCase &test, const Routing &r) {
  for (int64_t row = 0; row < r.rows; ++row)
    for (int64_t e = 0; e < r.experts; ++e)
      test.set("logits", row * r.ld() + e,
               double((row * 31 + e * e * 7) % 11) / 4 - 1);
}

/// Returns all experts of a row by descending logit. Ties keep the order of
/// expert indices, as the op requires.
std::vector<int64_t> chosenOf(KernelCase &test, const Routing &r, int64_t row) {
  std::vector<int64_t> experts(static_cast<size_t>(r.experts));
  std::iota(experts.begin(), experts.end(), 0);
  const auto logit = [&](int64_t e) {
    return test.at("logits", row * r.ld() + e);
  };
  std::ranges::stable_sort(
      experts, [&](int64_t a, int64_t b) { return logit(a) > logit(b); });
  return experts;
}

/// Returns the softmax of a row's logits in f64, over all experts or only the
/// chosen ones. Experts outside of the softmax get 0.
std::vector<double> softmaxOf(KernelCase &test, const Routing &r, int64_t row) {
  std::vector<int64_t> experts = chosenOf(test, r, row);
  if (!r.overAll)
    experts.resize(static_cast<size_t>(r.chosen));
  std::vector<double> weights(static_cast<size_t>(r.experts), 0);
  double sum = 0;
  for (int64_t e : experts)
    sum += weights[e] = std::exp(test.at("logits", row * r.ld() + e));
  for (double &weight : weights)
    weight /= sum;
  return weights;
}

TEST(Route, ChoosesTheLargestAndOfEqualsTheFirst) {
  for (const std::string &row : allRowsToTest("route"))
    for (qlora_dtype type : {F32, BF16})
      for (const Routing &r : kRoutings) {
        KernelCase test("route",
                        {{"logits", type}, {"weights", F32}, {"choices", I32}},
                        {{"rows", r.rows},
                         {"experts", r.experts},
                         {"chosen", r.chosen},
                         {"ldl", r.ld()},
                         {"over_all", r.overAll}});
        fillLogits(test, r);
        expectOk(test.run(row));
        for (int64_t n = 0; n < r.rows; ++n) {
          const auto order = chosenOf(test, r, n);
          const auto exact = softmaxOf(test, r, n);
          for (int64_t j = 0; j < r.chosen; ++j) {
            ASSERT_EQ(test.at("choices", n * r.chosen + j), order[j]);
            ASSERT_NEAR(test.at("weights", n * r.chosen + j), exact[order[j]],
                        tolerance(F32, 1, r.experts));
          }
        }
      }
}

TEST(Route, ChoosesNoNaNBeforeANumber) {
  for (const std::string &row : allRowsToTest("route")) {
    KernelCase test("route",
                    {{"logits", F32}, {"weights", F32}, {"choices", I32}},
                    {{"rows", 1}, {"experts", 3}, {"chosen", 2}, {"ldl", 3},
                     {"over_all", 0}});
    test.set("logits", 0, std::nan(""));
    test.set("logits", 1, -5);
    test.set("logits", 2, 1);
    expectOk(test.run(row));
    EXPECT_EQ(test.at("choices", 0), 2);
    EXPECT_EQ(test.at("choices", 1), 1);
  }
}

TEST(RouteGrad, IsTheDerivativeOfTheSoftmax) {
  for (const std::string &row : allRowsToTest("route_grad"))
    for (qlora_dtype type : {F32, BF16})
      for (const Routing &r : kRoutings) {
        KernelCase test("route_grad",
                        {{"logits", type},
                         {"choices", I32},
                         {"dweights", F32},
                         {"dlogits", type}},
                        {{"rows", r.rows},
                         {"experts", r.experts},
                         {"chosen", r.chosen},
                         {"ldl", r.ld()},
                         {"lddl", r.experts + 1},
                         {"over_all", r.overAll}});
        fillLogits(test, r);
        test.fill("dweights", r.rows, r.chosen, r.chosen, 2);
        for (int64_t n = 0; n < r.rows; ++n)
          for (int64_t j = 0; j < r.chosen; ++j)
            test.set("choices", n * r.chosen + j,
                     double(chosenOf(test, r, n)[j]));
        expectOk(test.run(row));
        EXPECT_TRUE(test.gapsHold("dlogits", r.rows, r.experts, r.experts + 1));
        for (int64_t n = 0; n < r.rows; ++n) {
          const auto order = chosenOf(test, r, n);
          const auto w = softmaxOf(test, r, n);
          std::vector<double> dw(static_cast<size_t>(r.experts), 0);
          double mean = 0;
          for (int64_t j = 0; j < r.chosen; ++j) {
            dw[order[j]] = test.at("dweights", n * r.chosen + j);
            mean += w[order[j]] * dw[order[j]];
          }
          for (int64_t e = 0; e < r.experts; ++e)
            ASSERT_NEAR(test.at("dlogits", n * (r.experts + 1) + e),
                        w[e] * (dw[e] - mean), tolerance(type, 1, r.experts));
        }
      }
}

/// Returns an expert per row; some experts are never chosen.
std::vector<int64_t> someChoices(int64_t rows, int64_t experts) {
  std::vector<int64_t> choices;
  for (int64_t i = 0; i < rows; ++i)
    choices.push_back(i * i * 5 % experts);
  return choices;
}

/// Checks sort_by_expert on rank `part` of `ranks`, which have equally many
/// experts each.
void checkSort(const std::string &row, int64_t rows, int64_t experts,
               int64_t ranks, uint32_t part) {
  KernelCase::Types types = {{"choices", I32}, {"order", I32},
                             {"places", I32},  {"sorted", I32},
                             {"offsets", I32}};
  if (ranks > 1)
    types["own_offsets"] = I32;
  KernelCase test("sort_by_expert", types,
                  {{"rows", rows}, {"experts", experts}, {"ranks", ranks}});
  const auto choices = someChoices(rows, experts);
  for (int64_t i = 0; i < rows; ++i)
    test.set("choices", i, double(choices[i]));
  qlora_step_block step = {};
  step.expert_part = part;
  expectOk(test.run(row, nullptr, &step));
  const int64_t own = experts / ranks, first = part * own;
  std::vector<int64_t> order;
  for (int64_t i = 0; i < rows; ++i) {
    if (choices[i] >= first && choices[i] < first + own)
      order.push_back(i);
    else
      ASSERT_EQ(test.at("places", i), -1);
  }
  std::ranges::stable_sort(
      order, [&](int64_t a, int64_t b) { return choices[a] < choices[b]; });
  for (int64_t p = 0; p < rows; ++p) {
    const bool isThere = p < std::ssize(order);
    ASSERT_EQ(test.at("order", p), isThere ? order[p] : -1);
    ASSERT_EQ(test.at("sorted", p), isThere ? choices[order[p]] : first);
    if (isThere)
      ASSERT_EQ(test.at("places", order[p]), p);
  }
  for (int64_t e = 0; e <= experts; ++e) {
    const auto before = std::ranges::count_if(
        order, [&](int64_t i) { return choices[i] < e; });
    ASSERT_EQ(test.at("offsets", e), before);
    if (ranks > 1 && e >= first && e <= first + own)
      ASSERT_EQ(test.at("own_offsets", e - first), before);
  }
}

TEST(SortByExpert, KeepsTheOrderOfTokens) {
  for (const std::string &row : allRowsToTest("sort_by_expert"))
    for (int64_t rows : {1, 37, 1000})
      for (const auto &[experts, ranks] : {std::pair<int64_t, int64_t>{1, 1},
                                           {7, 1},
                                           {300, 1},
                                           {7, 7},
                                           {300, 3}})
        for (uint32_t part = 0; part < ranks; ++part)
          checkSort(row, rows, experts, ranks, part);
}

TEST(SortByExpert, NamesAnImpossibleExpert) {
  KernelCase test("sort_by_expert",
                  {{"choices", I32},
                   {"order", I32},
                   {"places", I32},
                   {"sorted", I32},
                   {"offsets", I32}},
                  {{"rows", 2}, {"experts", 3}, {"ranks", 1}});
  test.set("choices", 0, 1);
  test.set("choices", 1, 3);
  EXPECT_EQ(test.run("cpu").message(),
            "sort_by_expert: index 1 is 3, not below 3");
}

constexpr int64_t kTokens = 13, kChosen = 3, kSorted = kTokens * kChosen;

/// Returns a choice's position after sorting. The test allows any permutation.
int64_t placeOf(int64_t choice) { return (choice * 7 + 5) % kSorted; }
/// Returns whether the chosen expert is on this rank; other choices have no
/// position.
bool isThere(int64_t choice) { return choice % 5 != 3; }

TEST(GatherRows, AndCombineRowsAreTransposes) {
  for (const char *op : {"gather_rows", "combine_rows"})
    for (const std::string &row : allRowsToTest(op))
      for (qlora_dtype type : {F32, BF16})
        for (int64_t columns : {1, 37, 1100})
          for (bool isWeighted : {false, true}) {
            const bool gathers = op == std::string("gather_rows");
            KernelCase::Types types = {{"x", type}, {"out", type}};
            types[gathers ? "order" : "places"] = I32;
            if (isWeighted)
              types["weights"] = F32;
            const int64_t ld = columns + 2;
            KernelCase test(op, types,
                            {{"rows", kTokens},
                             {"chosen", kChosen},
                             {"columns", columns},
                             {"ldx", ld},
                             {"ldo", ld}});
            test.fill("x", gathers ? kTokens : kSorted, columns, ld, 1);
            if (isWeighted)
              test.fill("weights", 1, kSorted, kSorted, 2);
            for (int64_t i = 0; i < kSorted; ++i)
              gathers
                  ? test.set("order", placeOf(i), isThere(i) ? double(i) : -1)
                  : test.set("places", i, isThere(i) ? double(placeOf(i)) : -1);
            expectOk(test.run(row));
            EXPECT_TRUE(test.gapsHold("out", gathers ? kSorted : kTokens,
                                      columns, ld));
            const auto factor = [&](int64_t choice) {
              return isThere(choice) * (isWeighted ? test.at("weights", choice)
                                                   : 1.0);
            };
            for (int64_t c = 0; c < columns; ++c)
              for (int64_t n = 0; n < kTokens; ++n) {
                double sum = 0;
                for (int64_t i = n * kChosen; i < (n + 1) * kChosen; ++i) {
                  const int64_t at = placeOf(i) * ld + c;
                  if (!gathers) {
                    sum += factor(i) * test.at("x", at);
                    continue;
                  }
                  const double exact = factor(i) * test.at("x", n * ld + c);
                  ASSERT_NEAR(test.at("out", at), exact,
                              tolerance(type, exact, 1));
                }
                if (!gathers)
                  ASSERT_NEAR(test.at("out", n * ld + c), sum,
                              tolerance(type, sum, kChosen));
              }
          }
}

TEST(ChoiceGrad, IsTheProductOfTokenAndRow) {
  for (const std::string &row : allRowsToTest("choice_grad"))
    for (qlora_dtype type : {F32, BF16})
      for (int64_t columns : {1, 37, 1100}) {
        const int64_t ld = columns + 2;
        KernelCase test("choice_grad",
                        {{"tokens", type},
                         {"x", type},
                         {"places", I32},
                         {"dweights", F32}},
                        {{"rows", kTokens},
                         {"chosen", kChosen},
                         {"columns", columns},
                         {"ldt", ld},
                         {"ldx", ld}});
        test.fill("tokens", kTokens, columns, ld, 1);
        test.fill("x", kSorted, columns, ld, 2);
        for (int64_t i = 0; i < kSorted; ++i)
          test.set("places", i, isThere(i) ? double(placeOf(i)) : -1);
        expectOk(test.run(row));
        for (int64_t i = 0; i < kSorted; ++i) {
          double sum = 0;
          for (int64_t c = 0; isThere(i) && c < columns; ++c)
            sum += test.at("tokens", i / kChosen * ld + c) *
                   test.at("x", placeOf(i) * ld + c);
          ASSERT_NEAR(test.at("dweights", i), sum,
                      tolerance(F32, sum, columns));
        }
      }
}

TEST(TransposeRows, PutsWhatLiesInTurnsSideBySide) {
  for (const std::string &row : allRowsToTest("transpose_rows"))
    for (qlora_dtype type : {F32, BF16})
      for (const auto &[outer, inner] :
           {std::pair<int64_t, int64_t>{1, 1}, {37, 2}, {3, 7}, {600, 2}}) {
        const int64_t columns = outer * inner, ldx = columns + 3,
                      ldo = columns + 1;
        KernelCase test("transpose_rows", {{"x", type}, {"out", type}},
                        {{"rows", kTokens},
                         {"columns", columns},
                         {"inner", inner},
                         {"ldx", ldx},
                         {"ldo", ldo}});
        test.fill("x", kTokens, columns, ldx, 1);
        expectOk(test.run(row));
        EXPECT_TRUE(test.gapsHold("out", kTokens, columns, ldo));
        for (int64_t n = 0; n < kTokens; ++n)
          for (int64_t i = 0; i < outer; ++i)
            for (int64_t j = 0; j < inner; ++j)
              ASSERT_EQ(test.at("out", n * ldo + j * outer + i),
                        test.at("x", n * ldx + i * inner + j));
      }
}

} // namespace
} // namespace qlora
