# What takes most of a training's time, in every build type: at -O2 g++ 12 leaves loops unvectorised whose trip count it does
# not know. Programs with sanitizers compute little, and take twice as long to compile.
set(LOCKSTEP_HOT -O3)
if(LOCKSTEP_SANITIZE)
  set(LOCKSTEP_HOT -O1)
endif()
# What nobody waits for when it runs is optimised little, which takes a third less to compile.
set(LOCKSTEP_COLD $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
# Tests, of which nearly all call others' code, not at all: with sanitizers they then take half as long to compile.
set(LOCKSTEP_UNOPTIMISED $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O0>)
if(LOCKSTEP_SANITIZE)
  set(LOCKSTEP_UNOPTIMISED -O0)
endif()

# Files of a target are compiled several at a time: names in anonymous namespaces are then those of a target. Files
# include what they use all the same, as of precompiled headers (LOCKSTEP_UNITY).
function(lockstep_unite name)
  if(LOCKSTEP_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
  endif()
endfunction()

# lockstep_module(name [COLD] SOURCES ... [DEPENDS modules...] [LIBRARIES external...])
# One folder of src/ as a static library lockstep_<name>. DEPENDS may only name modules above it in
# docs/architecture.md's list; tests/includes_test.py checks the includes themselves.
function(lockstep_module name)
  cmake_parse_arguments(ARG "COLD" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  add_library(lockstep_${name} STATIC ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPENDS PREPEND lockstep_)
  target_link_libraries(lockstep_${name} PUBLIC lockstep_flags ${ARG_DEPENDS} PRIVATE ${ARG_LIBRARIES})
  lockstep_unite(lockstep_${name})
  if(ARG_COLD)
    target_compile_options(lockstep_${name} PRIVATE ${LOCKSTEP_COLD})
    lockstep_precompile(lockstep_${name} cold ${ARG_LIBRARIES})
  else()
    lockstep_precompile(lockstep_${name} module ${ARG_LIBRARIES})
  endif()
endfunction()

# What all of a test is compiled and linked with.
function(lockstep_compile_test name)   # modules... LIBRARIES ...
  cmake_parse_arguments(ARG "" "" "MODULES;LIBRARIES" ${ARGN})
  # GoogleTest's macros hold an `if`; g++ warns of it behind an `if` without braces.
  target_compile_options(${name} PRIVATE ${LOCKSTEP_UNOPTIMISED} $<$<COMPILE_LANGUAGE:CXX>:-Wno-dangling-else>)
  lockstep_precompile(${name} test ${ARG_LIBRARIES})
  lockstep_unite(${name})
  list(TRANSFORM ARG_MODULES PREPEND lockstep_)
  target_include_directories(${name} PRIVATE ${lockstep_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE lockstep_flags ${ARG_MODULES} ${ARG_LIBRARIES} GTest::gtest GTest::gmock)
endfunction()

# lockstep_test_objects(name SOURCES ... MODULES ... [LIBRARIES ...]): files of several test programs, which name them as
# OBJECTS, compiled once. They know neither the program nor its GPU backend when they are compiled.
function(lockstep_test_objects name)
  cmake_parse_arguments(ARG "" "" "SOURCES;MODULES;LIBRARIES" ${ARGN})
  add_library(${name} OBJECT ${ARG_SOURCES})
  # As CMake compiles programs, so that they share what is precompiled.
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIE)
  lockstep_compile_test(${name} MODULES ${ARG_MODULES} LIBRARIES ${ARG_LIBRARIES})
endfunction()

# lockstep_test(name SOURCES ... [OBJECTS ...] MODULES ... [LABELS ...] [LIBRARIES ...] [TIMEOUT s] [GPU cuda|emulated]
# [SANITIZED_SHARES n]): one GoogleTest program. Without GPU it is linked to the stand-in for a GPU backend. With a
# sanitizer, n tests name.1of2, name.2of2 divide its cases, so that they run at once.
function(lockstep_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;GPU;SANITIZED_SHARES" "SOURCES;OBJECTS;MODULES;LABELS;LIBRARIES" ${ARGN})
  if(NOT ARG_GPU)
    set(ARG_GPU none)
  endif()
  # Sanitizers know nothing of the emulated GPU's stacks.
  if(ARG_GPU STREQUAL "emulated" AND LOCKSTEP_SANITIZE)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  lockstep_compile_test(${name} MODULES ${ARG_MODULES} LIBRARIES ${ARG_LIBRARIES})
  target_link_libraries(${name} PRIVATE ${ARG_OBJECTS} GTest::gtest_main)
  lockstep_use_gpu(${name} ${ARG_GPU})
  # What is not about GPUs computes on CPUs, on machines with GPUs, too.
  set(devices)
  if(NOT ARG_GPU STREQUAL "cuda")
    set(devices "CUDA_VISIBLE_DEVICES=;")
  endif()
  set(environment "${devices}LOCKSTEP_TEST_DATA=${lockstep_SOURCE_DIR}/../shared/data")
  if(NOT ARG_SANITIZED_SHARES OR NOT LOCKSTEP_SANITIZE)
    set(ARG_SANITIZED_SHARES 1)
  endif()
  foreach(share RANGE 1 ${ARG_SANITIZED_SHARES})
    set(test ${name})
    set(part)
    if(ARG_SANITIZED_SHARES GREATER 1)
      set(test ${name}.${share}of${ARG_SANITIZED_SHARES})
      math(EXPR index "${share} - 1")
      set(part ";GTEST_TOTAL_SHARDS=${ARG_SANITIZED_SHARES};GTEST_SHARD_INDEX=${index}")
    endif()
    add_test(NAME ${test} COMMAND ${name})
    set_tests_properties(${test} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
      SKIP_REGULAR_EXPRESSION "ONLY_SKIPPED_TESTS" ENVIRONMENT "${environment}${part}")
    if(ARG_SANITIZED_SHARES GREATER 1)
      set_tests_properties(${test} PROPERTIES COST 200 PROCESSORS 3)   # the longest: they start first
    endif()
  endforeach()
endfunction()

# add_mpi_test(name RANKS 1 2 4 SOURCES ... [OBJECTS ...] MODULES ... [LABELS ...] [GPU cuda|emulated]): the same program under mpirun for
# each number of ranks.
function(add_mpi_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;GPU" "RANKS;SOURCES;OBJECTS;MODULES;LIBRARIES;LABELS" ${ARGN})
  if(ARG_GPU STREQUAL "emulated" AND LOCKSTEP_SANITIZE)
    return()
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS mpi)
  endif()
  if(NOT ARG_GPU)
    set(ARG_GPU none)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  lockstep_compile_test(${name} MODULES ${ARG_MODULES} LIBRARIES ${ARG_LIBRARIES})
  target_link_libraries(${name} PRIVATE ${ARG_OBJECTS})
  lockstep_use_gpu(${name} ${ARG_GPU})
  foreach(ranks ${ARG_RANKS})
    add_test(NAME ${name}.${ranks}ranks
      COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} $<TARGET_FILE:${name}>)
    set_tests_properties(${name}.${ranks}ranks PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
      SKIP_REGULAR_EXPRESSION "ONLY_SKIPPED_TESTS"
      ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_hwloc_base_binding_policy=none;OMPI_MCA_mpi_yield_when_idle=1;LOCKSTEP_TEST_DATA=${lockstep_SOURCE_DIR}/../shared/data")
  endforeach()
endfunction()
