// SPDX-License-Identifier: MIT

// Generates the completion script from the option tables. The script is for
// bash; zsh runs it in its bash emulation.

#include <fmt/ranges.h>

#include "tools/qlora/Commands.h"
#include "tools/qlora/Eval.h"
#include "tools/qlora/Export.h"
#include "tools/qlora/Generate.h"
#include "tools/qlora/Serve.h"
#include "tools/qlora/ShowData.h"

namespace qlora {

static constexpr const char *kScript = R"(_qlora() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  COMPREPLY=()
  if [[ $COMP_CWORD == 1 ]]; then
    COMPREPLY=($(compgen -W "{}" -- "$word"))
    return
  fi
  case $before in
  help) COMPREPLY=($(compgen -W "{}" -- "$word")); return ;;
  completion) COMPREPLY=($(compgen -W "bash zsh" -- "$word")); return ;;
{}  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "{}" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _qlora qlora
)";

StatusOr<std::string> completionScript(std::string_view shell) {
  if (shell != "bash" && shell != "zsh")
    return Status::invalid("there is a completion for bash and for zsh, but "
                           "got '{}'; write: qlora completion bash",
                           shell);
  std::string flags, values;
  auto tables = showDataTool().tables;
  tables.push_back(generateTool().tables.front());
  tables.push_back(evalTool().tables.front());
  tables.push_back(serveTool().tables.front());
  tables.push_back(exportTool().tables.front());
  for (const std::span<const OptionRow> table : tables)
    for (const OptionRow &row : table) {
      const std::string flag = flagSpelling(row.name);
      flags += (flags.empty() ? "" : " ") + flag;
      if (row.type == OptionType::kChoice || row.type == OptionType::kChoices)
        values += fmt::format("  {}) COMPREPLY=($(compgen -W \"{}\" -- "
                              "\"$word\")); return ;;\n",
                              flag, fmt::join(shownChoices(row), " "));
    }
  const std::string script =
      fmt::format(kScript, fmt::join(commandNames(), " "),
                  fmt::join(topicNames(), " "), values, flags);
  if (shell == "bash")
    return script;
  return "#compdef qlora\nautoload -U +X bashcompinit && bashcompinit\n" +
         script;
}

} // namespace qlora
