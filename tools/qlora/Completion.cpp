// SPDX-License-Identifier: MIT

// Generates the completion scripts from the table of commands and the option
// tables. The scripts for bash and zsh share their lists of flags and values.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "tools/qlora/Commands.h"

namespace qlora {

namespace {
/// An option of one or more commands.
struct Completed {
  const OptionRow *row;
  std::vector<std::string> commands;
};
} // namespace

/// Returns the commands of each option. Commands that take the options of
/// `qlora train` share its rows.
static std::vector<Completed> completedOptions() {
  std::vector<Completed> all;
  std::map<const OptionRow *, size_t> places;
  for (const Command &command : commands()) {
    std::vector<std::span<const OptionRow>> tables = command.tool().tables;
    tables.push_back(questionTable());
    for (const std::span<const OptionRow> table : tables)
      for (const OptionRow &row : table) {
        const auto [place, isNew] = places.emplace(&row, all.size());
        if (isNew)
          all.push_back({&row, {}});
        all[place->second].commands.push_back(command.name);
      }
  }
  return all;
}

/// Returns the words that an option accepts; empty: any text.
static std::string valuesOf(const OptionRow &row) {
  return row.type == OptionType::kBool
             ? "true false"
             : fmt::format("{}", fmt::join(shownChoices(row), " "));
}

/// Returns the first part of a help text, without quotes.
static std::string shortHelp(std::string_view help) {
  std::string text(help.substr(0, help.find_first_of(";:(")));
  std::erase(text, '\'');
  while (!text.empty() && text.back() == ' ')
    text.pop_back();
  return text;
}

/// Returns the flags to offer: the option's name, and its negation if it is on
/// by default.
static std::string offeredFlags(const OptionRow &row) {
  std::string flags = flagSpelling(row.name);
  if (row.type == OptionType::kBool && row.initial == std::string_view("true"))
    flags += " " + flagSpelling(fmt::format("no_{}", row.name));
  return flags;
}

// bash and zsh
// -----------------------------------------------------------------------

/// Returns shell code that appends to `flags` those of the command `$command`.
static std::string flagLists(const std::vector<Completed> &options) {
  std::map<std::string, std::string> lists; // of the same commands
  for (const Completed &option : options)
    lists[fmt::format("{}", fmt::join(option.commands, "|"))] +=
        " " + offeredFlags(*option.row);
  std::string text;
  for (const auto &[names, flags] : lists)
    text += fmt::format("  case $command in {}) flags+='{}' ;; esac\n", names,
                        flags);
  return text;
}

/// Returns shell code that sets `values` and `files` for the option `$flag` of
/// the command `$command`, with all spellings of the option.
static std::string valueLists(const std::vector<Completed> &options) {
  std::map<std::string, std::string> patterns; // by what they set
  for (const Completed &option : options) {
    std::string sets;
    if (const std::string values = valuesOf(*option.row); !values.empty())
      sets += fmt::format("values='{}' ", values);
    if (isPath(option.row->type))
      sets += "files=1 ";
    if (sets.empty())
      continue;
    for (const OptionName &name : optionNames(*option.row))
      for (const std::string &command : option.commands)
        if (!name.isRefused() && !name.isSwitch())
          patterns[sets] +=
              fmt::format("{}'{} {}'", patterns[sets].empty() ? "" : "|",
                          command, flagSpelling(name.name));
  }
  std::string text = "  case \"$command $flag\" in\n";
  for (const auto &[sets, pattern] : patterns)
    text += fmt::format("  {}) {};;\n", pattern, sets);
  return text + "  esac\n";
}

/// Returns shell code that sets `values` for words that are not options.
static std::string wordLists() {
  return fmt::format("  case $command in\n"
                     "  help) values='{} {}' files= ;;\n"
                     "  completion) values='bash fish zsh' files= ;;\n"
                     "  info) files= ;;\n"
                     "  esac\n",
                     fmt::join(commandNames(), " "),
                     fmt::join(topicNames(), " "));
}

// Bash splits --name=value at the equals sign unless COMP_WORDBREAKS lacks it.
static constexpr const char *kBash = R"(_qlora() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  local command=${{COMP_WORDS[1]}} flag= prefix= values= files= flags=
  COMPREPLY=()
  if [[ $COMP_CWORD == 1 ]]; then
    COMPREPLY=($(compgen -W '{}' -- "$word"))
    return
  fi
  if [[ $word == = ]]; then
    flag=$before word=
  elif [[ $before == = ]]; then
    flag=${{COMP_WORDS[COMP_CWORD-2]}}
  elif [[ $word == --*=* ]]; then
    flag=${{word%%=*}} prefix=${{word%%=*}}= word=${{word#*=}}
  elif [[ $before == -* && $word != -* ]]; then
    flag=$before
  fi
{}  if [[ -z $values$files && $word == -* ]]; then
{}    values=$flags
  elif [[ -z $values$files ]]; then
    files=1
{}  fi
  COMPREPLY=($(compgen -P "$prefix" -W "$values" -- "$word"))
  if [[ -n $files ]]; then
    COMPREPLY+=($(compgen -P "$prefix" -f -- "$word"))
  fi
}}
complete -o filenames -F _qlora qlora
)";

static constexpr const char *kZsh = R"(#compdef qlora
_qlora() {{
  local command=${{words[2]}} flag= values= files= flags=
  if (( CURRENT == 2 )); then
    compadd -- {}
    return
  fi
  if [[ $PREFIX == --*=* ]]; then
    flag=${{PREFIX%%=*}}
    compset -P '*='
  elif [[ ${{words[CURRENT-1]}} == -* && $PREFIX != -* ]]; then
    flag=${{words[CURRENT-1]}}
  fi
{}  if [[ -z $values$files && $PREFIX == -* ]]; then
{}    values=$flags
  elif [[ -z $values$files ]]; then
    files=1
{}  fi
  [[ -z $values ]] || compadd -- ${{=values}}
  [[ -z $files ]] || _files
}}
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit; }}
compdef _qlora qlora
)";

static std::string shellScript(const char *form) {
  const auto options = completedOptions();
  return fmt::format(fmt::runtime(form), fmt::join(commandNames(), " "),
                     valueLists(options), flagLists(options), wordLists());
}

// fish
// -----------------------------------------------------------------------

static std::string fishOption(const Completed &option) {
  const OptionRow &row = *option.row;
  std::string text = fmt::format("complete -c qlora -n '__qlora_is {}'",
                                 fmt::join(option.commands, " "));
  for (const OptionName &name : optionNames(row))
    if (name.isShown() && !name.isSwitch())
      text += fmt::format(
          " {} {}", name.name.size() == 1 ? "-s" : "-l",
          flagSpelling(name.name).substr(name.name.size() == 1 ? 1 : 2));
  text += isPath(row.type) ? " -r -F" : " -x";
  if (const std::string values = valuesOf(row); !values.empty())
    text += fmt::format(" -a '{}'", values);
  return text + fmt::format(" -d '{}'\n", shortHelp(row.help));
}

static std::string fishScript() {
  std::string text = R"(function __qlora_is
  set -l given (commandline -opc)
  contains -- "$given[2]" $argv
end
function __qlora_has_command
  test (count (commandline -opc)) -gt 1
end
)";
  for (const Command &command : commands())
    text += fmt::format("complete -c qlora -n 'not __qlora_has_command' -f -a "
                        "{} -d '{}'\n",
                        command.name, shortHelp(command.summary));
  text +=
      fmt::format("complete -c qlora -n '__qlora_is help' -f -a '{} {}'\n"
                  "complete -c qlora -n '__qlora_is completion' -f -a "
                  "'bash fish zsh'\n"
                  "complete -c qlora -n '__qlora_is info' -f\n",
                  fmt::join(commandNames(), " "), fmt::join(topicNames(), " "));
  for (const Completed &option : completedOptions())
    text += fishOption(option);
  return text;
}

StatusOr<std::string> completionScript(std::string_view shell) {
  if (shell == "bash")
    return shellScript(kBash);
  if (shell == "zsh")
    return shellScript(kZsh);
  if (shell == "fish")
    return fishScript();
  return Status::invalid("there is a completion for bash, fish and zsh, but "
                         "not for '{}'; write: qlora completion bash",
                         shell);
}

} // namespace qlora
