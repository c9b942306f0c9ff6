// SPDX-License-Identifier: MIT

#include "runtime/Extras/RunExtras.h"

#include "runtime/Extras/Dump.h"
#include "runtime/Extras/HubPush.h"
#include "runtime/Extras/ModelCard.h"

namespace qlora {

RunExtras makeExtras(const SessionRequest &request) {
  RunExtras extras;
  if (!request.dumpFile.empty())
    extras.push_back(std::make_unique<Dump>(request.dumpFile));
  extras.push_back(std::make_unique<RunCard>());
  extras.push_back(std::make_unique<HubPush>());
  return extras;
}

} // namespace qlora
