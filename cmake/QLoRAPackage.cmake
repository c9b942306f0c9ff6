# SPDX-License-Identifier: MIT

# Rules for cmake --install BUILD --prefix PREFIX, and for a Debian package (run
# cpack -G DEB in the build folder). A prefix can be moved: programs need only
# system libraries, and find qlora-data in their own folder.
include(GNUInstallDirs)
set(QLORA_SHARE ${CMAKE_INSTALL_DATADIR}/qlora)
set(programs qlora qlora-run)
if(QLORA_COMPILER)
  list(APPEND programs qloracc qlora-import)
  # The dynamic loader does not search the folder of Debian's MLIR.
  set_target_properties(qloracc qlora-import PROPERTIES
                        INSTALL_RPATH "${LLVM_LIBRARY_DIR}")
  install(PROGRAMS tools/qloracc/memory_viz.py
          DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME qlora-memory-viz)
endif()
install(TARGETS ${programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# A folder of share/ holds the script qlora-data and its Python package. bin/
# has a relative link to the script.
install(PROGRAMS tools/qlora-data/qlora-data
        DESTINATION ${QLORA_SHARE}/qlora-data)
install(DIRECTORY tools/qlora-data/qlora_data
        DESTINATION ${QLORA_SHARE}/qlora-data
        PATTERN __pycache__ EXCLUDE)
# Installs copies of Python packages that qlora-data needs, because Debian lacks
# some. qlora-data uses the copies only if the Python that it runs in lacks the
# packages. The copies work with Python 3.10 or later.
file(GLOB packages CONFIGURE_DEPENDS
     .venv/lib/python3*/site-packages/tokenizers
     .venv/lib/python3*/site-packages/jinja2
     .venv/lib/python3*/site-packages/markupsafe
     .venv/lib/python3*/site-packages/tokenizers-*.dist-info
     .venv/lib/python3*/site-packages/jinja2-*.dist-info
     .venv/lib/python3*/site-packages/markupsafe-*.dist-info)
if(packages)
  install(DIRECTORY ${packages}
          DESTINATION ${QLORA_SHARE}/qlora-data/packages
          PATTERN __pycache__ EXCLUDE
          PATTERN _speedups.* EXCLUDE) # optional, for one Python version only
else()
  message(STATUS "no .venv: what is installed from here will need an "
                 "environment with tokenizers and jinja2")
endif()
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/package)
file(CREATE_LINK ../${QLORA_SHARE}/qlora-data/qlora-data
     ${CMAKE_CURRENT_BINARY_DIR}/package/qlora-data SYMBOLIC)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/package/qlora-data
        DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY examples/demo DESTINATION ${QLORA_SHARE}/examples)
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs)

# The package depends on the libraries that its programs link, which
# dpkg-shlibdeps finds, and on the programs that they start: clang, lld, Python.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME qlora)
set(CPACK_PACKAGE_CONTACT "qlora maintainers <qlora@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY
    "compile and run LoRA fine-tuning of language models on a 4-bit base")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "python3")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3-venv")
if(QLORA_COMPILER)
  string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ", clang-22, lld-22")
endif()
include(CPack)
