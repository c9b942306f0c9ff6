// SPDX-License-Identifier: MIT

// PickleWriter: opcodes byte by byte. tests/tools/qloracc/check_report.py
// checks that Python reads the result.

#include "compiler/Support/PickleWriter.h"

#include <gtest/gtest.h>

using namespace qlora;
using namespace std::string_literals;

namespace {

std::string pickled(const std::function<void(PickleWriter &)> &write) {
  PickleWriter pickle;
  write(pickle);
  return std::move(pickle).finish();
}

std::string pickledInteger(int64_t value) {
  return pickled([&](PickleWriter &pickle) { pickle.integer(value); });
}

/// Returns the bytes between PROTO and the memo of the only object.
std::string pickledText(std::string_view value) {
  std::string bytes =
      pickled([&](PickleWriter &pickle) { pickle.text(value); });
  EXPECT_EQ(bytes.substr(0, 3), "\x80\x02X"s);
  EXPECT_EQ(bytes.substr(bytes.size() - 3), "q\0."s);
  return bytes.substr(3, bytes.size() - 6);
}

TEST(PickleWriter, WholeNumbersTakeTheShortestForm) {
  EXPECT_EQ(pickledInteger(0), "\x80\x02K\0."s);
  EXPECT_EQ(pickledInteger(255), "\x80\x02K\xff."s);
  EXPECT_EQ(pickledInteger(256), "\x80\x02J\0\x01\0\0."s);
  EXPECT_EQ(pickledInteger(-1), "\x80\x02J\xff\xff\xff\xff."s);
  EXPECT_EQ(pickledInteger(0x7f0000000001),
            "\x80\x02\x8a\x08\x01\0\0\0\0\x7f\0\0."s);
}

TEST(PickleWriter, ContainersAreMarkedAndEmptyOnesAreNot) {
  EXPECT_EQ(pickled([](PickleWriter &pickle) {
              pickle.dict([&] {
                pickle.text("a"), pickle.pair(0, 1);
                pickle.text("b"), pickle.list([] {});
                pickle.text("a"), pickle.boolean(true);
              });
            }),
            "\x80\x02}(X\x01\0\0\0aq\0K\0K\x01\x86"
            "X\x01\0\0\0bq\x01]h\0\x88u."s);
}

TEST(PickleWriter, LongListsComeInBatches) {
  std::string bytes = pickled([](PickleWriter &pickle) {
    pickle.list([&] {
      for (size_t i = 0; i < PickleWriter::kBatch + 1; ++i)
        pickle.integer(0);
    });
  });
  std::string expected = "\x80\x02]("s;
  for (size_t i = 0; i < PickleWriter::kBatch; ++i)
    expected += "K\0"s;
  EXPECT_EQ(bytes, expected + "e(K\0e."s);
}

TEST(PickleWriter, RememberedObjectsAreRecalled) {
  EXPECT_EQ(pickled([](PickleWriter &pickle) {
              pickle.list([&] {
                pickle.list([&] { pickle.integer(7); });
                uint32_t name = pickle.remember();
                pickle.recall(name);
              });
            }),
            "\x80\x02](](K\x07""eq\0h\0e."s);
  // From the 257th object on, memo indices take four bytes.
  std::string bytes = pickled([](PickleWriter &pickle) {
    pickle.list([&] {
      for (int i = 0; i < 257; ++i)
        pickle.text(std::to_string(i));
      pickle.text("256");
    });
  });
  EXPECT_NE(bytes.find("256r\0\x01\0\0j\0\x01\0\0e."s), std::string::npos);
}

TEST(PickleWriter, TextsAreUtf8AndBounded) {
  EXPECT_EQ(pickledText("\xc3\xa9\xf0\x9f\x98\x80"),
            "\x06\0\0\0\xc3\xa9\xf0\x9f\x98\x80"s);
  // Texts that are not UTF-8: a lone continuation byte, an overlong slash, a
  // surrogate, and a truncated sequence.
  EXPECT_EQ(pickledText("\x80"), "\x03\0\0\0\xef\xbf\xbd"s);
  EXPECT_EQ(pickledText("\xc0\xaf").substr(4), "\xef\xbf\xbd\xef\xbf\xbd"s);
  EXPECT_EQ(pickledText("\xed\xa0\x80").size(), 4u + 9);
  EXPECT_EQ(pickledText("\xe2\x82").size(), 4u + 6);
  const std::string longest(PickleWriter::kTextBytes, 'x');
  EXPECT_EQ(pickledText(longest).substr(4), longest);
  EXPECT_EQ(pickledText(longest + "x").substr(4), longest + "...");
}

} // namespace
