// SPDX-License-Identifier: MIT

// The ops of experts against sums in f64: odd shapes, experts without rows,
// and choices that are equally good.

#include "tests/conformance/KernelCase.h"

#include <algorithm>
#include <numeric>

namespace qlora {
namespace {

constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
constexpr qlora_dtype BF16 = QLORA_DTYPE_BF16;
constexpr qlora_dtype I32 = QLORA_DTYPE_I32;
constexpr qlora_dtype NF4 = QLORA_DTYPE_NF4;

struct Routing {
  int64_t rows, experts, chosen;
  bool overAll;
  int64_t ld() const { return experts + 3; }
};
const Routing kRoutings[] = {{1, 1, 1, false},  {7, 4, 2, false},
                             {7, 4, 2, true},   {300, 9, 9, false},
                             {300, 9, 4, true}, {33, 128, 8, false}};

/// Logits with ties: few different numbers.
void fillLogits(KernelCase &test, const Routing &r) {
  for (int64_t row = 0; row < r.rows; ++row)
    for (int64_t e = 0; e < r.experts; ++e)
      test.set("logits", row * r.ld() + e,
               double((row * 31 + e * e * 7) % 11) / 4 - 1);
}

/// By the definition: sorted, stable.
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

/// The softmax of the logits of a row in f64, 0 where it is not over.
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

/// Experts of 37 choices, of which some have none.
std::vector<int64_t> someChoices(int64_t rows, int64_t experts) {
  std::vector<int64_t> choices;
  for (int64_t i = 0; i < rows; ++i)
    choices.push_back(i * i * 5 % experts);
  return choices;
}

TEST(SortByExpert, KeepsTheOrderOfTokens) {
  for (const std::string &row : allRowsToTest("sort_by_expert"))
    for (int64_t rows : {1, 37, 1000})
      for (int64_t experts : {1, 7, 300}) {
        KernelCase test("sort_by_expert",
                        {{"choices", I32},
                         {"order", I32},
                         {"places", I32},
                         {"offsets", I32}},
                        {{"rows", rows}, {"experts", experts}});
        const auto choices = someChoices(rows, experts);
        for (int64_t i = 0; i < rows; ++i)
          test.set("choices", i, double(choices[i]));
        expectOk(test.run(row));
        std::vector<int64_t> order(static_cast<size_t>(rows));
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(order, [&](int64_t a, int64_t b) {
          return choices[a] < choices[b];
        });
        for (int64_t p = 0; p < rows; ++p) {
          ASSERT_EQ(test.at("order", p), order[p]);
          ASSERT_EQ(test.at("places", order[p]), p);
        }
        for (int64_t e = 0; e <= experts; ++e)
          ASSERT_EQ(test.at("offsets", e),
                    std::ranges::count_if(
                        choices, [&](int64_t choice) { return choice < e; }));
      }
}

TEST(SortByExpert, NamesAnImpossibleExpert) {
  KernelCase test(
      "sort_by_expert",
      {{"choices", I32}, {"order", I32}, {"places", I32}, {"offsets", I32}},
      {{"rows", 2}, {"experts", 3}});
  test.set("choices", 0, 1);
  test.set("choices", 1, 3);
  EXPECT_EQ(test.run("cpu").message(),
            "sort_by_expert: index 1 is 3, not below 3");
}

constexpr int64_t kTokens = 13, kChosen = 3, kSorted = kTokens * kChosen;

/// A permutation of the choices.
int64_t placeOf(int64_t choice) { return (choice * 7 + 5) % kSorted; }

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
              gathers ? test.set("order", placeOf(i), double(i))
                      : test.set("places", i, double(placeOf(i)));
            expectOk(test.run(row));
            EXPECT_TRUE(test.gapsHold("out", gathers ? kSorted : kTokens,
                                      columns, ld));
            const auto factor = [&](int64_t choice) {
              return isWeighted ? test.at("weights", choice) : 1.0;
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
          test.set("places", i, double(placeOf(i)));
        expectOk(test.run(row));
        for (int64_t i = 0; i < kSorted; ++i) {
          double sum = 0;
          for (int64_t c = 0; c < columns; ++c)
            sum += test.at("tokens", i / kChosen * ld + c) *
                   test.at("x", placeOf(i) * ld + c);
          ASSERT_NEAR(test.at("dweights", i), sum,
                      tolerance(F32, sum, columns));
        }
      }
}

// Products --------------------------------------------------------------------

struct Grouped {
  std::vector<int64_t> counts; ///< rows of each group
  int64_t out, in;             ///< of a group's matrix
  qlora_dtype a, w;
  bool isForward, isLast;
  double alpha, beta;
  int64_t gap;

  int64_t m() const {
    return std::accumulate(counts.begin(), counts.end(), int64_t(0));
  }
  int64_t groups() const { return int64_t(counts.size()); }
};

void fillOffsets(KernelCase &test, const Grouped &g) {
  int64_t offset = 0;
  test.set("offsets", 0, 0);
  for (int64_t i = 0; i < g.groups(); ++i)
    test.set("offsets", i + 1, double(offset += g.counts[i]));
}

/// Number (row, column) of group's matrix.
double weightAt(KernelCase &test, const Grouped &g, int64_t group, int64_t row,
                int64_t column) {
  const int64_t index = g.isLast
                            ? (row * g.in + column) * g.groups() + group
                            : (group * g.out + row) * g.in + column;
  if (g.w != NF4)
    return test.at("w", index);
  const auto layout = NF4Layout::of(g.groups() * g.out * g.in, 64, true);
  return NF4Tensor::of(layout, g.in, test.data("w")).element(index);
}

double roundedTo(qlora_dtype type, double value) {
  uint32_t storage = 0;
  storeNumber(type, &storage, 0, value);
  return loadNumber(type, &storage, 0);
}

void checkGrouped(const Grouped &g, const std::string &implementation) {
  const int64_t n = g.isForward ? g.out : g.in, k = g.isForward ? g.in : g.out;
  const int64_t rows = g.isLast ? g.out : g.groups() * g.out;
  const int64_t columns = g.isLast ? g.in * g.groups() : g.in;
  KernelCase test(
      "grouped_matmul",
      {{"a", g.a}, {"w", g.w}, {"offsets", I32}, {"c", g.a}},
      {{"m", g.m()}, {"groups", g.groups()}, {"rows", rows},
       {"columns", columns}, {"lda", k + g.gap}, {"ldc", n + g.gap},
       {"transpose_w", g.isForward}, {"groups_last", g.isLast},
       {"block", g.w == NF4 ? 64 : 0}, {"double_quant", g.w == NF4},
       {"panel_columns", 32}, {"alpha", bits(g.alpha)},
       {"beta", bits(g.beta)}});
  test.fill("a", g.m(), k, k + g.gap, 1);
  if (g.beta != 0)
    test.fill("c", g.m(), n, n + g.gap, 3);
  if (g.w == NF4)
    fillNF4(test.data("w"), NF4Layout::of(rows * columns, 64, true), 5);
  else
    test.fill("w", rows, columns, columns, 5, 0.2);
  fillOffsets(test, g);
  std::vector<double> exact;
  int64_t row = 0;
  for (int64_t group = 0; group < g.groups(); ++group)
    for (int64_t i = 0; i < g.counts[group]; ++i, ++row)
      for (int64_t column = 0; column < n; ++column) {
        double sum = 0;
        for (int64_t at = 0; at < k; ++at)
          sum += test.at("a", row * (k + g.gap) + at) *
                 roundedTo(g.a, g.isForward
                                    ? weightAt(test, g, group, column, at)
                                    : weightAt(test, g, group, at, column));
        const double before =
            g.beta ? g.beta * test.at("c", row * (n + g.gap) + column) : 0;
        exact.push_back(g.alpha * sum + before);
      }
  expectOk(test.run(implementation));
  EXPECT_TRUE(test.gapsHold("c", g.m(), n, n + g.gap));
  for (int64_t i = 0; i < g.m(); ++i)
    for (int64_t column = 0; column < n; ++column)
      ASSERT_NEAR(test.at("c", i * (n + g.gap) + column), exact[i * n + column],
                  tolerance(g.a, exact[i * n + column], k + 1, 2))
          << implementation << " row " << i << " column " << column;
}

TEST(GroupedMatmul, MultipliesEachGroupWithItsMatrix) {
  const std::vector<int64_t> counts[] = {
      {1}, {5, 0, 3}, {0, 0, 33, 1, 2}, {40, 170, 9}};
  const int64_t shapes[][2] = {{1, 1}, {33, 21}, {70, 64}};
  int number = 0;
  for (const auto &count : counts)
    for (const auto &shape : shapes)
      for (const auto &type : {std::pair(F32, F32), std::pair(F32, NF4),
                               std::pair(F32, BF16), std::pair(BF16, BF16),
                               std::pair(BF16, NF4), std::pair(BF16, F32)})
        for (bool isForward : {false, true}) {
          ++number;
          const bool isLast = type.second != NF4 && number % 3 == 0;
          for (const std::string &row : rowsToTest("grouped_matmul"))
            checkGrouped({count, shape[0], shape[1], type.first, type.second,
                          isForward, isLast, number % 4 ? 1.0 : 0.5,
                          number % 5 == 0 ? 1.0 : 0.0, number % 7 < 3 ? 3 : 0},
                         row);
        }
}

TEST(GroupedMatmul, RefusesOffsetsThatDoNotRise) {
  KernelCase test("grouped_matmul",
                  {{"a", F32}, {"w", F32}, {"offsets", I32}, {"c", F32}},
                  {{"m", 4}, {"groups", 2}, {"rows", 2}, {"columns", 1},
                   {"lda", 1}, {"ldc", 1}, {"transpose_w", 1},
                   {"groups_last", 0}, {"block", 0}, {"double_quant", 0},
                   {"panel_columns", 1}, {"alpha", bits(1)},
                   {"beta", bits(0)}});
  for (const auto &[i, offset] : {std::pair(0, 0), {1, 5}, {2, 4}})
    test.set("offsets", i, offset);
  EXPECT_EQ(test.run("onednn").message(),
            "grouped_matmul: offsets do not rise from 0 to 4");
}

void checkGroupedGrad(const Grouped &g, const std::string &implementation) {
  KernelCase test("grouped_weight_grad",
                  {{"dy", g.a}, {"x", g.w}, {"offsets", I32}, {"dw", F32}},
                  {{"m", g.m()}, {"groups", g.groups()}, {"rows", g.out},
                   {"columns", g.in}, {"lddy", g.out + g.gap},
                   {"ldx", g.in + g.gap}, {"groups_last", g.isLast},
                   {"alpha", bits(g.alpha)}, {"beta", bits(g.beta)}});
  test.fill("dy", g.m(), g.out, g.out + g.gap, 1);
  test.fill("x", g.m(), g.in, g.in + g.gap, 2);
  const int64_t size = g.groups() * g.out * g.in;
  if (g.beta != 0)
    test.fill("dw", 1, size, size, 3);
  fillOffsets(test, g);
  std::vector<double> before;
  for (int64_t i = 0; i < size; ++i)
    before.push_back(g.beta ? g.beta * test.at("dw", i) : 0);
  expectOk(test.run(implementation));
  for (int64_t group = 0; group < g.groups(); ++group)
    for (int64_t row = 0; row < g.out; ++row)
      for (int64_t column = 0; column < g.in; ++column) {
        double sum = 0;
        for (int64_t p = int64_t(test.at("offsets", group));
             p < int64_t(test.at("offsets", group + 1)); ++p)
          sum += test.at("dy", p * (g.out + g.gap) + row) *
                 test.at("x", p * (g.in + g.gap) + column);
        const int64_t index =
            g.isLast ? (row * g.in + column) * g.groups() + group
                     : (group * g.out + row) * g.in + column;
        const double exact = g.alpha * sum + before[index];
        ASSERT_NEAR(test.at("dw", index), exact,
                    tolerance(F32, exact, g.m() + 1));
      }
}

TEST(GroupedWeightGrad, SumsOverTheRowsOfEachGroup) {
  int number = 0;
  for (const std::vector<int64_t> &counts :
       {std::vector<int64_t>{1}, {5, 0, 3}, {40, 170, 9}})
    for (const auto &type : {std::pair(F32, F32), std::pair(BF16, BF16),
                             std::pair(F32, BF16), std::pair(BF16, F32)})
      for (bool isLast : {false, true}) {
        ++number;
        for (const std::string &row : rowsToTest("grouped_weight_grad"))
          checkGroupedGrad({counts, 33, 21, type.first, type.second, true,
                            isLast, 0.5, number % 2 ? 0.0 : 1.0, number % 3},
                           row);
      }
}

} // namespace
} // namespace qlora
