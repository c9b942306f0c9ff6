// SPDX-License-Identifier: MIT

// First and last command of each buffer (Liveness.h).

#include "compiler/Support/Liveness.h"

#include <algorithm>
#include <cassert>

using namespace qlora;

/// The buffer that each one's memory belongs to, views of views included.
static std::vector<uint32_t> findSources(std::span<const uint32_t> viewOf) {
  std::vector<uint32_t> sources(viewOf.size());
  for (uint32_t buffer = 0; buffer < viewOf.size(); ++buffer) {
    uint32_t source = buffer;
    for (size_t steps = 0; viewOf[source] != kNotAView; ++steps) {
      assert(steps < viewOf.size() && "a view of itself");
      source = viewOf[source];
    }
    sources[buffer] = source;
  }
  return sources;
}

std::vector<BufferLife>
qlora::computeLiveness(std::span<const std::vector<BufferUse>> commands,
                       std::span<const uint32_t> viewOf,
                       std::span<const CommandSpan> spans) {
  assert((spans.empty() || spans.size() == commands.size()) &&
         "one span per command");
  std::vector<uint32_t> sources = findSources(viewOf);
  std::vector<BufferLife> lives(viewOf.size());
  std::vector<bool> written(viewOf.size(), false);
  for (size_t command = 0; command < commands.size(); ++command) {
    const int64_t position = command;
    const CommandSpan span =
        spans.empty() ? CommandSpan{position, position} : spans[command];
    // Reads first: a command that reads one part and writes another still
    // reads what was there before it.
    for (const BufferUse &use : commands[command]) {
      uint32_t source = sources[use.buffer];
      BufferLife &life = lives[source];
      life.first =
          life.isUsed() ? std::min(life.first, span.first) : span.first;
      life.last = std::max(life.last, span.last);
      if (use.access != BufferAccess::Write && !written[source] &&
          life.readBeforeWrite < 0)
        life.readBeforeWrite = command;
    }
    for (const BufferUse &use : commands[command])
      if (use.access != BufferAccess::Read)
        written[sources[use.buffer]] = true;
  }
  for (size_t buffer = 0; buffer < viewOf.size(); ++buffer)
    lives[buffer] = lives[sources[buffer]];
  return lives;
}
