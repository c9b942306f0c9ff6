# SPDX-License-Identifier: MIT

# cmake -DOUTPUT=x.cpp -DNAME=kText "-DFILES=a.h;b.h" -P QLoRAEmbedText.cmake
#
# Concatenates the files into one C++ string. Drops #include "runtime/..."
# lines, so FILES must list included files before the files that include them.
set(text "")
foreach(file ${FILES})
  file(READ ${file} content)
  string(REGEX REPLACE "#include \"runtime/[^\n]*\n" "" content "${content}")
  string(APPEND text "${content}")
endforeach()
file(WRITE ${OUTPUT}
  "extern const char ${NAME}[];\n"
  "const char ${NAME}[] = R\"QLORA(${text})QLORA\";\n")
