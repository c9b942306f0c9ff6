// SPDX-License-Identifier: MIT

// cache_rows and cached_attention: compares all implementations with the
// reference, and the bits of a token's result alone and among other tokens.
// Entries that no token sees hold NaN.

#include "tests/conformance/KernelCase.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace qlora {
namespace {

constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
constexpr qlora_dtype BF16 = QLORA_DTYPE_BF16;
constexpr qlora_dtype F16 = QLORA_DTYPE_F16;
constexpr qlora_dtype I32 = QLORA_DTYPE_I32;
constexpr qlora_dtype I8 = QLORA_DTYPE_I8;

/// kTexts: each sequence has consecutive tokens of one text, then padding.
/// kScattered: each token has a random slot, and a random or the next position.
enum class Layout { kTexts, kScattered };

struct Cached {
  int64_t batch, length, slots, entries, heads, keyHeads, dim, window;
  int64_t latest; ///< maximum position of a sequence's first token
  qlora_dtype dtype, cache;
  int64_t gap = 0;
  double cap = 0;
  bool hasSinks = false;
  Layout layout = Layout::kTexts;

  int64_t tokens() const { return batch * length; }
  int64_t width() const { return heads * dim; }
  int64_t ld() const { return width() + gap; }
  int64_t keyWidth() const { return keyHeads * dim; }
  int64_t cacheRows() const { return slots * entries; }
  /// Returns the number of positions that a token sees at most.
  int64_t span() const { return window == 0 ? entries : window; }
};

std::ostream &operator<<(std::ostream &out, const Cached &c) {
  return out << "B" << c.batch << " T" << c.length << " S" << c.slots << " E"
             << c.entries << " H" << c.heads << "/" << c.keyHeads << " D"
             << c.dim << " window " << c.window << " latest " << c.latest << " "
             << dtypeName(c.dtype) << " " << dtypeName(c.cache) << " cap "
             << c.cap << (c.hasSinks ? " sinks" : "");
}

const Cached kCases[] = {
    {1, 1, 1, 1, 1, 1, 1, 0, 0, F32, F32},
    // Decoding: ragged positions of up to five ranges, in random slots.
    {3, 1, 5, 600, 4, 2, 16, 0, 590, F32, F32},
    {4, 1, 4, 300, 8, 2, 128, 0, 299, BF16, BF16, 3},
    {2, 1, 3, 260, 4, 1, 64, 0, 259, BF16, F16, 8},
    {2, 1, 2, 200, 2, 1, 256, 0, 199, BF16, BF16},
    {5, 1, 9, 140, 7, 1, 80, 0, 139, F32, BF16, 1},
    {3, 1, 3, 129, 5, 5, 37, 0, 128, F32, F16, 2},
    {2, 1, 2, 150, 9, 1, 100, 0, 149, BF16, F32},
    {2, 1, 2, 70, 6, 2, 264, 0, 69, F32, BF16, 4},
    {2, 1, 3, 40, 2, 2, 520, 0, 39, BF16, BF16, 8},
    // From 256 blocks on, a block processes all ranges.
    {40, 1, 41, 300, 8, 8, 8, 0, 299, F32, F32},
    {24, 1, 30, 290, 24, 12, 40, 0, 289, BF16, BF16, 0, 0, true},
    {70, 1, 70, 270, 16, 4, 3, 0, 269, F32, F16, 1, 0.7, true},
    // Prompts, some of which continue a text.
    {1, 37, 1, 64, 4, 4, 8, 0, 0, F32, F32},
    {3, 9, 4, 400, 2, 1, 24, 0, 380, F32, F32, 5},
    {2, 21, 6, 200, 6, 2, 64, 0, 170, BF16, BF16, 8},
    {2, 13, 2, 150, 3, 3, 96, 0, 130, BF16, F16},
    {1, 10, 2, 180, 8, 1, 192, 0, 170, F32, BF16},
    {1, 18, 1, 30, 2, 2, 300, 0, 12, F32, F32, 1},
    {4, 67, 5, 140, 1, 1, 5, 0, 70, F32, F32, 2, 0, true},
    // Rings that wrap. The first has the fewest entries that are allowed.
    {2, 1, 3, 7, 2, 1, 12, 7, 100, F32, F32, 1},
    {3, 8, 3, 27, 4, 2, 16, 20, 900, F32, BF16},
    {2, 5, 4, 300, 4, 4, 64, 150, 1000, BF16, BF16, 0, 0, true},
    {3, 1, 4, 40, 4, 1, 128, 33, 5000, BF16, F16, 8},
    {2, 6, 2, 9, 2, 2, 20, 1, 77, BF16, F32},
    {45, 2, 50, 200, 8, 8, 16, 190, 700, F32, F32},
    // Without a window, a row that is longer than its slot sees the end.
    {3, 1, 3, 150, 4, 2, 32, 0, 400, F32, F32},
    // Score caps that change all scores or hardly any, and attention sinks.
    {2, 4, 3, 160, 4, 2, 20, 0, 150, F32, F32, 3, 0.7},
    {2, 1, 2, 300, 4, 2, 64, 0, 290, BF16, BF16, 0, 30},
    {3, 1, 3, 150, 4, 4, 72, 40, 300, F32, F16, 0, 0.5, true},
    // Caches with a scale for each head.
    {3, 1, 5, 600, 4, 2, 16, 0, 590, F32, I8},
    {4, 1, 4, 300, 8, 2, 128, 0, 299, BF16, I8, 3},
    {2, 21, 6, 200, 6, 2, 64, 0, 170, BF16, I8, 8},
    {1, 10, 2, 180, 8, 1, 192, 0, 170, F32, I8, 0, 30, true},
    {2, 1, 2, 70, 6, 2, 264, 0, 69, F32, I8, 4},
    {3, 8, 3, 27, 4, 2, 20, 20, 900, F32, I8},
    {24, 1, 30, 290, 24, 12, 40, 0, 289, BF16, I8, 0, 0, true},
    // Adjacent tokens with unrelated slots and positions.
    {2, 11, 4, 200, 1, 1, 16, 0, 199, F32, F32, 0, 0, false,
     Layout::kScattered},
    {1, 30, 3, 300, 4, 2, 64, 0, 299, BF16, BF16, 1, 0, true,
     Layout::kScattered},
    {3, 40, 7, 310, 2, 2, 24, 33, 260, F32, BF16, 0, 0, false,
     Layout::kScattered},
};

struct Token {
  int64_t slot, position, segment;
};

/// Returns a padding token; `kind` selects the reason.
Token paddingOf(const Cached &c, int64_t kind) {
  const Token tokens[] = {
      {0, 0, 0}, {-1, 3, 1}, {c.slots, 3, 1}, {0, -1, 2}, {-1, -1, 0}};
  return tokens[kind % 5];
}

std::vector<Token> tokensOf(const Cached &c) {
  std::mt19937 generator(unsigned(c.tokens() + c.dim));
  const auto below = [&](int64_t count) {
    return std::uniform_int_distribution<int64_t>(0, count - 1)(generator);
  };
  std::vector<int64_t> slots(static_cast<size_t>(c.slots));
  std::iota(slots.begin(), slots.end(), 0);
  std::ranges::shuffle(slots, generator);
  std::vector<Token> tokens;
  for (int64_t b = 0; b < c.batch; ++b) {
    // The first sequence is at the last position, the last one has padding.
    const int64_t start = b == 0 ? c.latest : below(c.latest + 1);
    const bool isShort = c.batch > 1 && b == c.batch - 1;
    for (int64_t t = 0; t < c.length; ++t) {
      const bool isPadding = isShort && t >= (c.length + 1) / 2;
      if (isPadding || (isShort && c.length == 1) ||
          (c.layout == Layout::kScattered && below(6) == 0))
        tokens.push_back(paddingOf(c, t + b));
      else if (c.layout == Layout::kScattered)
        tokens.push_back(
            {below(c.slots),
             t > 0 && below(2) == 0
                 ? std::clamp<int64_t>(tokens.back().position + 1, 0, c.latest)
                 : below(c.latest + 1),
             1 + t % 2});
      else
        tokens.push_back({slots[static_cast<size_t>(b)], start + t, 1});
    }
  }
  return tokens;
}

bool isPadding(const Cached &c, const Token &token) {
  return token.segment == 0 || token.slot < 0 || token.slot >= c.slots ||
         token.position < 0;
}

void setTokens(KernelCase &test, std::span<const Token> tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    test.set("slots", int64_t(i), double(tokens[i].slot));
    test.set("positions", int64_t(i), double(tokens[i].position));
    test.set("segments", int64_t(i), double(tokens[i].segment));
  }
}

KernelCase emptyCase(const Cached &c) {
  KernelCase::Types types = {
      {"q", c.dtype}, {"keys", c.cache},  {"values", c.cache}, {"out", c.dtype},
      {"slots", I32}, {"positions", I32}, {"segments", I32}};
  if (c.hasSinks)
    types["sinks"] = F32;
  KernelCase test("cached_attention", types,
                  {{"batch", c.batch},
                   {"length", c.length},
                   {"slots", c.slots},
                   {"entries", c.entries},
                   {"heads", c.heads},
                   {"kv_heads", c.keyHeads},
                   {"dim", c.dim},
                   {"ldq", c.ld()},
                   {"ldo", c.ld()},
                   {"window", c.window},
                   {"scale", bits(1 / std::sqrt(double(c.dim)))},
                   {"cap", bits(c.cap)}});
  if (c.hasSinks)
    test.fill("sinks", 1, c.heads, c.heads, 5);
  return test;
}

/// Returns a value in [-1, 1) that depends on all bits of the index.
double hashed(uint64_t index) {
  uint64_t x = (index + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return double(x >> 32) * 0x1p-31 - 1;
}

/// Returns the scale of a head of a row of an i8 cache.
float &scaleOf(const Cached &c, uint8_t *cache, int64_t row, int64_t head) {
  auto *scales =
      reinterpret_cast<float *>(cache + c.cacheRows() * c.keyWidth());
  return scales[row * c.keyHeads + head];
}

bool isEmptyRow(const Cached &c, uint8_t *cache, int64_t row) {
  return std::isnan(c.cache == I8
                        ? scaleOf(c, cache, row, 0)
                        : loadNumber(c.cache, cache, row * c.keyWidth()));
}

/// Fills a row of a cache with values in [-1, 1].
void fillRow(const Cached &c, uint8_t *cache, int64_t row, int parity) {
  for (int64_t i = row * c.keyWidth(); i < (row + 1) * c.keyWidth(); ++i) {
    const double value = hashed(uint64_t(2 * i + parity));
    if (c.cache == I8)
      cache[i] = uint8_t(int8_t(std::lround(127 * value)));
    else
      storeNumber(c.cache, cache, i, value);
  }
  for (int64_t head = 0; c.cache == I8 && head < c.keyHeads; ++head)
    scaleOf(c, cache, row, head) =
        float((1.5 + 0.5 * hashed(uint64_t(row + head))) / 254);
}

/// Fills the rows of the caches that a token sees.
void fillSeen(KernelCase &test, const Cached &c, const Token &token) {
  uint8_t *keys = test.data("keys"), *values = test.data("values");
  const int64_t first = std::max<int64_t>(0, token.position - c.span() + 1);
  for (int64_t key = first; key <= token.position; ++key) {
    const int64_t row = token.slot * c.entries + key % c.entries;
    if (!isEmptyRow(c, keys, row))
      continue;
    fillRow(c, keys, row, 0);
    fillRow(c, values, row, 1);
  }
}

KernelCase makeCase(const Cached &c, const std::vector<Token> &tokens) {
  KernelCase test = emptyCase(c);
  test.fill("q", c.tokens(), c.width(), c.ld(), 1);
  setTokens(test, tokens);
  for (const Token &token : tokens)
    if (!isPadding(c, token))
      fillSeen(test, c, token);
  return test;
}

/// Compares with the reference; padding must give 0. With bf16 rows, a kernel
/// may round the weights of values, which are at most 1, to bf16.
void compare(KernelCase &expected, KernelCase &got, const Cached &c,
             const std::vector<Token> &tokens) {
  const int64_t terms = c.dim + std::min(c.span(), c.latest + c.length);
  double worst = 0;
  for (int64_t token = 0; token < c.tokens(); ++token)
    for (int64_t i = 0; i < c.width(); ++i) {
      const double exact = expected.at("out", token * c.ld() + i);
      const double value = got.at("out", token * c.ld() + i);
      const double allowed = tolerance(c.dtype, exact, terms) +
                             (c.dtype == BF16 ? unitRoundoff(BF16) : 0);
      const double error = std::abs(value - exact) / allowed;
      worst = std::max(worst, std::isnan(error) ? 1e30 : error);
      if (isPadding(c, tokens[static_cast<size_t>(token)])) {
        ASSERT_EQ(value, 0) << "token " << token;
      }
    }
  EXPECT_LE(worst, 1);
  EXPECT_TRUE(got.gapsHold("out", c.tokens(), c.width(), c.ld()));
}

TEST(CachedAttention, AgreesWithTheReference) {
  for (const Cached &c : kCases) {
    SCOPED_TRACE(c);
    const std::vector<Token> tokens = tokensOf(c);
    KernelCase expected = makeCase(c, tokens);
    expectOk(expected.run("reference"));
    for (const std::string &row : rowsToTest("cached_attention"))
      for (bool isShifted : {false, true}) {
        if (isShifted && row != "cuda")
          continue;
        SCOPED_TRACE(row);
        KernelCase got = makeCase(c, tokens);
        got.isShifted = isShifted;
        expectOk(got.run(row));
        compare(expected, got, c, tokens);
      }
  }
}

TEST(CachedAttention, TakesAllTypes) {
  for (qlora_dtype dtype : {F32, BF16})
    for (qlora_dtype cache : {F32, BF16, F16, I8})
      for (int64_t dim : {9, 36, 64, 112, 208}) {
        if (cache == I8 && dim % 4)
          continue;
        const Cached c = {2, 2, 3, 150, 6, 2, dim, 0, 140, dtype, cache, 1};
        SCOPED_TRACE(c);
        const std::vector<Token> tokens = tokensOf(c);
        KernelCase expected = makeCase(c, tokens);
        expectOk(expected.run("reference"));
        for (const std::string &row : rowsToTest("cached_attention")) {
          SCOPED_TRACE(row);
          KernelCase got = makeCase(c, tokens);
          expectOk(got.run(row));
          compare(expected, got, c, tokens);
        }
      }
}

/// Returns whether two cases have the same bits in a token's result.
bool hasSameBits(KernelCase &a, int64_t tokenOfA, KernelCase &b,
                 int64_t tokenOfB, const Cached &c) {
  const int64_t bytes = dtypeBits(c.dtype) / 8;
  return std::memcmp(a.data("out") + tokenOfA * c.ld() * bytes,
                     b.data("out") + tokenOfB * c.ld() * bytes,
                     static_cast<size_t>(c.width() * bytes)) == 0;
}

/// Runs a sequence of `all` as the only one of a batch.
KernelCase runAlone(KernelCase &all, const Cached &c, int64_t sequence,
                    const std::string &row, const std::vector<Token> &tokens) {
  Cached one = c;
  one.batch = 1;
  KernelCase test = emptyCase(one);
  setTokens(test,
            std::span(tokens).subspan(static_cast<size_t>(sequence * c.length),
                                      static_cast<size_t>(c.length)));
  for (const char *name : {"keys", "values"})
    std::copy_n(all.data(name), all.bytes(name), test.data(name));
  const int64_t skipped = sequence * c.length * c.ld() * dtypeBits(c.dtype) / 8;
  std::copy_n(all.data("q") + skipped, test.bytes("q"), test.data("q"));
  expectOk(test.run(row));
  return test;
}

TEST(CachedAttention, BitsOfASequenceDoNotDependOnOthers) {
  for (const Cached &c : kCases) {
    if (c.batch == 1)
      continue;
    SCOPED_TRACE(c);
    const std::vector<Token> tokens = tokensOf(c);
    for (const std::string &row : rowsToTest("cached_attention")) {
      SCOPED_TRACE(row);
      KernelCase all = makeCase(c, tokens);
      expectOk(all.run(row));
      for (int64_t sequence : {int64_t(0), c.batch / 2, c.batch - 1}) {
        KernelCase alone = runAlone(all, c, sequence, row, tokens);
        for (int64_t t = 0; t < c.length; ++t)
          EXPECT_TRUE(hasSameBits(all, sequence * c.length + t, alone, t, c))
              << "sequence " << sequence << ", token " << t;
      }
    }
  }
}

/// All tokens but one become padding, and their entries stay in the caches.
TEST(CachedAttention, BitsOfATokenDoNotDependOnItsSequence) {
  for (const Cached &c : kCases) {
    if (c.length == 1)
      continue;
    SCOPED_TRACE(c);
    const std::vector<Token> tokens = tokensOf(c);
    for (const std::string &row : rowsToTest("cached_attention")) {
      SCOPED_TRACE(row);
      KernelCase all = makeCase(c, tokens);
      expectOk(all.run(row));
      for (int64_t token = 0; token < c.tokens(); token += 1 + c.tokens() / 9) {
        std::vector<Token> one(tokens.size(), paddingOf(c, token));
        one[static_cast<size_t>(token)] = tokens[static_cast<size_t>(token)];
        KernelCase alone = makeCase(c, tokens);
        setTokens(alone, one);
        expectOk(alone.run(row));
        EXPECT_TRUE(hasSameBits(all, token, alone, token, c)) << token;
      }
    }
  }
}

/// The last token of each text has NaN as key and value. In the first text, its
/// position is the last one of a batch of 16 keys of the CUDA kernel.
TEST(CachedAttention, TokensDoNotReadLaterOnes) {
  const Cached c = {3, 14, 4, 290, 4, 4, 16, 100, 274, BF16, F32};
  std::vector<Token> tokens = tokensOf(c);
  for (const std::string &row : rowsToTest("cached_attention")) {
    SCOPED_TRACE(row);
    KernelCase finite = makeCase(c, tokens), last = makeCase(c, tokens);
    for (int64_t b = 0; b < c.batch - 1; ++b) {
      const Token &token = tokens[static_cast<size_t>((b + 1) * c.length - 1)];
      const int64_t entry = token.slot * c.entries + token.position % c.entries;
      for (int64_t i = 0; i < c.keyWidth(); ++i)
        for (const char *name : {"keys", "values"})
          last.set(name, entry * c.keyWidth() + i, std::nan(""));
    }
    expectOk(finite.run(row));
    expectOk(last.run(row));
    for (int64_t token = 0; token < c.tokens(); ++token) {
      if (token % c.length != c.length - 1)
        EXPECT_TRUE(hasSameBits(finite, token, last, token, c)) << token;
    }
  }
}

#ifdef _OPENMP
TEST(CachedAttention, BitsDoNotDependOnThreads) {
  const Cached c = {3, 20, 4, 300, 4, 2, 32, 0, 270, BF16, BF16};
  const std::vector<Token> tokens = tokensOf(c);
  const int before = omp_get_max_threads();
  std::vector<KernelCase> cases;
  for (int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    expectOk(cases.emplace_back(makeCase(c, tokens)).run("blocked"));
  }
  omp_set_num_threads(before);
  for (int64_t token = 0; token < c.tokens(); ++token)
    for (size_t i : {1u, 2u})
      EXPECT_TRUE(hasSameBits(cases[0], token, cases[i], token, c)) << token;
}
#endif

// cache_rows ------------------------------------------------------------------

struct Writes {
  int64_t columns, ld;
  qlora_dtype from, to;
  bool isShifted;
};

/// Tokens with padding, and positions that wrap several times.
const std::vector<Token> kWritten = {
    {2, 0, 1}, {0, 17, 1}, {-1, 4, 1}, {2, 1, 1},  {1, 3, 0},   {4, 2, 1},
    {3, 4, 2}, {1, -1, 1}, {3, 5, 2},  {3, 41, 2}, {1, 1000, 1}};
constexpr int64_t kSlots = 4, kEntries = 5;

/// Returns the bytes that the cache must have: the old ones, except in the rows
/// of the tokens.
std::vector<uint8_t> expectedCache(KernelCase &test, const Writes &w) {
  std::vector<uint8_t> bytes(test.data("cache"),
                             test.data("cache") + test.bytes("cache"));
  for (size_t i = 0; i < kWritten.size(); ++i) {
    const auto &[slot, position, segment] = kWritten[i];
    if (segment == 0 || slot < 0 || slot >= kSlots || position < 0)
      continue;
    const int64_t row = slot * kEntries + position % kEntries;
    for (int64_t column = 0; column < w.columns; ++column)
      storeNumber(w.to, bytes.data(), row * w.columns + column,
                  test.at("x", int64_t(i) * w.ld + column));
  }
  return bytes;
}

void checkWrites(const Writes &w, const std::string &row) {
  KernelCase test("cache_rows",
                  {{"x", w.from},
                   {"slots", I32},
                   {"positions", I32},
                   {"segments", I32},
                   {"cache", w.to}},
                  {{"rows", int64_t(kWritten.size())},
                   {"columns", w.columns},
                   {"slots", kSlots},
                   {"entries", kEntries},
                   {"heads", 1},
                   {"ldx", w.ld}});
  test.isShifted = w.isShifted;
  test.fill("x", int64_t(kWritten.size()), w.columns, w.ld, 1, 300);
  test.fill("cache", kSlots * kEntries, w.columns, w.columns, 2);
  setTokens(test, kWritten);
  const std::vector<uint8_t> expected = expectedCache(test, w);
  expectOk(test.run(row));
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), test.data("cache")))
      << row << " " << dtypeName(w.from) << " to " << dtypeName(w.to) << ", "
      << w.columns << " columns";
}

TEST(CacheRows, WritesTheRowsOfTokensOnly) {
  for (const std::string &row : allRowsToTest("cache_rows"))
    for (qlora_dtype from : {F32, BF16})
      for (qlora_dtype to : {F32, BF16, F16})
        for (auto [columns, ld] :
             {std::pair(1, 1), {13, 16}, {64, 64}, {3000, 3001}, {2056, 2056}})
          for (bool isShifted : {false, true})
            checkWrites({columns, ld, from, to, isShifted}, row);
}

} // namespace
} // namespace qlora
