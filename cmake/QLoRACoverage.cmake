# SPDX-License-Identifier: MIT

# Counts the executed lines and branches of runtime libraries, for
# tests/coverage.py and tests/mutants.py. Does not count headers outside of
# runtime/. Compiles only the listed libraries differently, so that ccache can
# provide all other objects. Programs that link them need --coverage.
option(QLORA_COVERAGE "Count the branches that tests take (GCC)" OFF)

function(qlora_coverage)
  if(NOT QLORA_COVERAGE)
    return()
  endif()
  foreach(library ${ARGN})
    target_compile_options(${library} PRIVATE --coverage -O0
      -fprofile-update=atomic -fprofile-filter-files=/runtime/)
    target_link_options(${library} PUBLIC --coverage)
    # Without unity builds, a change of one file recompiles only that file.
    set_target_properties(${library} PROPERTIES UNITY_BUILD OFF)
  endforeach()
endfunction()
