# What `cmake --install` puts where, for people and for find_package(lockstep); and the Debian package of it (cpack -G DEB).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Whatever the umask of those who checked out, what is installed is for everybody to read.
set(folders DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(files FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)

# Folders of libraries that are not the system's, such as CUDA's, are found again.
set_target_properties(lockstep_library lockstep PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS lockstep RUNTIME)
install(TARGETS lockstep_library EXPORT lockstepTargets LIBRARY)
install(DIRECTORY include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} ${files} ${folders})
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION ${package})
configure_package_config_file(cmake/lockstepConfig.cmake.in ${lockstep_BINARY_DIR}/lockstepConfig.cmake
  INSTALL_DESTINATION ${package})
write_basic_package_version_file(${lockstep_BINARY_DIR}/lockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${lockstep_BINARY_DIR}/lockstepConfig.cmake ${lockstep_BINARY_DIR}/lockstepConfigVersion.cmake
  DESTINATION ${package})

# lockstep-run finds its modules, and these the program, from where the link leads.
set(share ${CMAKE_INSTALL_DATADIR}/lockstep)
install(DIRECTORY launcher configs DESTINATION ${share} ${files} ${folders} PATTERN __pycache__ EXCLUDE)
foreach(program lockstep-run container/stop-ranks slurm/train.sbatch)
  get_filename_component(folder launcher/${program} DIRECTORY)
  install(PROGRAMS launcher/${program} DESTINATION ${share}/${folder})
endforeach()
file(RELATIVE_PATH launcher ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_DATADIR}/lockstep/launcher/lockstep-run)
file(CREATE_LINK ${launcher} ${lockstep_BINARY_DIR}/lockstep-run SYMBOLIC)
install(FILES ${lockstep_BINARY_DIR}/lockstep-run TYPE BIN)
install(FILES README.md CHANGELOG.md LICENSE TYPE DOC)
install(DIRECTORY docs TYPE DOC ${files} ${folders})

# What the program itself says of its commands and options.
set(completions ${lockstep_BINARY_DIR}/completions)
file(MAKE_DIRECTORY ${completions})
foreach(shell bash zsh)
  install(CODE "execute_process(COMMAND \"$<TARGET_FILE:lockstep>\" completion ${shell} OUTPUT_FILE \"${completions}/${shell}\"
    COMMAND_ERROR_IS_FATAL ANY)")
endforeach()
install(FILES ${completions}/bash RENAME lockstep DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
# Where zsh looks below /usr/local; and where Debian's looks below /usr.
foreach(folder site-functions vendor-completions)
  install(FILES ${completions}/zsh RENAME _lockstep DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/${folder})
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_CONTACT "lockstep")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Trains neural networks on many workers, with the same numbers on any layout")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "openmpi-bin, python3")
# libcurl is loaded if metrics.mlflow asks for it.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openssh-client, libcurl4")
# CUDA's libraries come from NVIDIA, in whatever way: no package of Debian's stands for them.
if(LOCKSTEP_HAVE_CUDA)
  set(CPACK_PACKAGE_NAME lockstep-cuda)
  set(CPACK_DEBIAN_PACKAGE_PROVIDES lockstep)
  set(CPACK_DEBIAN_PACKAGE_CONFLICTS lockstep)
  set(CPACK_DEBIAN_PACKAGE_REPLACES lockstep)
endif()
include(CPack)
