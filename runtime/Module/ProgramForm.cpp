// SPDX-License-Identifier: MIT

// Hashes the tables into a digest.

#include "runtime/Module/ProgramForm.h"

#include <array>

#include "runtime/Base/ContentHash.h"
#include "runtime/Module/ModuleCheck.h"
#include "runtime/Options/ParallelMesh.h"

namespace qlora {

/// Adds integers of any width to the hash.
template <typename... Numbers>
static void add(ContentHash &hash, Numbers... numbers) {
  hash.add(std::array{static_cast<int64_t>(numbers)...});
}

/// Whether reductions and checkpoints need equal layouts on all ranks.
static bool isCommon(unsigned kind) {
  return kind == QLORA_ARENA_TRAINABLE || kind == QLORA_ARENA_GRADIENT ||
         kind == QLORA_ARENA_STATE || kind == QLORA_ARENA_RESIDUAL;
}

static void addParameter(const LoadedModule &module, const qlora_parameter &p,
                         ContentHash &hash) {
  hash.add(p.name);
  hash.add(std::span(p.shape, p.rank));
  add(hash, p.role, p.init, p.quantization, p.block, p.double_quant,
      p.file_dtype, p.format, p.slices);
  if (const unsigned kind = module.arenas()[p.arena].kind; isCommon(kind))
    add(hash, kind, p.dtype, p.offset, p.bytes, p.piece, p.first);
}

static void addCollective(const LoadedModule &module,
                          const qlora_command &command, ContentHash &hash) {
  add(hash, command.collective, command.group, command.peer, command.queue);
  for (const qlora_operand &operand : module.operands(command)) {
    const unsigned kind = module.arenas()[operand.arena].kind;
    add(hash, operand.dtype, operand.bytes, operand.skipped);
    if (isCommon(kind))
      add(hash, kind, operand.offset);
  }
}

static void addEntry(const LoadedModule &module, const qlora_entry &entry,
                     ContentHash &hash) {
  add(hash, entry.kind, entry.batch, entry.length);
  for (const qlora_binding &binding : module.bindings(entry))
    if (const unsigned kind = module.arenas()[binding.arena].kind;
        isCommon(kind))
      add(hash, binding.kind, kind, binding.offset);
  for (const qlora_command &command : module.commands(entry))
    if (command.kind == QLORA_COMMAND_COLLECTIVE)
      addCollective(module, command, hash);
}

std::string programForm(const LoadedModule &module) {
  ContentHash hash;
  for (int number = 0; number < module.stages(); ++number) {
    const LoadedModule stage = module.ofStage(number);
    const qlora_module &table = stage.table();
    hash.add(table.producer);
    for (const auto &[name, member] : kNumbersOfRun)
      add(hash, table.*member);
    hash.add(ParallelMesh(table.mesh).text());
    for (const qlora_arena &arena : stage.arenas())
      if (isCommon(arena.kind))
        add(hash, arena.kind, arena.bytes);
    for (const qlora_parameter &parameter : stage.parameters())
      addParameter(stage, parameter, hash);
    for (const qlora_entry &entry : stage.entries())
      addEntry(stage, entry, hash);
  }
  return hash.finish();
}

} // namespace qlora
