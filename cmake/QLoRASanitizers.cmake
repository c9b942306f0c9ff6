# SPDX-License-Identifier: MIT

# Sanitizer flags. LLVM_USE_SANITIZER is not used, because it would drop UBSan
# outside of LLVM's source tree. With ThreadSanitizer, the runtime is built
# without OpenMP, because TSan does not support libgomp.
add_compile_options(-Wall -Wextra -Wno-unused-parameter)
if(QLORA_SANITIZE)
  string(REPLACE ";" "," QLORA_SANITIZERS "${QLORA_SANITIZE}")
  add_compile_options(-fsanitize=${QLORA_SANITIZERS} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${QLORA_SANITIZERS})
  # With sanitizers, -O1 takes a third longer to build than -Og, and -O2 another
  # third. CPU kernels set their own level, -O3.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Og>)
  # GCC warns about types in an included file whose base is in an anonymous
  # namespace. In unity builds, test files are included files.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
