// SPDX-License-Identifier: MIT

// JSON of texts that are not UTF-8: a readable form, and an exact form that can
// be read back.

#include "runtime/Base/JsonText.h"

#include <gtest/gtest.h>

using namespace qlora;
using nlohmann::json;

TEST(JsonText, BytesThatAreNotUtf8AreReplaced) {
  EXPECT_EQ(dumpJson(json{{"file", "tok\xff.safetensors"}}),
            "{\"file\":\"tok\xef\xbf\xbd.safetensors\"}");
  EXPECT_EQ(dumpJson(nlohmann::ordered_json("\xff"), -1, true), "\"\\ufffd\"");
}

/// UTF-8 is written as the JSON library writes it.
TEST(JsonText, ExactTextIsRead) {
  const std::string texts[] = {
      "plain", "tok\xff.safetensors", "\xff\xfe", "caf\xc3\xa9", "half \xc3",
      "too long \xc0\xaf \xe0\x80\xaf", "surrogate \xed\xa0\x80",
      "above \xf4\x90\x80\x80", "emoji \xf0\x9f\x98\x80", "quote \" \\ \n",
      // dumpExact() uses private code points such as this one internally.
      "private \xf4\x8f\xbf\xbf", "cut \xf4\x8f\xbf", "\x80\xbf\xc0",
      std::string("zero \0 in it", 12)};
  for (const std::string &text : texts) {
    const json value = {{"a", {text, 1, true, nullptr}}, {text, {{"b", text}}}};
    EXPECT_EQ(parseExact(dumpExact(value)), value) << text;
  }
  EXPECT_EQ(dumpExact(json{{"a", "caf\xc3\xa9\n"}}),
            "{\"a\":\"caf\xc3\xa9\\n\"}");
  EXPECT_EQ(dumpExact(json("tok\xff")), "\"tok\xff\"");
  EXPECT_TRUE(parseExact("{\"a\": ").is_discarded());
}
