# The loops that take most of a training's time on CPUs: compiled once for each instruction set, of which the program takes the
# best that its processor has (src/base/instruction_set.h), whatever LOCKSTEP_CPU_ARCH is. Neither united nor with precompiled
# headers, so that nothing gets in but what they include. -fno-trapping-math: who asks for no floating-point exceptions gets a
# selection in place of a branch. -fno-math-errno: nobody reads errno after a square root. Neither changes a number.
set(LOCKSTEP_LOOP_OPTIONS -O3 -Wno-psabi -fno-trapping-math -fno-math-errno)

# lockstep_loops(module sources...): adds them to the module.
function(lockstep_loops module)
  set(sets portable)
  set(portable)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    list(APPEND sets avx2 avx512)
    set(avx2 -mavx2 -mfma)
    set(avx512 -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
  endif()
  foreach(one ${sets})
    set(objects lockstep_${module}_loops_${one})
    add_library(${objects} OBJECT ${ARGN})
    target_link_libraries(${objects} PRIVATE lockstep_flags)
    target_compile_options(${objects} PRIVATE ${LOCKSTEP_LOOP_OPTIONS} ${${one}})
    target_sources(lockstep_${module} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
endfunction()
