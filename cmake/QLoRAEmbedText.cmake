# SPDX-License-Identifier: MIT

# cmake -DOUTPUT=x.cpp -DNAME=kText "-DFILES=a.h;b.h" -P QLoRAEmbedText.cmake
#
# Concatenates the files into one C++ string. Drops their includes of each other
# ("runtime/..."), so list them in include order.
set(text "")
foreach(file ${FILES})
  file(READ ${file} content)
  string(REGEX REPLACE "#include \"runtime/[^\n]*\n" "" content "${content}")
  string(APPEND text "${content}")
endforeach()
file(WRITE ${OUTPUT}
  "extern const char ${NAME}[];\n"
  "const char ${NAME}[] = R\"QLORA(${text})QLORA\";\n")
