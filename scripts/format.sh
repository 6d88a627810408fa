#!/usr/bin/env bash
# Formats all C++ and CUDA sources by .clang-format, with clang-format 14: versions differ in their results.
#
#   scripts/format.sh           # formats
#   scripts/format.sh --check   # lists the files that are not formatted, and fails if there are any

# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

mode=(-i)
for argument in "$@"; do
  case "$argument" in
    --check) mode=(--dry-run -Werror --ferror-limit=1) ;;
    -h | --help)
      sed -n '2,5s/^# \{0,1\}//p' "$script"
      exit 0
      ;;
    *) fail "unknown option $argument; see --help" ;;
  esac
done

command -v clang-format-14 >/dev/null || fail "clang-format-14 is missing: scripts/install_dependencies.sh --with-tests"
mapfile -t sources < <(find src include tests examples -name '*.h' -o -name '*.cpp' -o -name '*.cu' | sort)
[ "${#sources[@]}" -gt 100 ] || fail "found ${#sources[@]} sources in $PWD"
printf '%s\0' "${sources[@]}" | xargs -0 -P "$(nproc)" -n 32 clang-format-14 "${mode[@]}"
