# SPDX-License-Identifier: MIT

# Defines qlora_dialect(Model model), which adds TableGen targets, a library and
# a reference page for the dialect in the current folder. ModelOps.td must
# include all other .td files.
find_package(MLIR 22.1 REQUIRED CONFIG)
list(APPEND CMAKE_MODULE_PATH "${MLIR_CMAKE_DIR}" "${LLVM_CMAKE_DIR}")
include(TableGen)
include(AddLLVM)
include(AddMLIR)
# add_mlir_doc writes to ${MLIR_BINARY_DIR}/docs. Without this variable, that
# would be /docs.
set(MLIR_BINARY_DIR ${CMAKE_BINARY_DIR})
include_directories(SYSTEM ${LLVM_INCLUDE_DIRS} ${MLIR_INCLUDE_DIRS})
add_definitions(${LLVM_DEFINITIONS})

add_custom_target(qloraHeaders)
add_custom_target(docs ALL)

# The shared libraries of MLIR and LLVM.
set(QLORA_MLIR_LIBS MLIR LLVM)

function(qlora_dialect name prefix)
  set(LLVM_TARGET_DEFINITIONS ${name}Ops.td)
  mlir_tablegen(${name}Ops.h.inc -gen-op-decls -dialect=${prefix})
  mlir_tablegen(${name}Ops.cpp.inc -gen-op-defs -dialect=${prefix})
  mlir_tablegen(${name}Dialect.h.inc -gen-dialect-decls -dialect=${prefix})
  mlir_tablegen(${name}Dialect.cpp.inc -gen-dialect-defs -dialect=${prefix})
  mlir_tablegen(${name}Types.h.inc -gen-typedef-decls
                -typedefs-dialect=${prefix})
  mlir_tablegen(${name}Types.cpp.inc -gen-typedef-defs
                -typedefs-dialect=${prefix})
  mlir_tablegen(${name}Attrs.h.inc -gen-attrdef-decls
                -attrdefs-dialect=${prefix})
  mlir_tablegen(${name}Attrs.cpp.inc -gen-attrdef-defs
                -attrdefs-dialect=${prefix})
  mlir_tablegen(${name}Enums.h.inc -gen-enum-decls)
  mlir_tablegen(${name}Enums.cpp.inc -gen-enum-defs)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${name}Interfaces.td)
    set(LLVM_TARGET_DEFINITIONS ${name}Interfaces.td)
    mlir_tablegen(${name}Interfaces.h.inc -gen-op-interface-decls)
    mlir_tablegen(${name}Interfaces.cpp.inc -gen-op-interface-defs)
  endif()
  add_public_tablegen_target(qlora${name}IncGen)
  add_dependencies(qloraHeaders qlora${name}IncGen)
  file(GLOB sources CONFIGURE_DEPENDS *.cpp)
  add_library(qlora${name} STATIC ${sources})
  add_dependencies(qlora${name} qloraHeaders)
  target_link_libraries(qlora${name} PUBLIC ${QLORA_MLIR_LIBS})
  # The generated reference page of the dialect.
  set(page ${CMAKE_BINARY_DIR}/docs/${name}.md)
  add_custom_command(OUTPUT ${page}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/docs
    COMMAND mlir-tblgen -gen-dialect-doc -dialect=${prefix}
            -I ${CMAKE_SOURCE_DIR} -I ${CMAKE_BINARY_DIR}
            -I ${MLIR_INCLUDE_DIRS}
            ${CMAKE_CURRENT_SOURCE_DIR}/${name}Ops.td -o ${page}
    DEPENDS qlora${name}IncGen)
  add_custom_target(docs${name} DEPENDS ${page})
  add_dependencies(docs docs${name})
endfunction()
