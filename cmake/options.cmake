set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Programs link modules, and other people's programs the shared library of all modules, which shows the names of
# include/lockstep alone.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${lockstep_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  if(PROJECT_IS_TOP_LEVEL)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
  else()
    set(CMAKE_BUILD_TYPE Release)   # of lockstep alone: the project around it has what it says itself
  endif()
endif()

include(CheckCXXSourceCompiles)
check_cxx_source_compiles("#include <source_location>
int main() { return static_cast<int>(std::source_location::current().line()) - 2; }" LOCKSTEP_COMPILER_FITS)
if(NOT LOCKSTEP_COMPILER_FITS)
  message(FATAL_ERROR "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} (${CMAKE_CXX_COMPILER}) cannot compile lockstep: it does "
    "not know std::source_location of C++20. Use g++ 12 or newer (-DCMAKE_CXX_COMPILER=g++). A program compiled by clang 14 can use "
    "an installed lockstep (docs/install.md).")
endif()

find_program(LOCKSTEP_CCACHE ccache)
# A launcher that somebody else chose may not know precompiled headers, nor does ccache know those of other compilers
# without options of their own.
set(precompile OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(precompile ON)
endif()
if(LOCKSTEP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${LOCKSTEP_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${LOCKSTEP_CCACHE})
endif()

# Within another project: the library alone.
option(LOCKSTEP_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_INSTALL "Install lockstep with the project" ${PROJECT_IS_TOP_LEVEL})
set(LOCKSTEP_CUDA AUTO CACHE STRING "CUDA backend: AUTO (where nvcc and the libraries are found), ON or OFF")
set_property(CACHE LOCKSTEP_CUDA PROPERTY STRINGS AUTO ON OFF)
set(LOCKSTEP_CURL AUTO CACHE STRING "metrics.mlflow, by libcurl: AUTO (where its headers are found), ON or OFF")
set_property(CACHE LOCKSTEP_CURL PROPERTY STRINGS AUTO ON OFF)
set(architectures "80-real;90-real;90-virtual")
if(DEFINED ENV{CUDAARCHS})
  set(architectures $ENV{CUDAARCHS})
endif()
set(LOCKSTEP_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "Compute capabilities of the CUDA kernels, as CMAKE_CUDA_ARCHITECTURES")
option(LOCKSTEP_PRECOMPILE "Precompile headers that most files include" ${precompile})
option(LOCKSTEP_UNITY "Compile several files of a module or of a test as one, which takes half the time" ${precompile})
set(LOCKSTEP_SANITIZE "" CACHE STRING "Comma list for -fsanitize: address,undefined or thread")
option(LOCKSTEP_FUZZ "Build programs of libFuzzer as the only tests (preset fuzz)" OFF)
set(LOCKSTEP_CPU_ARCH "native" CACHE STRING "-march of the CPU kernels; x86-64-v3 for binaries that travel")

add_library(lockstep_flags INTERFACE)
# -Wrestrict: false alarms of g++ 12 in std::string (GCC bug 105651).
# No contraction: a fused multiply-add changes bits with the compiler's mood. Formulas that want one call std::fma.
target_compile_options(lockstep_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wno-missing-field-initializers $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> -ffp-contract=off>
  $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-ffp-contract=off>)
target_include_directories(lockstep_flags INTERFACE ${lockstep_SOURCE_DIR}/include ${lockstep_SOURCE_DIR}/src)
if(LOCKSTEP_SANITIZE)
  target_compile_options(lockstep_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(lockstep_flags INTERFACE -fsanitize=${LOCKSTEP_SANITIZE})
endif()
if(LOCKSTEP_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "LOCKSTEP_FUZZ=ON needs clang 16 or newer, which has libFuzzer, but the compiler is ${CMAKE_CXX_COMPILER_ID}: "
      "install clang-16 and libclang-rt-16-dev, and set -DCMAKE_CXX_COMPILER=clang++-16 -DCMAKE_C_COMPILER=clang-16.")
  endif()
  # Counts which branches an input takes.
  target_compile_options(lockstep_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()
