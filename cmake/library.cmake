include(GNUInstallDirs)

# All modules in one library, which other programs link: what include/lockstep declares is defined in these, and the rest is
# what they call.
add_library(lockstep_library SHARED)
foreach(module base tensor ops data model config train)
  target_sources(lockstep_library PRIVATE $<TARGET_OBJECTS:lockstep_${module}>)
endforeach()
target_link_libraries(lockstep_library PRIVATE lockstep_train)
lockstep_use_gpu(lockstep_library built)
target_compile_features(lockstep_library INTERFACE cxx_std_20)
target_include_directories(lockstep_library INTERFACE
  $<BUILD_INTERFACE:${lockstep_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# No promise between minor versions before 1.0.
set_target_properties(lockstep_library PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME lockstep EXPORT_NAME lockstep
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
add_library(lockstep::lockstep ALIAS lockstep_library)
