# SPDX-License-Identifier: MIT

# Generates and installs man pages of the programs, from their --help or
# --help-all, if help2man is installed.
find_program(QLORA_HELP2MAN help2man)
set(QLORA_MAN_PAGES ${CMAKE_CURRENT_BINARY_DIR}/man)
set(manPages)

# Adds a man page. `name` is the text of its section NAME. `help` is the option
# that prints the command's help.
function(qlora_man_page page command name help)
  separate_arguments(command)
  list(POP_FRONT command program)
  set(file ${QLORA_MAN_PAGES}/${page}.1)
  string(JOIN " " text $<TARGET_FILE:${program}> ${command})
  add_custom_command(
    OUTPUT ${file}
    COMMAND ${QLORA_HELP2MAN} --no-info --help-option=${help} --name=${name}
            --output=${file} ${text}
    DEPENDS ${program} VERBATIM)
  list(APPEND manPages ${file})
  set(manPages ${manPages} PARENT_SCOPE)
endfunction()

if(QLORA_HELP2MAN)
  file(MAKE_DIRECTORY ${QLORA_MAN_PAGES})
  qlora_man_page(qlora qlora "fine-tune language models with LoRA" --help)
  qlora_man_page(qlora-train "qlora train"
                 "train a LoRA adapter of a Hugging Face model" --help-all)
  qlora_man_page(qlora-memory "qlora memory"
                 "memory that training a model needs, and GPUs that fit"
                 --help-all)
  qlora_man_page(qlora-show-data "qlora show-data"
                 "rows as tokens, with those in the loss marked" --help)
  qlora_man_page(qlora-run qlora-run "train a program that qloracc compiled"
                 --help-all)
  if(QLORA_COMPILER)
    qlora_man_page(qloracc qloracc
                   "compile a model's graph to a training program" --help-all)
    qlora_man_page(qlora-import qlora-import
                   "make a graph of a Hugging Face model folder" --help-all)
  endif()
  add_custom_target(man ALL DEPENDS ${manPages})
  install(FILES ${manPages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
