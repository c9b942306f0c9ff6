# SPDX-License-Identifier: MIT

# LLVM's own switch loses UBSan out of tree, and ThreadSanitizer does not
# support libgomp: so we use our own flags, and no OpenMP under TSan.
add_compile_options(-Wall -Wextra -Wno-unused-parameter)
if(QLORA_SANITIZE)
  string(REPLACE ";" "," QLORA_SANITIZERS "${QLORA_SANITIZE}")
  add_compile_options(-fsanitize=${QLORA_SANITIZERS} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${QLORA_SANITIZERS})
  # With sanitizer checks, -O1 takes a third more build time than -Og, and -O2
  # another third. Kernels have their own level.
  string(REPLACE "-O2" "-Og" CMAKE_CXX_FLAGS_RELEASE
                 "${CMAKE_CXX_FLAGS_RELEASE}")
  # Unity builds include test files, whose local base types this would report.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
