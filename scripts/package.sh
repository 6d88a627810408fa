#!/usr/bin/env bash
# Makes an archive of lockstep that runs where it is unpacked, without root, installing or compiling. It holds programs, their
# libraries, Open MPI's runtime, the launcher and the configs. The target machine needs x86-64, a glibc that is not older
# than this machine's and, for GPUs, NVIDIA's driver and CUDA's libraries (docs/gpu.md). Prints the archive's path.
#
#   scripts/package.sh
#   scripts/package.sh --deb
#   scripts/package.sh --for-gpu-check
#   scripts/package.sh --build build/release --out DIR
#
# --deb            a Debian package instead of the archive; it uses Debian's libraries and Open MPI
# --for-gpu-check  adds the tests, probes and benchmark that scripts/gpu_check.sh runs on a GPU; for one architecture
#                  (H100 and H200, unless CUDAARCHS says otherwise), at most 40 MiB
# --build DIR      an existing build folder; default: build/package, or build/gpu-check, for any processor with AVX2 (x86-64-v3)
# --no-build       takes the programs of the build folder as they are
# --out DIR        where the archive goes; default: the build folder

# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build=
out=
compile=yes
for_gpu_check=
most_gpu_check_bytes=$((40 << 20))
deb=
while [ $# -gt 0 ]; do
  case "$1" in
    --build | --out)
      [ $# -ge 2 ] || fail "$1 needs a value"
      declare "${1#--}=$2"
      shift 2
      ;;
    --no-build) compile= && shift ;;
    --for-gpu-check) for_gpu_check=yes && shift ;;
    --deb) deb=yes && shift ;;
    -h | --help)
      sed -n '2,16s/^# \{0,1\}//p' "$script"
      exit 0
      ;;
    *) fail "unknown option $1; see --help" ;;
  esac
done

if [ -z "$build" ]; then
  build=build/package
  tests=OFF
  if [ -n "$for_gpu_check" ]; then
    build=build/gpu-check
    tests=ON
    export CUDAARCHS=${CUDAARCHS:-90-real}
  fi
  cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_CPU_ARCH=x86-64-v3 -DLOCKSTEP_TESTS="$tests" >&2
fi
[ -f "$build/CMakeCache.txt" ] || fail "$build is no build folder: there is no CMakeCache.txt in it"
out=${out:-$build}

from_cache() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
[ "$(from_cache CMAKE_HOME_DIRECTORY)" -ef . ] || fail "$build was not built from $PWD, whose configs and scripts the package gets"

# Programs beside the tests, which scripts/gpu_check.sh runs; a build may lack some.
beside_tests=(kernel_benchmark gpu_probe cudnn_probe)
# Lines "name, seconds, ranks, program".
gpu_tests=
if [ -n "$for_gpu_check" ]; then gpu_tests=$(scripts/list_gpu_tests.py "$build"); fi

if [ -n "$deb" ]; then
  [ -z "$for_gpu_check" ] || fail "--deb takes no tests along; leave out --for-gpu-check"
  # By which cpack finds the packages that the libraries come from; it goes on without, and the package would name none.
  for tool in file dpkg-shlibdeps; do
    command -v "$tool" >/dev/null || fail "there is no $tool, which --deb needs: apt-get install file dpkg-dev"
  done
  if [ -n "$compile" ]; then cmake --build "$build" >&2; fi
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  # The folders that CMake makes on the way to a file have the permissions that this leaves them.
  umask 022
  cpack -G DEB --config "$build/CPackConfig.cmake" -B "$folder" >&2
  mkdir -p "$out"
  package=$(basename "$folder"/*.deb)
  mv "$folder/$package" "$out/$package"
  echo "$out/$package"
  exit 0
fi

if [ -n "$compile" ]; then
  targets=(lockstep)
  known=$(cmake --build "$build" --target help)
  for target in lockstep_cpu ${gpu_tests:+"${beside_tests[@]}"}; do
    if grep -q "^$target: " <<<"$known"; then targets+=("$target"); fi
  done
  while read -r _ _ _ program; do
    if [ -n "$program" ]; then targets+=("$(basename "$program")"); fi
  done <<<"$gpu_tests"
  mapfile -t targets < <(printf '%s\n' "${targets[@]}" | sort -u)
  cmake --build "$build" --target "${targets[@]}" >&2
fi
[ -x "$build/bin/lockstep" ] || fail "$build/bin/lockstep is missing: build it, or leave out --no-build"

needs() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

cuda=
if needs "$build/bin/lockstep" | grep '^libcudart' >/dev/null; then
  cuda=yes
  [ -x "$build/bin/lockstep-cpu" ] || fail "$build/bin/lockstep-cpu is missing: build the target lockstep_cpu"
fi
version=$(from_cache CMAKE_PROJECT_VERSION)
name=lockstep-$version-linux-$(uname -m)${cuda:+-cuda}
mkdir -p "$out"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
package=$folder/$name
mkdir -p "$package"/{bin,libexec,lib/openmpi,lib/pmix,share/openmpi,share/pmix,etc,licenses,scripts}

# The C library's own parts, which must be the machine's; and NVIDIA's, which come with CUDA.
of_the_machine='^(ld-linux.*|lib(c|m|mvec|dl|rt|pthread|util|resolv|anl|nss_.*))\.so'
of_cuda='^lib(cuda|cudart|cublas|cublasLt|cudnn.*|nccl|nvrtc|nvJitLink)\.so'

# libraries FILE...: lines "name path" of all that they need, directly or not, and that travels.
libraries() {
  ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | sort -u |
    awk -v machine="$of_the_machine" -v cuda="$of_cuda" '$1 !~ machine && $1 !~ cuda'
}

# debian_package FILE: which installed it. Its path may begin with /usr or not.
debian_package() {
  local path
  path=$(realpath "$1")
  { dpkg-query -S "$path" || dpkg-query -S "${path#/usr}" || dpkg-query -S "/usr$path"; } 2>/dev/null | head -n 1 | cut -d: -f1
}

say "programs" >&2
# install_program FROM TO: without symbols and without the folders of this machine.
install_program() {
  strip -o "$2" "$1"
  cmake -D "file=$2" -P scripts/package/remove_rpath.cmake >&2
}
if [ -n "$cuda" ]; then
  install_program "$build/bin/lockstep" "$package/libexec/lockstep"
  install_program "$build/bin/lockstep-cpu" "$package/libexec/lockstep-cpu"
else
  install_program "$build/bin/lockstep" "$package/libexec/lockstep-cpu"
fi
for program in orterun orted; do
  install_program "$(realpath "$(command -v "$program")")" "$package/libexec/$program"
done
for program in lockstep lockstep-cpu lockstep-env mpirun orted; do
  install -m 755 scripts/package/start.sh "$package/bin/$program"
done
if [ -n "$gpu_tests" ]; then
  mkdir -p "$package/tests"
  while read -r test seconds ranks program; do
    program_name=$(basename "$program")
    install_program "$program" "$package/tests/$program_name"
    echo "$test $seconds $ranks tests/$program_name" >>"$package/tests/list"
  done <<<"$gpu_tests"
  for program in "${beside_tests[@]}"; do
    if [ -x "$build/bin/$program" ]; then install_program "$build/bin/$program" "$package/tests/$program"; fi
  done
  mkdir "$package/tests/goldens"
  cp tests/ops/goldens/* tests/optim/goldens/* "$package/tests/goldens/"
fi

say "Open MPI" >&2
info() { ompi_info --path "$1" --parsable | cut -d: -f3-; }
plugins=$(info pkglibdir)
# Plugins for networks whose libraries belong to a machine's own drivers, for files and for one-sided programs: lockstep
# talks through TCP and shared memory, and GPUs through NCCL.
left_out='lib(oshmem|ucp|ucs|fabric|psm.*|ibverbs|nl-3|mca_common_(monitoring|ompio))\.so'
for plugin in "$plugins"/mca_*.so; do
  if ! libraries "$plugin" | grep -E "^$left_out" >/dev/null; then cp "$plugin" "$package/lib/openmpi/"; fi
done
cp "$(info pkgdatadir)"/help-*.txt "$package/share/openmpi/"
cp "$(info sysconfdir)/openmpi-mca-params.conf" "$package/etc/"
pmix=$(libraries "$package"/lib/openmpi/mca_pmix_ext*.so | awk '$1 ~ /^libpmix/ {print $2}')
if [ -n "$pmix" ]; then
  pmix=$(dirname "$(realpath "$pmix")")
  # Debian keeps PMIx in a folder of its own, beside which lie its plugins and messages.
  for folder_of_pmix in "$pmix" "$pmix"/pmix2/lib; do
    if [ -d "$folder_of_pmix/pmix" ]; then
      cp "$folder_of_pmix"/pmix/*.so "$package/lib/pmix/"
      cp "$folder_of_pmix"/../share/pmix/help-*.txt "$package/share/pmix/"
    fi
  done
fi

say "libraries" >&2
all=("$package"/libexec/* "$package"/lib/openmpi/*.so "$package"/lib/pmix/*.so)
if [ -n "$gpu_tests" ]; then mapfile -t -O "${#all[@]}" all < <(find "$package/tests" -maxdepth 1 -type f -executable); fi
carried=$(libraries "${all[@]}")
while read -r library path; do
  strip --strip-unneeded -o "$package/lib/$library" "$path"
done <<<"$carried"
strip --strip-unneeded "$package"/lib/*/*.so

say "what else" >&2
cp -r launcher configs "$package/"
cp -r scripts/{common.sh,gpu_check.sh,gpu_check,bench_gpu.py,gpu_probe.py,kernel_times.py,peers} "$package/scripts/"
find "$package" -name __pycache__ -prune -exec rm -r {} +

# Of everything that travels, also of what is compiled into the programs.
origins=$(while read -r library path; do echo "$(debian_package "$path") $library"; done <<<"$carried")
in_programs="libcli11-dev nlohmann-json3-dev libxxhash-dev"
if [ -n "$gpu_tests" ]; then in_programs+=" libgtest-dev"; fi
missing_license=
while read -r origin; do
  if [ -f "/usr/share/doc/$origin/copyright" ]; then
    cp -L "/usr/share/doc/$origin/copyright" "$package/licenses/$origin"
  else
    missing_license+=" $origin"
  fi
done < <({
  awk 'NF == 2 {print $1}' <<<"$origins"
  debian_package "$(command -v orterun)"
  tr ' ' '\n' <<<"$in_programs"
} | sort -u)
if [ -n "$missing_license" ]; then fail "there is no license in /usr/share/doc for:$missing_license"; fi
unknown=$(awk 'NF == 1' <<<"$origins")
if [ -n "$unknown" ]; then fail "no package of this system installed, so that its license is unknown:" "$unknown"; fi

glibc=$(readelf -VW "${all[@]}" "$package"/lib/*.so.* | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
{
  echo "lockstep $version for Linux on $(uname -m), $(if [ -n "$cuda" ]; then echo "GPUs and CPUs"; else echo "CPUs alone"; fi)"
  echo
  echo "source             $(git describe --always --dirty 2>/dev/null || echo "${LOCKSTEP_COMMIT:-no git repository}")"
  echo "build type         $(from_cache CMAKE_BUILD_TYPE)"
  echo "compiler           $("$(from_cache CMAKE_CXX_COMPILER)" --version | head -n 1)"
  echo "processor          $(from_cache LOCKSTEP_CPU_ARCH)"
  echo "C library          at least ${glibc#GLIBC_}"
  if [ -n "$cuda" ]; then
    echo "GPU kernels        $(from_cache LOCKSTEP_CUDA_ARCHITECTURES)"
    echo "CUDA compiler      $("$(from_cache CMAKE_CUDA_COMPILER)" --version | sed -n 's/.*release/release/p')"
    echo "needs from CUDA    $(needs "$package/libexec/lockstep" | grep -E "$of_cuda" | tr '\n' ' ')"
  fi
  echo "Open MPI           $(ompi_info --parsable | sed -n 's/^ompi:version:full://p'), TCP and shared memory"
  echo
  echo "Carried as Debian built them, without symbols; licenses are in licenses/, sources in Debian's archive:"
  while read -r origin library; do
    echo "  $library, from $origin $(dpkg-query -W -f='${Version}' "$origin" 2>/dev/null | head -n 1)"
  done <<<"$origins"
  for origin in $in_programs; do
    echo "  compiled into the programs: $origin $(dpkg-query -W -f='${Version}' "$origin" 2>/dev/null)"
  done
} >"$package/PACKAGE.txt"
if [ "$(from_cache LOCKSTEP_CPU_ARCH)" = native ]; then
  echo "package.sh: warning: $build is compiled for this processor (LOCKSTEP_CPU_ARCH=native): the package runs on those alone" \
    "that have the same instructions" >&2
fi

time=$(git log -1 --format=%ct 2>/dev/null || date +%s)
pack() { tar -C "$folder" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$time" -cf - "$name"; }
if [ -n "$for_gpu_check" ]; then
  # All programs hold the same kernels, which are stored once if the dictionary spans the programs.
  archive=$out/$name-gpu-check.tar.xz
  pack | python3 scripts/package/compress.py >"$archive.part"
  bytes=$(stat -c %s "$archive.part")
  say "$((bytes >> 10)) KiB, of at most $((most_gpu_check_bytes >> 10))" >&2
  [ "$bytes" -le "$most_gpu_check_bytes" ] || fail "the archive is too large: $bytes bytes of $most_gpu_check_bytes; see $archive.part"
else
  archive=$out/$name.tar.gz
  pack | gzip -n9 >"$archive.part"
fi
mv "$archive.part" "$archive"
echo "$archive"
