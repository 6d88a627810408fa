# Headers of the standard library, of fmt and of what else many files include are read once for all files that are compiled
# alike, which takes about a third less to compile them. Files include what they use all the same: a preset and other
# compilers go without (LOCKSTEP_PRECOMPILE).

# With it g++ tells ccache which precompiled headers it has used.
if(LOCKSTEP_PRECOMPILE AND LOCKSTEP_CCACHE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(lockstep_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()

set(headers <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <cstdint> <cstring> <deque> <exception>
  <filesystem> <fstream> <functional> <limits> <map> <memory> <mutex> <numeric> <optional> <random> <set> <span> <sstream>
  <string> <string_view> <thread> <tuple> <utility> <variant> <vector> <fmt/format.h>)
set(LOCKSTEP_PRECOMPILED_FOR_module ${headers})
set(LOCKSTEP_PRECOMPILED_FOR_cold ${headers} <CLI/CLI.hpp> <nlohmann/json.hpp>)
set(LOCKSTEP_PRECOMPILED_FOR_test ${headers} <gmock/gmock.h> <gtest/gtest.h>)

# `kind` says how the target is compiled (cmake/modules.cmake): module, cold or test; targets of a kind share what is
# precompiled, but for those with a library that changes how they are compiled. Single files with options of their own
# have SKIP_PRECOMPILE_HEADERS.
function(lockstep_precompile target kind)   # libraries...
  if(NOT LOCKSTEP_PRECOMPILE)
    return()
  endif()
  if("OpenMP::OpenMP_CXX" IN_LIST ARGN)
    target_precompile_headers(${target} PRIVATE ${LOCKSTEP_PRECOMPILED_FOR_${kind}})
    return()
  endif()
  set(shared lockstep_headers_${kind})
  if(NOT TARGET ${shared})
    file(CONFIGURE OUTPUT ${lockstep_BINARY_DIR}/precompiled/${kind}.cpp CONTENT "")
    add_library(${shared} OBJECT ${lockstep_BINARY_DIR}/precompiled/${kind}.cpp)
    target_link_libraries(${shared} PRIVATE lockstep_flags fmt::fmt)
    target_precompile_headers(${shared} PRIVATE ${LOCKSTEP_PRECOMPILED_FOR_${kind}})
    if(kind STREQUAL "cold")
      target_compile_options(${shared} PRIVATE ${LOCKSTEP_COLD})
      target_link_libraries(${shared} PRIVATE CLI11::CLI11 nlohmann_json::nlohmann_json)
    endif()
    if(kind STREQUAL "test")
      target_compile_options(${shared} PRIVATE ${LOCKSTEP_UNOPTIMISED})
      target_link_libraries(${shared} PRIVATE GTest::gtest GTest::gmock)
      # As CMake compiles programs.
      set_target_properties(${shared} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${shared} PRIVATE -fPIE)
    endif()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${shared})
endfunction()
