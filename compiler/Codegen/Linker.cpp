// SPDX-License-Identifier: MIT

// Runs the commands that assemble and link.

#include "compiler/Codegen/Linker.h"

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/UserFiles.h"

using namespace qlora;

Status qlora::assemble(const std::string &clang, const std::string &text,
                       const std::string &object, const ScratchFolder &folder) {
  std::string source = folder.file("module.s");
  QLORA_RETURN_IF_ERROR(writeFile(source, text));
  return runCommands(
      {{clang, "--target=x86_64-linux-gnu", "-c", "-o", object, source}}, 1);
}

StatusOr<std::string>
qlora::linkLibrary(const std::vector<std::string> &objects,
                   const ScratchFolder &folder) {
  QLORA_ASSIGN_OR_RETURN(std::string linker,
                         findTool({"ld.lld-22", "ld.lld"}, "lld-22"));
  std::string library = folder.file("train.so");
  Command command = {linker,      "-shared",         "--build-id=none",
                     "--no-undefined", "-z", "noexecstack", "-z", "relro",
                     "-z", "now", "--threads=1", "-o", library};
  command.insert(command.end(), objects.begin(), objects.end());
  QLORA_RETURN_IF_ERROR(runCommands({command}, 1));
  QLORA_ASSIGN_OR_RETURN(std::string bytes, readWholeFile(library));
  return sealed(std::move(bytes));
}
