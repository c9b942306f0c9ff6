// SPDX-License-Identifier: MIT

// Writes opcodes of protocol 2 (PickleWriter.h), as described in PEP 307 and
// Python's pickletools.

#include "compiler/Support/PickleWriter.h"

#include <cassert>
#include <limits>

using namespace qlora;

namespace {

enum Opcode : char {
  kProto = '\x80',
  kStop = '.',
  kMark = '(',
  kEmptyDict = '}',
  kEmptyList = ']',
  kSetItems = 'u',
  kAppends = 'e',
  kTuple2 = '\x86',
  kBinUnicode = 'X',
  kBinInt1 = 'K',
  kBinInt = 'J',
  kLong1 = '\x8a',
  kNewTrue = '\x88',
  kNewFalse = '\x89',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kBinGet = 'h',
  kLongBinGet = 'j',
};

constexpr std::string_view kReplacement = "\xef\xbf\xbd"; // U+FFFD

} // namespace

/// Returns the bytes of the UTF-8 sequence that `text` begins with, or 0 if it
/// is invalid (Unicode 15, table 3-7: no overlong forms, no surrogates).
static size_t sequenceBytes(std::string_view text) {
  auto at = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  auto isTail = [&](size_t i) { return (at(i) & 0xc0u) == 0x80u; };
  unsigned lead = at(0);
  if (lead < 0x80)
    return 1;
  if (lead >= 0xc2 && lead <= 0xdf)
    return isTail(1) ? 2 : 0;
  unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (lead < 0xe0 || lead > 0xf4 || at(1) < low || at(1) > high || !isTail(2))
    return 0;
  if (lead < 0xf0)
    return 3;
  return isTail(3) ? 4 : 0;
}

/// Returns the text as UTF-8, cut after kTextBytes.
static std::string boundedText(std::string_view value) {
  std::string text;
  while (!value.empty()) {
    size_t length = sequenceBytes(value);
    std::string_view next = length ? value.substr(0, length) : kReplacement;
    if (text.size() + next.size() > PickleWriter::kTextBytes)
      return text + "...";
    text += next;
    value.remove_prefix(length ? length : 1);
  }
  return text;
}

PickleWriter::PickleWriter() {
  bytes += kProto;
  bytes += '\x02';
}

void PickleWriter::little(uint64_t value, int count) {
  for (int i = 0; i < count; ++i)
    bytes += static_cast<char>(value >> (8 * i));
}

/// Must be called before each object is written. Ends a full batch, and begins
/// the next one.
void PickleWriter::element() {
  if (level.add && level.pending == level.batch) {
    bytes += level.add;
    level.pending = 0;
  }
  if (level.add && level.pending == 0)
    bytes += kMark;
  ++level.pending;
  assert((level.add || level.pending == 1) && "a pickle is one object");
}

void PickleWriter::container(char empty, char add, size_t batch,
                             const std::function<void()> &fill) {
  element();
  bytes += empty;
  Level outer = level;
  level = {add, batch, 0};
  fill();
  assert((add != kSetItems || level.pending % 2 == 0) && "a key has a value");
  if (level.pending)
    bytes += add;
  level = outer;
}

void PickleWriter::dict(const std::function<void()> &fill) {
  static_assert(kBatch % 2 == 0, "a key and its value are in one batch");
  container(kEmptyDict, kSetItems, kBatch, fill);
}

void PickleWriter::list(const std::function<void()> &fill) {
  container(kEmptyList, kAppends, kBatch, fill);
}

void PickleWriter::pair(int64_t first, int64_t second) {
  element();
  Level outer = level;
  for (int64_t value : {first, second}) {
    level = {};
    integer(value);
  }
  level = outer;
  bytes += kTuple2;
}

void PickleWriter::text(std::string_view value) {
  std::string key = boundedText(value);
  if (auto known = texts.find(key); known != texts.end())
    return recall(known->second);
  element();
  bytes += kBinUnicode;
  little(key.size(), 4);
  bytes += key;
  texts.emplace(std::move(key), remember());
}

void PickleWriter::integer(int64_t value) {
  element();
  if (value >= 0 && value < 256) {
    bytes += kBinInt1;
    return little(value, 1);
  }
  if (value >= std::numeric_limits<int32_t>::min() &&
      value <= std::numeric_limits<int32_t>::max()) {
    bytes += kBinInt;
    return little(static_cast<uint64_t>(value), 4);
  }
  bytes += kLong1;
  bytes += '\x08';
  little(static_cast<uint64_t>(value), 8);
}

void PickleWriter::boolean(bool value) {
  element();
  bytes += value ? kNewTrue : kNewFalse;
}

uint32_t PickleWriter::remember() {
  assert(remembered < std::numeric_limits<uint32_t>::max());
  bytes += remembered < 256 ? kBinPut : kLongBinPut;
  little(remembered, remembered < 256 ? 1 : 4);
  return remembered++;
}

void PickleWriter::recall(uint32_t name) {
  assert(name < remembered && "remembered before");
  element();
  bytes += name < 256 ? kBinGet : kLongBinGet;
  little(name, name < 256 ? 1 : 4);
}

std::string PickleWriter::finish() && {
  assert(!level.add && level.pending == 1 && "a pickle is one object");
  bytes += kStop;
  return std::move(bytes);
}
