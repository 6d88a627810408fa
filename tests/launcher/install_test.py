#!/usr/bin/env python3
"""What `cmake --install` and the Debian package put where: it works wherever it lies, headers stand alone, shells complete.
That other programs are built against it is examples/own_model's affair."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from support import PROGRAM, ROOT, main

BUILD = pathlib.Path(PROGRAM).parent.parent
CONFIG = ROOT / "configs" / "digits_quickstart.textproto"
# In mount and process namespaces: a layer over a Debian that is left as it is, what a system has in /proc and /dev, and CUDA's
# libraries, which come from NVIDIA in whatever way. Ends with 77 where there is no right to it, or no network.
IN_DEBIAN = """
mount -t tmpfs tmpfs "$2" && mkdir "$2/upper" "$2/work" "$2/root" || exit 77
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root" || exit 77
root=$2/root package=$3
shift 3
mount -t proc proc "$root/proc" && mount -t sysfs sysfs "$root/sys" && mount -t tmpfs tmpfs "$root/dev" || exit 77
set -e
mkdir "$root/dev/shm" "$root/cuda"
for device in "null 3" "zero 5" "random 8" "urandom 9"; do mknod -m 666 "$root/dev/${device% *}" c 1 "${device#* }"; done
for library; do touch "$root/cuda/${library##*/}" && mount --bind "$library" "$root/cuda/${library##*/}"; done
cp "$package" "$root/package.deb"
cp /etc/resolv.conf "$root/etc/" || true
env -i DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" sh -ec '
  apt-get update -qq -o APT::Update::Error-Mode=any || exit 77
  apt-get install -qq --no-install-recommends ./package.deb
  useradd --create-home somebody' >&2
exec env -i HOME=/home/somebody LD_LIBRARY_PATH=/cuda PATH=/usr/bin:/bin /usr/sbin/chroot --userspec=somebody "$root" sh -ec '
  cd
  lockstep --version
  lockstep data digits --out digits --train 240 --eval 48
  lockstep-run -n 2 -- train /usr/share/lockstep/configs/digits_quickstart.textproto --data-dir digits --set trainer.epochs=1 --json'
"""
COMPILERS = ("c++", "clang++")
PACKAGERS = ("cpack", "dpkg-deb", "dpkg-shlibdeps", "file")
ASK = """
source "$1"
COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2))
compopt() { :; }
_lockstep
printf '%s\\n' "${COMPREPLY[@]}"
"""


def run(*command, **options):
    return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          timeout=200, **options)


def good(*command, **options):
    ran = run(*command, **options)
    if ran.returncode:
        raise AssertionError(f"{command} ended with {ran.returncode}: {ran.stdout}{ran.stderr}")
    return ran.stdout


class InstallTest(unittest.TestCase):
    """One installation for all of them, which is moved once: nothing in it may know where it was made."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        good("cmake", "--install", BUILD, "--prefix", cls.folder / "first")
        cls.prefix = cls.folder / "second"
        (cls.folder / "first").rename(cls.prefix)

    def environment(self):
        """Without a lockstep of its own on the PATH."""
        return {"PATH": os.defpath + ":/usr/bin:/bin", "HOME": str(self.folder), "CUDA_VISIBLE_DEVICES": ""}

    def check_program(self, prefix):
        version = good(prefix / "bin" / "lockstep", "--version", env=self.environment())
        self.assertRegex(version, r"^lockstep \d+\.\d+\.\d+, commit ")
        command = good(prefix / "bin" / "lockstep-run", "-n", "2", "--dry-run", "--", "train", "c", env=self.environment())
        self.assertIn(str((prefix / "bin" / "lockstep").resolve()), command)
        self.assertTrue((prefix / "share" / "lockstep" / "configs" / CONFIG.name).is_file())

    def test_the_program_and_its_launcher_work_wherever_they_lie(self):
        self.check_program(self.prefix)
        data = self.folder / "digits"
        good(self.prefix / "bin" / "lockstep", "data", "digits", "--out", data, "--train", "240", "--eval", "48", env=self.environment())
        out = good(self.prefix / "bin" / "lockstep-run", "-n", "2", "--", "train",
                   self.prefix / "share" / "lockstep" / "configs" / CONFIG.name, "--data-dir", data, "--set", "trainer.epochs=1",
                   "--json", env=self.environment())
        self.assertEqual(json.loads(out)["layout"], "dp=2")

    def check_permissions(self, folder):
        programs = {"bin/lockstep", "launcher/lockstep-run", "container/stop-ranks", "slurm/train.sbatch"}
        for path in folder.rglob("*"):
            if not path.is_symlink() and ".so" not in path.name:      # whether libraries may be run is the system's habit
                runs = path.is_dir() or "/".join(path.parts[-2:]) in programs
                self.assertEqual(oct(path.stat().st_mode & 0o777), "0o755" if runs else "0o644", path)
            self.assertTrue(path.stat().st_mode & 0o004, path)

    def test_everybody_may_read_it(self):
        self.check_permissions(self.prefix)

    def test_headers_stand_alone(self):
        headers = sorted((self.prefix / "include" / "lockstep").iterdir())
        self.assertEqual([header.name for header in headers], sorted(path.name for path in (ROOT / "include" / "lockstep").iterdir()))
        for compiler in filter(shutil.which, COMPILERS):
            for header in headers:
                good(compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-x", "c++", "-I",
                     self.prefix / "include", "-include", f"lockstep/{header.name}", "/dev/null")

    def test_programs_of_any_compiler_use_the_library(self):
        for compiler in filter(shutil.which, COMPILERS):
            with self.subTest(compiler):
                program = self.folder / f"program-{compiler}"
                good(compiler, "-std=c++20", "-Wall", "-Werror", ROOT / "examples" / "own_model" / "spirals.cpp", "-I",
                     self.prefix / "include", "-L", self.prefix / "lib", f"-Wl,-rpath,{self.prefix / 'lib'}", "-llockstep", "-o", program)
                out = good(program, self.folder / "weights", env=self.environment())
                self.assertIn("parameters ", out)

    def test_the_library_shows_what_headers_declare_alone(self):
        symbols = good("nm", "-DC", "--defined-only", self.prefix / "lib" / "liblockstep.so")
        self.assertIn(" T lockstep::Training::step()", symbols)
        self.assertIn(" T lockstep::run_job(", symbols)
        for module in ("train", "config", "data", "comm", "program", "run"):
            self.assertNotIn(f" T lockstep::{module}::", symbols)

    def test_another_minor_version_is_refused(self):
        project = self.folder / "other"
        project.mkdir()
        (project / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.16)\nproject(other CXX)\n"
                                                "find_package(lockstep 0.2 REQUIRED)\n")
        ran = run("cmake", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn('compatible with requested version "0.2"', " ".join(ran.stderr.split()))

    @unittest.skipUnless(all(map(shutil.which, PACKAGERS)), f"there is not each of {', '.join(PACKAGERS)}")
    def test_the_debian_package_holds_the_same(self):
        package = self.package()
        fields = good("dpkg-deb", "--field", package)
        self.assertRegex(fields, r"Package: lockstep")
        self.assertRegex(fields, r"Depends: .*openmpi-bin.*libprotobuf")
        root = self.folder / "root"
        good("dpkg-deb", "-x", package, root)
        self.check_program(root / "usr")
        self.check_permissions(root)
        for path in ("bash-completion/completions/lockstep", "zsh/vendor-completions/_lockstep", "doc/lockstep/README.md"):
            self.assertTrue((root / "usr" / "share" / path).is_file(), path)

    def package(self):
        """Made by somebody whose files are for nobody else."""
        made = good(ROOT / "scripts" / "package.sh", "--deb", "--build", BUILD, "--no-build", "--out", self.folder,
                    preexec_fn=lambda: os.umask(0o077))
        return made.splitlines()[-1]

    @unittest.skipUnless(all(map(shutil.which, (*PACKAGERS, "unshare"))), f"there is not each of {', '.join(PACKAGERS)} and unshare")
    def test_the_debian_package_installs_and_trains_in_a_debian_that_has_nothing_else(self):
        debian = os.environ.get("LOCKSTEP_DEBIAN_ROOT")
        if not debian:
            self.skipTest("LOCKSTEP_DEBIAN_ROOT names no folder that `mmdebstrap --variant=apt bookworm FOLDER` has made")
        needed = re.findall(r"=> (\S*/lib(?:cuda|cudart|cublas|cublasLt|nccl)\.so\S*)", good("ldd", self.prefix / "bin" / "lockstep"))
        work = self.folder / "debian"
        work.mkdir()
        ran = run("unshare", "--mount", "--pid", "--fork", "sh", "-c", IN_DEBIAN, "sh", debian, work, self.package(),
                  *map(os.path.realpath, needed))
        if ran.returncode == 77:
            self.skipTest(f"no right to mount, or no network: {ran.stderr}")
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertEqual(json.loads(ran.stdout.splitlines()[-1])["layout"], "dp=2")

    def complete(self, *words):
        script = self.prefix / "share" / "bash-completion" / "completions" / "lockstep"
        return good("bash", "-c", ASK, "bash", script, "lockstep", *words, cwd=self.prefix / "share" / "lockstep").split()

    def test_bash_completes_commands_options_and_values(self):
        self.assertIn("train", self.complete(""))
        self.assertEqual(self.complete("ver"), ["verify"])
        self.assertIn("--layout", self.complete("train", "--"))
        self.assertEqual(self.complete("train", "--lay"), ["--layout"])
        self.assertEqual(sorted(self.complete("train", "--device", "")), ["auto", "cpu", "cuda"])
        self.assertEqual(self.complete("train", "conf"), ["configs"])
        self.assertEqual(self.complete("train", "configs/mnist_l"), ["configs/mnist_lenet.textproto"])
        self.assertEqual(sorted(self.complete("config", "")), ["check", "print"])
        self.assertEqual(self.complete("config", "print", "--ex"), ["--expand"])
        self.assertEqual(self.complete("train", "configs/x", "--out", "launcher/sl"), ["launcher/slurm"])
        self.assertEqual(self.complete("train", "--set", ""), [])

    @unittest.skipUnless(shutil.which("zsh"), "there is no zsh")
    def test_zsh_reads_its_completion(self):
        good("zsh", "-fc", "autoload -Uz compinit && compinit -u -D && source $1 && whence -w _lockstep_train && "
             "[[ $_comps[lockstep] = _lockstep ]]", "zsh", self.prefix / "share" / "zsh" / "site-functions" / "_lockstep")


if __name__ == "__main__":
    sys.exit(main())
