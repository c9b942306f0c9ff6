// SPDX-License-Identifier: MIT

// Opens a module with dlopen, checks it, and answers queries about its tables.

#include "runtime/Module/ModuleLoader.h"

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/HostMemory.h"
#include "runtime/Module/ModuleCheck.h"

#include <dlfcn.h>
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace qlora {

std::string_view commandName(const qlora_command &command) {
  static constexpr std::array<std::string_view, QLORA_COMMAND_KIND_COUNT>
      names = {"launch", "fill", "copy", "collective", "record", "wait"};
  if (command.kind == QLORA_COMMAND_COLLECTIVE)
    return collectiveName(command.collective);
  return command.kind < names.size() ? names[command.kind] : "unknown";
}

#define QLORA_CASE(NUMBER, TEXT) \
  case NUMBER: \
    return TEXT;

std::string_view collectiveName(unsigned kind) {
  switch (kind) {
#define QLORA_COLLECTIVE(NAME, NUMBER, CASE, WORD) QLORA_CASE(NUMBER, #WORD)
#include "runtime/ABI/Enums.def"
  }
  return "unknown";
}

std::string_view groupName(unsigned group) {
  switch (group) {
#define QLORA_GROUP(NAME, NUMBER, CASE, WORD, PLACE, ROWS, TITLE)              \
  QLORA_CASE(NUMBER, #WORD)
#include "runtime/ABI/Enums.def"
  }
  return "unknown";
}

std::string_view queueName(unsigned queue) {
  switch (queue) {
#define QLORA_QUEUE(NAME, NUMBER, CASE, WORD) QLORA_CASE(NUMBER, #WORD)
#include "runtime/ABI/Enums.def"
  }
  return "unknown";
}

std::string_view arenaTitle(unsigned kind) {
  switch (kind) {
#define QLORA_ARENA_KIND(NAME, NUMBER, CASE, WORD, TITLE) \
  QLORA_CASE(NUMBER, TITLE)
#include "runtime/ABI/Enums.def"
  }
  return "unknown";
}

std::string_view arenaKindName(unsigned kind) {
  switch (kind) {
#define QLORA_ARENA_KIND(NAME, NUMBER, CASE, WORD, TITLE) \
  QLORA_CASE(NUMBER, #WORD)
#include "runtime/ABI/Enums.def"
  }
  return "unknown";
}

std::string_view entryKindName(unsigned kind) {
  switch (kind) {
#define QLORA_ENTRY(NAME, NUMBER, CASE, WORD) QLORA_CASE(NUMBER, #WORD)
#include "runtime/ABI/Enums.def"
  }
  return "unknown";
}

#undef QLORA_CASE

/// Checks that the file is an undamaged train.so, before it is loaded. Reads
/// the pages that dlopen() maps next, without a copy.
static Status checkFile(const std::string &path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return Status::invalid(
        "'{}' is a folder. Fix: give the train.so that qloracc writes", path);
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.isOpen())
    return Status::notFound("cannot read '{}': {}", path, std::strerror(errno));
  QLORA_ASSIGN_OR_RETURN(const FileIdentity identity,
                         FileIdentity::of(file.get()));
  QLORA_ASSIGN_OR_RETURN(const HostMemory memory,
                         HostMemory::readOnly(file.get(), identity.bytes));
  const std::string_view bytes(
      reinterpret_cast<const char *>(memory.bytes().data()),
      memory.bytes().size());
  if (!bytes.starts_with("\x7f"
                         "ELF"))
    return Status::dataLoss(
        "'{}' is not a program. Fix: give the train.so that qloracc writes "
        "(qloracc model.mlir -o train.so)",
        path);
  if (!isSealed(bytes))
    return Status::dataLoss(
        "'{}' is damaged: its {} bytes do not match its checksum. Fix: copy it "
        "again, or compile the model again",
        path, bytes.size());
  return Status::ok();
}

static StatusOr<const qlora_module *> queryModule(void *library) {
  void *symbol = dlsym(library, QLORA_MODULE_QUERY);
  if (!symbol)
    return Status::dataLoss("not a program of qloracc: it exports no {}",
                            QLORA_MODULE_QUERY);
  const auto query = reinterpret_cast<qlora_module_query_function>(symbol);
  const qlora_module *module = query(QLORA_ABI_VERSION);
  if (!module)
    return Status::unavailable(
        "its format is newer than version {}, which this qlora-run reads. Fix: "
        "compile the model again with the qloracc of the same build",
        QLORA_ABI_VERSION);
  return module;
}

StatusOr<LoadedModule> LoadedModule::open(const std::string &path) {
  QLORA_RETURN_IF_ERROR(checkFile(path));
  // dlopen would search the library path for a bare name.
  std::error_code error;
  const std::string absolute = std::filesystem::absolute(path, error).string();
  void *handle = dlopen(absolute.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    return Status::dataLoss("cannot load '{}': {}", path, dlerror());
  std::shared_ptr<void> library(handle, [](void *h) { dlclose(h); });
  auto module = queryModule(handle);
  Status status = module.isOk() ? checkModule(**module) : module.status();
  if (!status.isOk())
    return status.withContext(fmt::format("'{}'", path));
  return LoadedModule(*module, path, std::move(library));
}

StatusOr<LoadedModule> LoadedModule::fromTable(const qlora_module &table,
                                               std::string name) {
  Status status = checkModule(table);
  for (const qlora_module *stage = &table; status.isOk() && stage;
       stage = stage->next_stage)
    status = checkTables(*stage);
  if (!status.isOk())
    return status.withContext(fmt::format("'{}'", name));
  return LoadedModule(&table, std::move(name), nullptr);
}

std::span<const qlora_arena> LoadedModule::arenas() const {
  return {module->arenas, module->arena_count};
}
std::span<const qlora_parameter> LoadedModule::parameters() const {
  return {module->parameters, module->parameter_count};
}
std::span<const qlora_kernel> LoadedModule::kernels() const {
  return {module->kernels, module->kernel_count};
}
std::span<const qlora_launch> LoadedModule::launches() const {
  return {module->launches, module->launch_count};
}
std::span<const qlora_entry> LoadedModule::entries() const {
  return {module->entries, module->entry_count};
}
std::span<const qlora_command> LoadedModule::commands() const {
  return {module->commands, module->command_count};
}
std::span<const qlora_operand> LoadedModule::operands() const {
  if (!own.empty())
    return own;
  return {module->operands, module->operand_count};
}
void LoadedModule::chooseStage(int64_t number) {
  for (module = first; number > 0; --number)
    module = module->next_stage;
  own.clear();
}
LoadedModule LoadedModule::ofStage(int number) const {
  LoadedModule other = *this;
  other.chooseStage(number);
  return other;
}
void LoadedModule::chooseRank(int rank, int ranks) {
  sizes = sizes.on(ranks);
  chooseStage(sizes.number(QLORA_GROUP_PP, rank));
  if (meshSize() == 1 && module->run_ranks == 0)
    return;
  own.assign(module->operands, module->operands + module->operand_count);
  for (qlora_operand &operand : own)
    if (operand.pieces != 0)
      operand.offset +=
          static_cast<uint64_t>(sizes.number(operand.pieces_of, rank)) *
          operand.step;
}
std::span<const qlora_image> LoadedModule::images() const {
  return {module->images, module->image_count};
}

std::span<const qlora_command>
LoadedModule::commands(const qlora_entry &entry) const {
  return commands().subspan(entry.first_command, entry.command_count);
}
std::span<const qlora_binding>
LoadedModule::bindings(const qlora_entry &entry) const {
  return {module->bindings + entry.first_binding, entry.binding_count};
}
std::span<const qlora_operand>
LoadedModule::operands(const qlora_command &command) const {
  return operands().subspan(command.first_operand, command.operand_count);
}
std::span<const int64_t>
LoadedModule::constants(const qlora_launch &launch) const {
  return {module->constants + launch.first_constant, launch.constant_count};
}

bool LoadedModule::uses(unsigned group) const {
  const auto isOfGroup = [&](const qlora_command &command) {
    return command.kind == QLORA_COMMAND_COLLECTIVE && command.group == group;
  };
  for (const qlora_module *stage = first; stage; stage = stage->next_stage)
    if (std::any_of(stage->commands, stage->commands + stage->command_count,
                    isOfGroup))
      return true;
  return false;
}

std::optional<uint32_t> LoadedModule::arena(qlora_arena_kind kind) const {
  for (uint32_t i = 0; i < module->arena_count; ++i)
    if (module->arenas[i].kind == kind)
      return i;
  return std::nullopt;
}

uint64_t LoadedModule::arenaBytes(qlora_arena_kind kind) const {
  const auto index = arena(kind);
  return index ? module->arenas[*index].bytes : 0;
}

const qlora_parameter *LoadedModule::parameter(std::string_view name) const {
  for (const qlora_parameter &parameter : parameters())
    if (parameter.name == name)
      return &parameter;
  return nullptr;
}

const qlora_parameter *
LoadedModule::parameterOfModel(std::string_view name) const {
  for (int number = 0; number < stages(); ++number)
    if (const auto *found = ofStage(number).parameter(name))
      return found;
  return nullptr;
}

const qlora_entry *LoadedModule::entry(qlora_entry_kind kind, int64_t batch,
                                       int64_t length) const {
  for (const qlora_entry &entry : entries())
    if (entry.kind == kind && entry.batch == batch && entry.length == length)
      return &entry;
  return nullptr;
}

const qlora_binding *LoadedModule::binding(const qlora_entry &entry,
                                           qlora_binding_kind kind) const {
  for (const qlora_binding &binding : bindings(entry))
    if (binding.kind == kind)
      return &binding;
  return nullptr;
}

} // namespace qlora
