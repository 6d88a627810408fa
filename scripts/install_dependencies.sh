#!/usr/bin/env bash
# Installs those Debian 12 packages that lockstep needs and that are missing. Does nothing if none is missing.
# Without root it prints which are missing, and the command to install them.
# CUDA and NCCL, for GPUs, are not among them; see docs/gpu.md.
#
#   scripts/install_dependencies.sh                  # to build and run
#   scripts/install_dependencies.sh --with-tests     # and to test
#   scripts/install_dependencies.sh --with-fuzzing  # and to fuzz (scripts/fuzz.sh)

# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

packages=(g++ cmake ninja-build openmpi-bin libopenmpi-dev libprotobuf-dev protobuf-compiler libfmt-dev
  libcli11-dev nlohmann-json3-dev libxxhash-dev zlib1g-dev libjpeg62-turbo-dev libpng-dev
  libcurl4-openssl-dev python3)

for argument in "$@"; do
  case "$argument" in
    --with-tests) packages+=(libgtest-dev libgmock-dev iproute2 clang-format-14 python3-yaml
    python3-jsonschema dpkg-dev file) ;;
    --with-fuzzing) packages+=(clang-16 libclang-rt-16-dev libomp-16-dev) ;;
    -h | --help)
      sed -n '2,8s/^# \{0,1\}//p' "$script"
      exit 0
      ;;
    *) fail "unknown option $argument; see --help" ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  fail "this system has no apt. Install what these Debian packages hold, then build by cmake --preset release:
  ${packages[*]}"
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "all dependencies are installed"
  exit 0
fi

if [ "$(id -u)" -ne 0 ]; then
  fail "packages are missing, and only root may install them. Run this, then repeat what you did:
  sudo apt-get update && sudo apt-get install --no-install-recommends ${missing[*]}"
fi
say "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends "${missing[@]}"
