#!/usr/bin/env python3
"""scripts/package.sh: what it makes trains where there is nothing but a kernel, the C library and a shell."""

import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

from support import PROGRAM, ROOT, main

LIMIT_S = 240
LARGEST_BYTES = 60e6
LARGEST_FOR_GPU_CHECK_BYTES = 40 << 20
C_LIBRARY = ("libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libutil.so.1", "libresolv.so.2")
DEVICES = {"null": (1, 3), "zero": (1, 5), "random": (1, 8), "urandom": (1, 9)}
# What runs inside of mount namespaces: mounts what the root needs, and enters it with an empty environment.
ENTER = """
set -e
mount -t proc proc "$1/proc"
mount -t tmpfs tmpfs "$1/dev"
mkdir "$1/dev/shm"
{devices}
exec env -i HOME=/tmp OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "$2" "$1" /bin/sh -c "$3"
"""


def script():
    nodes = (f'mknod -m 666 "$1/dev/{name}" c {major} {minor}' for name, (major, minor) in DEVICES.items())
    return ENTER.format(devices="\n".join(nodes))


def loader_and_c_library():
    """Paths by which a program of this machine finds them."""
    lines = subprocess.run(["ldd", "/bin/sh"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    loader = next(word for word in lines if "/ld-linux" in word)
    folder = os.path.dirname(next(word for word in lines if word.endswith("/libc.so.6")))
    return [loader, *(os.path.join(folder, name) for name in C_LIBRARY if os.path.exists(os.path.join(folder, name)))]


def make(folder, build, *options):
    """The archive that scripts/package.sh makes of a build folder."""
    made = subprocess.run([ROOT / "scripts" / "package.sh", "--build", build, "--no-build", "--out", folder, *options],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)
    if made.returncode:
        raise AssertionError(f"package.sh failed: {made.stdout}{made.stderr}")
    return pathlib.Path(made.stdout.splitlines()[-1])


def unpack(archive, folder):
    with tarfile.open(archive) as members:
        members.extractall(folder)
    (package,) = folder.iterdir()
    return package


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not PROGRAM:
            raise unittest.SkipTest("LOCKSTEP_PROGRAM does not say where lockstep is")
        for tool in ("ldd", "strip", "readelf", "gzip", "dpkg-query", "mpirun", "cmake", "c++"):
            if not shutil.which(tool):
                raise unittest.SkipTest(f"there is no {tool}")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.build = os.path.dirname(os.path.dirname(PROGRAM))
        cls.archive = make(cls.folder, cls.build)
        cls.package = unpack(cls.archive, cls.folder / "unpacked")

    def test_is_small_with_what_checks_gpus(self):
        listed = subprocess.run([ROOT / "scripts" / "list_gpu_tests.py", self.build], stdout=subprocess.PIPE, text=True, check=True)
        programs = {line.split()[3] for line in listed.stdout.splitlines()}
        if not programs or not all(map(os.path.exists, programs)):
            self.skipTest("there are no tests for GPUs in this build")
        folder = self.folder / "for_gpu_check"
        folder.mkdir()
        archive = make(folder, self.build, "--for-gpu-check")
        self.assertLess(archive.stat().st_size, LARGEST_FOR_GPU_CHECK_BYTES)
        package = unpack(archive, folder / "unpacked")
        self.assertIn("ops_gpu_test 900 1 tests/ops_gpu_test\n", (package / "tests" / "list").read_text())
        self.assertTrue((package / "tests" / "ops_gpu_test").is_file())

    def test_says_what_it_is_and_carries_licenses(self):
        self.assertLess(self.archive.stat().st_size, LARGEST_BYTES)
        text = (self.package / "PACKAGE.txt").read_text()
        for heading in ("build type", "compiler", "processor", "C library", "Open MPI"):
            self.assertRegex(text, rf"(?m)^{heading} +\S")
        carried = {path.name for path in (self.package / "lib").glob("*.so.*")}
        self.assertIn("libmpi.so.40", carried)
        self.assertIn("libprotobuf", " ".join(carried))
        # The C library must be the machine's.
        self.assertFalse({name for name in carried if name.startswith(("libc.so", "ld-linux", "libm.so"))})
        for library in carried:
            origin = text.partition(f"  {library}, from ")[2].split()[0]
            self.assertTrue((self.package / "licenses" / origin).is_file(), library)

    def test_takes_the_program_for_gpus_where_its_libraries_are(self):
        # In its place one that needs a library of CUDA, which is not in the package either.
        work = self.folder / "cuda"
        packages = work / "site-packages" / "nvidia" / "cu" / "lib"
        packages.mkdir(parents=True)
        program = self.package / "libexec" / "lockstep"
        if program.exists():
            aside = program.rename(work / "lockstep")
            self.addCleanup(lambda: aside.rename(program))
        self.addCleanup(program.unlink)
        library = packages / "libcudart.so.9000"
        for text, command in (("int five() { return 5; }", ["-shared", "-fPIC", "-Wl,-soname,libcudart.so.9000", "-o", library]),
                              ("int five(); int main() { return five(); }", ["-o", program, library])):
            (work / "source.cpp").write_text(text)
            subprocess.run(["c++", work / "source.cpp", *command], check=True)

        def run(*arguments, **environment):
            return subprocess.run([self.package / "bin" / "lockstep", *(arguments or ["--version"])], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, check=False,
                                  env={**os.environ, "LD_LIBRARY_PATH": "", **environment})

        self.assertEqual(run(LD_LIBRARY_PATH=str(packages)).returncode, 5)
        self.assertEqual(run(PYTHONPATH=str(work / "site-packages")).returncode, 5)
        without = run()
        self.assertRegex(without.stdout, r"^lockstep \d+\.\d+")
        self.assertEqual(without.stderr, "")
        # Which are missing is said where GPUs are looked for, and refused where they are asked for.
        why = r"these libraries are not in LD_LIBRARY_PATH, .*: libcudart\.so\.9000; install what is missing, or use --device cpu\n"
        train = ("train", self.package / "configs" / "digits_quickstart.textproto", "--data-dir", work / "digits", "--set",
                 "trainer.steps=2")
        self.assertEqual(run("data", "digits", "--out", work / "digits").returncode, 0)
        asked = run(*train, "--device", "cuda")
        self.assertEqual(asked.returncode, 69, asked.stderr)
        self.assertRegex(asked.stderr, rf"^lockstep: error: --device cuda: {why}$")
        # By itself, where no driver shows that there is a GPU, as much as whoever asks for it wants to hear.
        automatic = run(*train, "--verbose")
        self.assertEqual(automatic.returncode, 0, automatic.stderr)
        self.assertRegex(automatic.stderr, rf"(?m)^.*computing on CPUs: {why}")

    def test_open_mpi_copies_through_shared_memory_unless_told_otherwise(self):
        name = "OMPI_MCA_btl_vader_single_copy_mechanism"

        def told(**environment):
            without = {key: value for key, value in os.environ.items() if key != name}
            return subprocess.run([self.package / "bin" / "lockstep-env", "printenv", name], stdout=subprocess.PIPE, text=True,
                                  check=True, env={**without, **environment}).stdout

        self.assertEqual(told(), "none\n")
        self.assertEqual(told(**{name: "cma"}), "cma\n")

    def test_carries_what_checks_a_machine(self):
        if glob.glob("/dev/nvidia[0-9]*") or shutil.which("nvidia-smi"):
            self.skipTest("there is a GPU, and a check would begin")
        out = self.folder / "check"
        ran = subprocess.run([self.package / "scripts" / "gpu_check.sh", "right", "--out", out], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, timeout=LIMIT_S, check=False)
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertRegex(ran.stdout, r"(?m)^gpt +SKIP +0  there is no GPU$")
        self.assertTrue((self.folder / "check.tar.gz").is_file())
        for script in ("kernel_times.py", "bench_gpu.py"):
            subprocess.run([sys.executable, self.package / "scripts" / script, "--help"], stdout=subprocess.DEVNULL, check=True)

    def test_links_to_its_programs_work(self):
        link = self.folder / "linked"
        link.symlink_to(os.path.relpath(self.package / "bin" / "lockstep-cpu", self.folder))
        self.assertIn("lockstep", subprocess.run([link, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout)

    def test_trains_in_an_empty_root(self):
        root = self.folder / "root"
        for name in ("bin", "proc", "dev", "tmp"):
            (root / name).mkdir(parents=True)
        for path in loader_and_c_library():
            copy = root / path.lstrip("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(path), copy)
        shutil.copy(os.path.realpath("/bin/sh"), root / "bin" / "sh")
        shutil.copytree(self.package, root / "elsewhere" / "lockstep")
        chroot = shutil.which("chroot", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")

        def run(command):
            return subprocess.run(["unshare", "--mount", "--pid", "--fork", "sh", "-c", script(), "sh", root, chroot, command],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)

        if not chroot or not shutil.which("unshare") or run(":").returncode:
            self.skipTest("no right to mount and to change the root")
        home = "/elsewhere/lockstep"
        train = (f"{home}/bin/lockstep train {home}/configs/digits_quickstart.textproto --data-dir /tmp/digits --json --quiet "
                 "--set trainer.steps=60 --set trainer.eval_every_steps=0 --set parallel.reduction=REPRODUCIBLE")
        ran = run(f"set -e; {home}/bin/lockstep data digits --out /tmp/digits; {train}; "
                  f"{home}/bin/mpirun -n 2 --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 {train}")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        reports = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
        self.assertEqual([report["world_size"] for report in reports], [1, 2], ran.stdout)
        self.assertEqual(reports[0]["params_hash"], reports[1]["params_hash"])


if __name__ == "__main__":
    main()
