# SPDX-License-Identifier: MIT

# LLVM's own switch loses UBSan out of tree, and ThreadSanitizer does not
# understand libgomp: so our own flags, and OpenMP off under TSan.
add_compile_options(-Wall -Wextra -Wno-unused-parameter)
if(QLORA_SANITIZE)
  string(REPLACE ";" "," QLORA_SANITIZERS "${QLORA_SANITIZE}")
  add_compile_options(-fsanitize=${QLORA_SANITIZERS} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${QLORA_SANITIZERS})
  # With a check at each access, what -O1 adds to -Og takes a third of the build
  # again, and what -O2 adds to that another. Kernels have their own level.
  string(REPLACE "-O2" "-Og" CMAKE_CXX_FLAGS_RELEASE
                 "${CMAKE_CXX_FLAGS_RELEASE}")
  # Types of a test that others derive from are in no main file.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
