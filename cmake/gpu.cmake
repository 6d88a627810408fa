# The GPU backend of every program is one of three, chosen at link time:
#   cuda      CUDA, cuBLASLt and NCCL; compiled by nvcc
#   emulated  the same kernels compiled by the host's compiler, for tests (src/device/emulated)
#   none      a stand-in that says there is none
# Modules contribute sources from their folder: lockstep_gpu_sources(KERNELS *.cu... CUDA *.cpp... EMULATED *.cpp... NONE
# *.cpp...). KERNELS are compiled for both cuda and emulated. Executables take one: lockstep_use_gpu(target backend).
function(lockstep_gpu_sources)
  cmake_parse_arguments(ARG "" "" "KERNELS;CUDA;EMULATED;NONE" ${ARGN})
  foreach(kind KERNELS CUDA EMULATED NONE)
    list(TRANSFORM ARG_${kind} PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
    set_property(GLOBAL APPEND PROPERTY LOCKSTEP_GPU_${kind} ${ARG_${kind}})
  endforeach()
endfunction()

# How kernels are compiled for the emulated GPU: every access to memory looks at its address, since a GPU cannot access 16
# bytes at one that is no multiple of 16, and the host can. What follows is ours (src/device/emulated/alignment.cpp): no
# sanitizer's library is linked.
set(LOCKSTEP_EMULATED_KERNEL_OPTIONS -fsanitize=alignment -fno-sanitize-recover=alignment)

# After all of src/: makes the backends' object libraries. Objects, not archives: modules above call into them.
function(lockstep_make_gpu_backends)
  foreach(kind KERNELS CUDA EMULATED NONE)
    get_property(${kind} GLOBAL PROPERTY LOCKSTEP_GPU_${kind})
  endforeach()
  add_library(lockstep_gpu_none OBJECT ${NONE})
  target_link_libraries(lockstep_gpu_none PUBLIC lockstep_flags PRIVATE fmt::fmt)

  if(LOCKSTEP_TESTS)
    set(wrappers)
    foreach(kernel ${KERNELS})
      file(RELATIVE_PATH name ${lockstep_SOURCE_DIR}/src ${kernel})
      string(REPLACE "/" "_" name ${name})
      set(wrapper ${lockstep_BINARY_DIR}/emulated/${name}.cpp)
      file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${kernel}\"\n")
      list(APPEND wrappers ${wrapper})
    endforeach()
    set_source_files_properties(${wrappers} PROPERTIES COMPILE_OPTIONS "${LOCKSTEP_EMULATED_KERNEL_OPTIONS}")
    add_library(lockstep_gpu_emulated OBJECT ${EMULATED} ${wrappers})
    # fma by an instruction, not by a call.
    target_compile_options(lockstep_gpu_emulated PRIVATE -O2 -march=${LOCKSTEP_CPU_ARCH} -Wno-unused-parameter -Wno-unknown-pragmas)
    target_link_libraries(lockstep_gpu_emulated PUBLIC lockstep_flags PRIVATE fmt::fmt)
  endif()

  if(LOCKSTEP_HAVE_CUDA)
    add_library(lockstep_gpu_cuda OBJECT ${KERNELS} ${CUDA})
    target_link_libraries(lockstep_gpu_cuda PUBLIC lockstep_flags lockstep_cuda_libraries PRIVATE fmt::fmt)
  endif()
endfunction()

# backend: cuda, emulated, none, or `built`: cuda where this build has it.
function(lockstep_use_gpu target backend)
  if(backend STREQUAL "built")
    set(backend none)
    if(LOCKSTEP_HAVE_CUDA)
      set(backend cuda)
    endif()
  endif()
  target_link_libraries(${target} PRIVATE lockstep_gpu_${backend})
  if(NOT backend STREQUAL "none")
    target_link_libraries(${target} PRIVATE lockstep_comm lockstep_ops)   # which the backends' objects call
  endif()
endfunction()
