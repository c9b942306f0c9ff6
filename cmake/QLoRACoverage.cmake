# SPDX-License-Identifier: MIT

# Counts the executed lines and branches of libraries of the runtime, for
# tests/coverage.py and tests/mutants.py. Functions of other headers are not
# counted. Only the listed libraries are compiled differently, so that ccache
# still has the rest; programs that use them need GCC's counters (--coverage).
option(QLORA_COVERAGE "Count the branches that tests take (GCC)" OFF)

function(qlora_coverage)
  if(NOT QLORA_COVERAGE)
    return()
  endif()
  foreach(library ${ARGN})
    target_compile_options(${library} PRIVATE --coverage -O0
      -fprofile-update=atomic -fprofile-filter-files=/runtime/)
    target_link_options(${library} PUBLIC --coverage)
    # A change of one file compiles that file alone.
    set_target_properties(${library} PROPERTIES UNITY_BUILD OFF)
  endforeach()
endfunction()
