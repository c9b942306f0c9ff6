// SPDX-License-Identifier: MIT

// safetensors files: a reader and an atomic writer.
//
//   QLORA_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
//   QLORA_ASSIGN_OR_RETURN(const SafetensorsTensor *t, file.get("w"));
//   QLORA_RETURN_IF_ERROR(file.read(*t, 0, window));
//
// open() reads and checks only the header. Data is read and never mapped, so a
// truncated file or a failing disk gives an error with the file's name instead
// of a SIGBUS. The reader refuses all files that the reference
// implementation refuses, so a tensor's bytes always match its shape and dtype.

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

/// The format's dtypes by ascending alignment, as in the reference
/// implementation. The writer puts tensors with the widest dtype first.
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

/// Returns a dtype's name in files, such as "BF16".
std::string_view safetensorsDtypeName(SafetensorsDtype dtype);
std::optional<SafetensorsDtype> parseSafetensorsDtype(std::string_view name);
unsigned safetensorsDtypeBits(SafetensorsDtype dtype);
/// Returns the ABI's dtype for F32, BF16, F16, I32 and U8; nothing for others.
std::optional<qlora_dtype> toAbiDtype(SafetensorsDtype dtype);
/// The reverse of toAbiDtype(); NF4 has no counterpart.
std::optional<SafetensorsDtype> fromAbiDtype(qlora_dtype dtype);

/// One tensor of a file. `begin` and `end` are bytes from the start of the data
/// buffer, as in the header. The shape may be empty (a scalar) or have zeros.
struct SafetensorsTensor {
  std::string name;
  SafetensorsDtype dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t byteCount() const { return end - begin; }
  int64_t elementCount() const;
};

/// Formats a shape for messages: "[176, 64]".
std::string formatShape(std::span<const int64_t> shape);

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors; ///< sorted by offset
  std::map<std::string, std::string> metadata;
};

/// One open file. Movable; references to its tensors stay valid after a move.
/// Immutable after open(), so any thread may read it.
class SafetensorsFile {
public:
  /// Opens a file and checks its header. kNotFound if there is no such file,
  /// kDataLoss if it is not a valid safetensors file. The message names the
  /// file, the tensor and the value.
  static StatusOr<SafetensorsFile> open(const std::string &path);

  const std::string &path() const { return filePath; }
  /// Returns the identity that the file had when it was opened.
  const FileIdentity &identity() const { return fileIdentity; }
  /// The tensors in file order, that is, by offset.
  const std::vector<SafetensorsTensor> &tensors() const {
    return header.tensors;
  }
  /// The header's `__metadata__`; empty if it has none.
  const std::map<std::string, std::string> &metadata() const {
    return header.metadata;
  }

  /// Returns nullptr if there is no such tensor.
  const SafetensorsTensor *find(std::string_view name) const;
  /// Returns the tensor, or an error that names the file and its content.
  StatusOr<const SafetensorsTensor *> get(std::string_view name) const;

  /// Reads bytes of the tensor, which is row-major and little endian, from
  /// `firstByte` on. Returns kDataLoss if the file was truncated.
  Status read(const SafetensorsTensor &tensor, uint64_t firstByte,
              std::span<uint8_t> out) const;

private:
  SafetensorsFile() = default;
  Status load();

  std::string filePath;
  FileDescriptor file;
  FileIdentity fileIdentity;
  SafetensorsHeader header;
  /// Name -> index in header.tensors.
  std::map<std::string, size_t, std::less<>> index;
  uint64_t dataStart = 0;
};

/// Converts `count` f32 values to another type.
using Rounding = void (*)(const uint8_t *from, uint8_t *to, int64_t count);

/// A tensor to write. `bytes` and `beside` must be valid until the file is
/// written. If NextBytes gives the data, only the size of `bytes` counts.
struct SafetensorsItem {
  std::string name;
  SafetensorsDtype dtype = SafetensorsDtype::kF32; ///< type in the file
  std::vector<int64_t> shape;
  std::span<const uint8_t> bytes;
  /// Converts `bytes`, which are f32 values, to `dtype`. Null: no conversion.
  Rounding round = nullptr;
  /// A second matrix, which is concatenated to the matrix in `bytes`. Empty:
  /// none. parts = 1: it is below. parts = number of rows: it is to the right,
  /// so that the rows of both matrices alternate in the file.
  std::span<const uint8_t> beside = {};
  size_t parts = 1;

  uint64_t bytesInFile() const {
    return round ? bytes.size() / 4 * (safetensorsDtypeBits(dtype) / 8)
                 : bytes.size() + beside.size();
  }
};

/// Sorts tensors into the file order of the reference implementation: by dtype
/// (widest alignment first), then by name.
void sortAsInFile(std::vector<SafetensorsItem> &tensors);

/// Fills `out` with the next bytes of the tensors, in file order. Called until
/// all bytes are written, or until it returns an error.
using NextBytes = std::function<Status(std::span<uint8_t> out)>;

/// Writes a file with the same bytes as the reference implementation: tensors
/// in its order, the header padded to a multiple of 8. At most
/// kSafetensorsWaiting bytes of tensor data are in memory at a time.
Status writeSafetensors(AtomicFile file, std::vector<SafetensorsItem> tensors,
                        const std::map<std::string, std::string> &metadata,
                        const NextBytes &next,
                        AtomicFile::Flush flush = AtomicFile::Flush::kYes);
inline constexpr uint64_t kSafetensorsWaiting = uint64_t{2} << 20;
/// Writes tensors whose `bytes` are in memory.
Status writeSafetensors(const std::string &path,
                        std::vector<SafetensorsItem> tensors,
                        const std::map<std::string, std::string> &metadata);

/// Returns the size of the file with these tensors, which need no data.
StatusOr<uint64_t>
safetensorsBytes(std::vector<SafetensorsItem> tensors,
                 const std::map<std::string, std::string> &metadata);

// Conversion between the JSON text of the header and its data
// (SafetensorsHeader.cpp). Needs no file.

/// Maximum bytes of a header, as in the reference implementation.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

/// Parses `text` and checks it against a data buffer of `bufferBytes`. Refuses
/// text that is not UTF-8 JSON, duplicate names, unknown dtypes, shapes that
/// overflow or disagree with the offsets, and any hole, overlap, missing or
/// extra byte in the buffer.
StatusOr<SafetensorsHeader> parseSafetensorsHeader(std::string_view text,
                                                   uint64_t bufferBytes);

/// Returns the header's text for tensors in this order, with the offsets of the
/// tensors, padded with spaces to a multiple of 8 bytes.
std::string
formatSafetensorsHeader(const std::vector<SafetensorsTensor> &tensors,
                        const std::map<std::string, std::string> &metadata);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_SAFETENSORS_H
