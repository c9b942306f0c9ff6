// SPDX-License-Identifier: MIT

// Checks of a module's collectives: what each kind has as operands.

#include "runtime/Module/ModuleCheck.h"

#include "runtime/Module/ModuleLoader.h"

#include <array>

namespace qlora {

namespace {
/// What a kind of collective has.
struct CollectiveForm {
  std::array<uint8_t, 2> access; ///< of the operands; 0: there is no second
  bool isSum = false;
  enum { kNone, kRank, kPlaces } peer = kNone;
};
} // namespace

static constexpr CollectiveForm kCollectiveForms[QLORA_COLLECTIVE_COUNT] = {
    {{QLORA_READ_WRITE, 0}, true},
    {{QLORA_WRITE, QLORA_READ}},
    {{QLORA_WRITE, QLORA_READ}, true},
    {{QLORA_READ_WRITE, 0}, false, CollectiveForm::kRank},
    {{QLORA_WRITE, QLORA_READ}},
    {{QLORA_READ, 0}, false, CollectiveForm::kPlaces},
    {{QLORA_READ_WRITE, 0}, false, CollectiveForm::kPlaces},
};

static Status checkCollectiveOperands(const CollectiveForm &form,
                                      const qlora_command &command,
                                      const qlora_operand *operands) {
  const uint16_t count = form.access[1] ? 2 : 1;
  if (command.operand_count != count)
    return damaged("{} operands instead of {}", command.operand_count, count);
  const uint8_t dtype = operands[0].dtype;
  for (uint16_t i = 0; i < command.operand_count; ++i)
    if (operands[i].access != form.access[i] || operands[i].dtype != dtype ||
        dtype == QLORA_DTYPE_NF4)
      return damaged("operand {} has dtype {} and access {} instead of {} and "
                     "{}",
                     i, operands[i].dtype, operands[i].access, dtype,
                     form.access[i]);
  if (command.operand_count == 2 && overlap(operands[0], operands[1]))
    return damaged("source and target overlap");
  if (form.isSum && dtype > QLORA_DTYPE_I32)
    return damaged("a sum of dtype {}", dtype);
  return Status::ok();
}

Status checkCollective(const qlora_module &m, const qlora_command &command) {
  if (command.kind != QLORA_COMMAND_COLLECTIVE) {
    if (command.collective != 0 || command.group != 0 || command.peer != 0)
      return damaged("collective {}, group {} and peer {} of a command that is "
                     "none",
                     command.collective, command.group, command.peer);
    return Status::ok();
  }
  const qlora_operand *operands = m.operands + command.first_operand;
  if (command.collective >= QLORA_COLLECTIVE_COUNT ||
      command.group >= QLORA_GROUP_COUNT)
    return damaged("collective {} over group {}", command.collective,
                   command.group);
  const CollectiveForm &form = kCollectiveForms[command.collective];
  QLORA_RETURN_IF_ERROR(checkCollectiveOperands(form, command, operands));
  if (form.peer == CollectiveForm::kRank
          ? command.peer < 0
          : (form.peer == CollectiveForm::kPlaces) != (command.peer != 0))
    return damaged("{} with peer {}", commandName(command), command.peer);
  // Ranks agree on the order of collectives because one queue has them all.
  if (command.queue != QLORA_QUEUE_COMMUNICATION)
    return damaged("a collective on the {} queue", queueName(command.queue));
  return Status::ok();
}

} // namespace qlora
