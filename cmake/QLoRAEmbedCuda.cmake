# SPDX-License-Identifier: MIT

# cmake -DOUTPUT=x.cpp -DROOT=folder "-DUNITS=a.cu;b.cu" -P QLoRAEmbedCuda.cmake
#
# Writes device code as C++ strings. qloraCudaUnits has one string per unit, in
# the order of UNITS. qloraCudaPrelude has the functions that generated kernels
# call. The first #include of a "runtime/..." file in a string becomes the
# file's text. Later ones are dropped.
cmake_minimum_required(VERSION 3.25)

# Appends the file, with its includes replaced, to the global property TEXT,
# unless the file is in the list SEEN.
function(append_file path)
  get_property(seen GLOBAL PROPERTY SEEN)
  if(path IN_LIST seen)
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY SEEN ${path})
  file(READ ${ROOT}/${path} rest)
  while(rest MATCHES "#include \"(runtime/[^\"\n]*)\"[^\n]*\n")
    set(line "${CMAKE_MATCH_0}")
    set(included "${CMAKE_MATCH_1}")
    string(FIND "${rest}" "${line}" begin)
    string(LENGTH "${line}" length)
    math(EXPR end "${begin} + ${length}")
    string(SUBSTRING "${rest}" 0 ${begin} before)
    string(SUBSTRING "${rest}" ${end} -1 rest)
    set_property(GLOBAL APPEND_STRING PROPERTY TEXT "${before}")
    append_file(${included})
  endwhile()
  set_property(GLOBAL APPEND_STRING PROPERTY TEXT "${rest}")
endfunction()

function(complete_text path result)
  set_property(GLOBAL PROPERTY SEEN "")
  set_property(GLOBAL PROPERTY TEXT "")
  append_file(${path})
  get_property(text GLOBAL PROPERTY TEXT)
  set(${result} "R\"QLORA(${text})QLORA\"" PARENT_SCOPE)
endfunction()

complete_text(runtime/Kernels/Cuda/Device/Lanes.cuh prelude)
set(strings "")
set(count 0)
foreach(unit ${UNITS})
  complete_text(${unit} text)
  string(APPEND strings "// ${unit}\n${text},\n")
  math(EXPR count "${count} + 1")
endforeach()
file(WRITE ${OUTPUT}
  "#include <stddef.h>\n"
  "extern const char qloraCudaPrelude[];\n"
  "extern const char *const qloraCudaUnits[];\n"
  "extern const size_t qloraCudaUnitCount;\n"
  "const char qloraCudaPrelude[] = ${prelude};\n"
  "const char *const qloraCudaUnits[] = {${strings}nullptr};\n"
  "const size_t qloraCudaUnitCount = ${count};\n")
