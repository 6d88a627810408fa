# At every build: the commit of the sources, for `lockstep --version`. Written only where it has changed. LOCKSTEP_COMMIT names
# it where there is no git repository.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
if(failed OR commit STREQUAL "")
  set(commit "$ENV{LOCKSTEP_COMMIT}")
endif()
if(NOT commit MATCHES "^[0-9A-Za-z._-]+$")
  set(commit "unknown")
endif()
set(text "inline constexpr const char* kCommit = \"${commit}\";\n")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT text STREQUAL "${before}")
  file(WRITE ${OUTPUT} "${text}")
endif()
