// SPDX-License-Identifier: MIT

// safetensors files: a reader and an atomic writer.
//
//   QLORA_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
//   QLORA_ASSIGN_OR_RETURN(const SafetensorsTensor *t, file.get("w"));
//   QLORA_RETURN_IF_ERROR(file.read(*t, 0, window));
//
// open() reads and checks the header and nothing else. Data is read and never
// mapped: a file that somebody cuts short, or a disk that fails, is then an
// error with a name, and not a SIGBUS. Everything the reference implementation
// refuses is refused here, so a tensor that is handed out always lies inside
// the file and has exactly the bytes its shape and dtype say.

#ifndef QLORA_RUNTIME_WEIGHTS_SAFETENSORS_H
#define QLORA_RUNTIME_WEIGHTS_SAFETENSORS_H

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ABI/kernel.h"
#include "runtime/Base/AtomicFile.h"
#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// The format's dtypes, in the order of the reference implementation, which
/// is by alignment; the writer sorts by it.
enum class SafetensorsDtype : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

/// "BF16" and so on, as files spell it.
std::string_view safetensorsDtypeName(SafetensorsDtype dtype);
std::optional<SafetensorsDtype> parseSafetensorsDtype(std::string_view name);
unsigned safetensorsDtypeBits(SafetensorsDtype dtype);
/// F32, BF16, F16, I32 and U8 have a counterpart in the ABI, the others none.
std::optional<qlora_dtype> toAbiDtype(SafetensorsDtype dtype);
/// The reverse; NF4 has none.
std::optional<SafetensorsDtype> fromAbiDtype(qlora_dtype dtype);

/// One tensor of a file. begin and end are bytes from the start of the data
/// buffer, as in the header. A shape may be empty (a scalar) or hold zeros.
struct SafetensorsTensor {
  std::string name;
  SafetensorsDtype dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t byteCount() const { return end - begin; }
  int64_t elementCount() const;
};

/// "[176, 64]", for messages.
std::string formatShape(std::span<const int64_t> shape);

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors; ///< sorted by offset
  std::map<std::string, std::string> metadata;
};

/// One open file. Movable; tensors live as long as it does (moving
/// keeps them valid). Immutable after open(), so any thread may read it.
class SafetensorsFile {
public:
  /// kNotFound when there is no such file, kDataLoss when it is not a sound
  /// safetensors file; the message names the file, the tensor and the number.
  static StatusOr<SafetensorsFile> open(const std::string &path);

  const std::string &path() const { return filePath; }
  /// As the file was when it was opened.
  const FileIdentity &identity() const { return fileIdentity; }
  /// In file order, that is by offset.
  const std::vector<SafetensorsTensor> &tensors() const {
    return header.tensors;
  }
  /// The header's `__metadata__`; empty when it has none.
  const std::map<std::string, std::string> &metadata() const {
    return header.metadata;
  }

  /// nullptr when there is no such tensor.
  const SafetensorsTensor *find(std::string_view name) const;
  /// As find(), with an error that names the file and says what it holds.
  StatusOr<const SafetensorsTensor *> get(std::string_view name) const;

  /// Bytes of the tensor, which is row-major and little endian, from
  /// `firstByte` on. kDataLoss where the file does not have them any more.
  Status read(const SafetensorsTensor &tensor, uint64_t firstByte,
              std::span<uint8_t> out) const;

private:
  SafetensorsFile() = default;
  Status load();

  std::string filePath;
  FileDescriptor file;
  FileIdentity fileIdentity;
  SafetensorsHeader header;
  std::map<std::string, size_t, std::less<>> index; ///< into header.tensors
  uint64_t dataStart = 0;
};

/// Writes `count` numbers of f32 as those of another type.
using Rounding = void (*)(const uint8_t *from, uint8_t *to, int64_t count);

/// A tensor to write. The bytes of a file are of `dtype`; with `round` the given
/// ones are f32 that is rounded to it on the way. Where `beside` is not empty,
/// there are `parts` of both, and each of `bytes` is followed by one of it: with
/// one part below each other, with as many as rows beside each other. Both must
/// stay alive while the file is written; of `bytes` only the size counts where
/// they come from a NextBytes.
struct SafetensorsItem {
  std::string name;
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<int64_t> shape;
  std::span<const uint8_t> bytes;
  Rounding round = nullptr;
  std::span<const uint8_t> beside = {};
  size_t parts = 1;

  uint64_t bytesInFile() const {
    return round ? bytes.size() / 4 * (safetensorsDtypeBits(dtype) / 8)
                 : bytes.size() + beside.size();
  }
};

/// Puts tensors into the order of a file, the reference implementation's: by
/// dtype (widest alignment first), then name.
void sortAsInFile(std::vector<SafetensorsItem> &tensors);

/// Fills `out` with the next of the given bytes of all tensors, in the order of
/// the file. It is called until it has given all of them, or an error.
using NextBytes = std::function<Status(std::span<uint8_t> out)>;

/// Writes a file with the reference implementation's bytes: tensors in its
/// order, the header padded to a multiple of 8. What it keeps of the tensors in
/// memory at a time is kSafetensorsWaiting bytes.
Status writeSafetensors(AtomicFile file, std::vector<SafetensorsItem> tensors,
                        const std::map<std::string, std::string> &metadata,
                        const NextBytes &next,
                        AtomicFile::Flush flush = AtomicFile::Flush::kYes);
inline constexpr uint64_t kSafetensorsWaiting = uint64_t{2} << 20;
/// The same of tensors whose `bytes` are there.
Status writeSafetensors(const std::string &path,
                        std::vector<SafetensorsItem> tensors,
                        const std::map<std::string, std::string> &metadata);

/// The bytes of that file; tensors need no data for it.
StatusOr<uint64_t>
safetensorsBytes(std::vector<SafetensorsItem> tensors,
                 const std::map<std::string, std::string> &metadata);

// The JSON header, as text to data and back (SafetensorsHeader.cpp). Knows
// nothing of files.

/// The reference implementation's limit.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

/// Parses and checks `text` against a data buffer of `bufferBytes`. Refuses
/// what is not UTF-8 JSON, a name twice, unknown dtypes, shapes that
/// overflow or disagree with the offsets, and any hole, overlap, missing or
/// extra byte in the buffer.
StatusOr<SafetensorsHeader> parseSafetensorsHeader(std::string_view text,
                                                   uint64_t bufferBytes);

/// The header's text for tensors in this order, padded with spaces to a
/// multiple of 8 bytes; the offsets are those in the tensors.
std::string
formatSafetensorsHeader(const std::vector<SafetensorsTensor> &tensors,
                        const std::map<std::string, std::string> &metadata);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_SAFETENSORS_H
