// SPDX-License-Identifier: MIT

// Writes Python objects as a pickle of protocol 2: dictionaries, lists,
// strings, integers and booleans, which are all that a memory snapshot needs.
//
//   PickleWriter pickle;
//   pickle.dict([&] {
//     pickle.text("segments");
//     pickle.list([&] { pickle.integer(1); });   // {"segments": [1]}
//   });
//   std::string bytes = std::move(pickle).finish();
//
// A pickle is a program for a stack machine. Only opcodes that readers without
// Python also support are used: PROTO, EMPTY_DICT, EMPTY_LIST, MARK, SETITEMS,
// APPENDS, TUPLE2, BINUNICODE, BININT1, BININT, LONG1, NEWTRUE, NEWFALSE,
// BINPUT, LONG_BINPUT, BINGET, LONG_BINGET, STOP. At most kBatch elements are
// between a MARK and its SETITEMS or APPENDS, because some readers pass all of
// them as arguments of one call.
//
// Repeated strings, and objects written by recall(), are references of a few
// bytes to the first copy.

#ifndef QLORA_COMPILER_SUPPORT_PICKLEWRITER_H
#define QLORA_COMPILER_SUPPORT_PICKLEWRITER_H

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace qlora {

class PickleWriter {
public:
  PickleWriter();

  static constexpr size_t kBatch = 1000;
  /// Maximum bytes of a string. Longer strings are cut there and end in "...".
  static constexpr size_t kTextBytes = 4096;

  /// Writes a dictionary. `fill` writes keys and values alternately.
  void dict(const std::function<void()> &fill);
  void list(const std::function<void()> &fill);
  /// Writes a tuple of two integers.
  void pair(int64_t first, int64_t second);
  /// Writes a string. Bytes that are not UTF-8 become U+FFFD.
  void text(std::string_view value);
  void integer(int64_t value);
  void boolean(bool value);

  /// Puts the list or dictionary that the enclosing `fill` wrote last into the
  /// memo, and returns its index. `recall(index)` writes a reference to it.
  uint32_t remember();
  void recall(uint32_t name);

  /// Returns the pickle, which must be one object.
  std::string finish() &&;

private:
  void container(char empty, char add, size_t batch,
                 const std::function<void()> &fill);
  void element();
  void little(uint64_t value, int bytes);

  /// The container that is currently filled.
  struct Level {
    char add = 0;       ///< SETITEMS or APPENDS; 0: the pickle itself
    size_t batch = 1;   ///< elements between MARK and `add`
    size_t pending = 0; ///< elements since the last MARK
  };
  Level level;
  std::string bytes;
  std::unordered_map<std::string, uint32_t> texts;
  uint32_t remembered = 0;
};

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_PICKLEWRITER_H
