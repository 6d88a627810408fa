# The loops that take most of a training's time on CPUs: compiled once for each instruction set, of which the program takes the
# best that its processor has (src/base/instruction_set.h), whatever LOCKSTEP_CPU_ARCH is. Neither united nor with precompiled
# headers, so that nothing gets in but what they include. -fno-trapping-math: who asks for no floating-point exceptions gets a
# selection in place of a branch. -fno-math-errno: nobody reads errno after a square root. Neither changes a number.
set(LOCKSTEP_LOOP_OPTIONS ${LOCKSTEP_HOT} -Wno-psabi -fno-trapping-math -fno-math-errno)
set(LOCKSTEP_AVX2_OPTIONS -mavx2 -mfma)
set(LOCKSTEP_AVX512_OPTIONS ${LOCKSTEP_AVX2_OPTIONS} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)

# A program with a sanitizer runs where it was built, on one of them, and each takes long to compile.
set(every ALL)
if(LOCKSTEP_SANITIZE)
  set(every NATIVE)
endif()
set(LOCKSTEP_LOOPS ${every} CACHE STRING "Instruction sets of the hot loops: ALL, or NATIVE: only the best that LOCKSTEP_CPU_ARCH has")
set_property(CACHE LOCKSTEP_LOOPS PROPERTY STRINGS ALL NATIVE)

set(LOCKSTEP_LOOP_SETS PORTABLE)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(LOCKSTEP_LOOP_SETS AVX512 AVX2 PORTABLE)
endif()
if(LOCKSTEP_LOOPS STREQUAL "NATIVE")
  set(widths AVX512 16 AVX2 8 PORTABLE 4)   # floats in a register of base/simd.h
  foreach(set ${LOCKSTEP_LOOP_SETS})
    list(FIND widths ${set} place)
    math(EXPR place "${place} + 1")
    list(GET widths ${place} width)
    set(CMAKE_REQUIRED_FLAGS "-march=${LOCKSTEP_CPU_ARCH} -Wno-psabi")
    set(CMAKE_REQUIRED_INCLUDES ${lockstep_SOURCE_DIR}/src)
    check_cxx_source_compiles("#include \"base/simd.h\"
      static_assert(lockstep::kRegisterLanes == ${width});
      int main() { return 0; }" LOCKSTEP_BEST_IS_${set})
    if(LOCKSTEP_BEST_IS_${set})
      set(LOCKSTEP_LOOP_SETS ${set})
      break()
    endif()
  endforeach()
elseif(NOT LOCKSTEP_LOOPS STREQUAL "ALL")
  message(FATAL_ERROR "LOCKSTEP_LOOPS is '${LOCKSTEP_LOOPS}'; it can be ALL or NATIVE.")
endif()

# lockstep_loops(module sources...): adds them to the module.
function(lockstep_loops module)
  foreach(set ${LOCKSTEP_LOOP_SETS})
    string(TOLOWER lockstep_${module}_loops_${set} objects)
    add_library(${objects} OBJECT ${ARGN})
    target_link_libraries(${objects} PRIVATE lockstep_flags)
    target_compile_options(${objects} PRIVATE ${LOCKSTEP_LOOP_OPTIONS} ${LOCKSTEP_${set}_OPTIONS})
    target_sources(lockstep_${module} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
endfunction()

# In these sources of a module LOCKSTEP_LOOPS_AVX2 and so on are defined for the sets that there are.
function(lockstep_know_loops)
  list(TRANSFORM LOCKSTEP_LOOP_SETS PREPEND LOCKSTEP_LOOPS_ OUTPUT_VARIABLE definitions)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_DEFINITIONS "${definitions}" SKIP_PRECOMPILE_HEADERS ON)
endfunction()
