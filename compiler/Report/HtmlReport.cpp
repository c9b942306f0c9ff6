// SPDX-License-Identifier: MIT

// Inserts the data into the page (HtmlReport.h).

#include "compiler/Report/HtmlReport.h"

#include "llvm/ADT/Twine.h"

using namespace llvm;

extern const char qloraReportPage[];
extern const char qloraReportScript[];

/// Placeholders in the page; each occurs once.
static constexpr StringLiteral kDataMark = "{{data}}";
static constexpr StringLiteral kScriptMark = "{{script}}";

/// Escapes `<`, so that the JSON is valid inside any HTML element. It occurs
/// only in JSON strings, which may contain escapes.
static std::string embeddable(const std::string &json) {
  std::string text;
  text.reserve(json.size());
  for (char character : json)
    if (character == '<')
      text += "\\u003c";
    else
      text += character;
  return text;
}

std::string qlora::htmlReport(StringRef plan, StringRef run) {
  const std::string data =
      ("{\"plan\":" + plan + ",\"run\":" + run + "}").str();
  auto [head, afterHead] = StringRef(qloraReportPage).split(kDataMark);
  auto [middle, tail] = afterHead.split(kScriptMark);
  return (head + embeddable(data) + middle + qloraReportScript + tail).str();
}
