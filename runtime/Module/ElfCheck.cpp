// SPDX-License-Identifier: MIT

// Reads the tables of an ELF file and compares them with its size.

#include "runtime/Module/ElfCheck.h"

#include <elf.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

namespace qlora {

template <typename... Args>
static Status damaged(fmt::format_string<Args...> format, Args &&...args) {
  return Status::error(StatusCode::kDataLoss, format,
                       std::forward<Args>(args)...);
}

static bool isWithin(uint64_t offset, uint64_t bytes, uint64_t fileBytes) {
  return offset <= fileBytes && bytes <= fileBytes - offset;
}

template <typename Row>
static StatusOr<std::vector<Row>> readTable(std::ifstream &file,
                                            uint64_t fileBytes, uint64_t offset,
                                            uint64_t count) {
  std::vector<Row> rows(count);
  const uint64_t bytes = count * sizeof(Row);
  if (!isWithin(offset, bytes, fileBytes))
    return damaged("it is truncated: a table of {} bytes at {}, but the file "
                   "has {} bytes",
                   bytes, offset, fileBytes);
  file.seekg(static_cast<std::streamoff>(offset));
  if (!file.read(reinterpret_cast<char *>(rows.data()),
                 static_cast<std::streamsize>(bytes)))
    return damaged("cannot read it");
  return rows;
}

static Status checkHeader(const Elf64_Ehdr &header) {
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return damaged("not a program; give the train.so that qloracc writes "
                   "(qloracc model.mlir -o train.so)");
  if (header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_type != ET_DYN)
    return damaged("not a 64-bit little-endian shared library");
  if (header.e_phentsize != sizeof(Elf64_Phdr) ||
      (header.e_shnum != 0 && header.e_shentsize != sizeof(Elf64_Shdr)))
    return damaged("its ELF header has tables of an unknown form");
  return Status::ok();
}

static Status checkRanges(std::ifstream &file, uint64_t fileBytes) {
  QLORA_ASSIGN_OR_RETURN(std::vector<Elf64_Ehdr> headers,
                         readTable<Elf64_Ehdr>(file, fileBytes, 0, 1));
  const Elf64_Ehdr &header = headers[0];
  QLORA_RETURN_IF_ERROR(checkHeader(header));
  QLORA_ASSIGN_OR_RETURN(
      std::vector<Elf64_Phdr> segments,
      readTable<Elf64_Phdr>(file, fileBytes, header.e_phoff, header.e_phnum));
  for (const Elf64_Phdr &segment : segments)
    if (!isWithin(segment.p_offset, segment.p_filesz, fileBytes))
      return damaged("it is truncated: a segment of {} bytes at {}, but the "
                     "file has {} bytes",
                     segment.p_filesz, segment.p_offset, fileBytes);
  QLORA_ASSIGN_OR_RETURN(
      std::vector<Elf64_Shdr> sections,
      readTable<Elf64_Shdr>(file, fileBytes, header.e_shoff, header.e_shnum));
  for (const Elf64_Shdr &section : sections)
    if (section.sh_type != SHT_NOBITS &&
        !isWithin(section.sh_offset, section.sh_size, fileBytes))
      return damaged("it is truncated: a section of {} bytes at {}, but the "
                     "file has {} bytes",
                     section.sh_size, section.sh_offset, fileBytes);
  return Status::ok();
}

Status checkElfFile(const std::string &path) {
  std::error_code error;
  const bool isFile = std::filesystem::is_regular_file(path, error);
  if (std::filesystem::is_directory(path, error))
    return Status::invalid("'{}' is a folder; give the train.so that qloracc "
                           "writes",
                           path);
  if (error || !isFile)
    return Status::error(StatusCode::kNotFound, "no file '{}'{}", path,
                         error ? ": " + error.message() : "");
  const uint64_t fileBytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file)
    return Status::error(StatusCode::kNotFound, "cannot open '{}': {}", path,
                         std::strerror(errno));
  return checkRanges(file, fileBytes).withContext(fmt::format("'{}'", path));
}

} // namespace qlora
