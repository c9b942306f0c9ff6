# SPDX-License-Identifier: MIT

# Embeds the joined files in a library as the C++ string `name`, so that
# programs need no source tree to run. ${embedded_texts} are the sources to add.
function(embed_text name)
  list(TRANSFORM ARGN PREPEND ${CMAKE_SOURCE_DIR}/ OUTPUT_VARIABLE sources)
  set(text ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  add_custom_command(OUTPUT ${text}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${text} -DNAME=${name}
            "-DFILES=${sources}"
            -P ${CMAKE_SOURCE_DIR}/cmake/QLoRAEmbedText.cmake
    DEPENDS ${sources} ${CMAKE_SOURCE_DIR}/cmake/QLoRAEmbedText.cmake
    VERBATIM)
  set_source_files_properties(${text} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  set(embedded_texts ${embedded_texts} ${text} PARENT_SCOPE)
endfunction()
