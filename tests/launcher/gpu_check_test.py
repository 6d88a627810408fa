#!/usr/bin/env python3
"""scripts/gpu_check.sh, on packages whose programs are scripts and a machine whose nvidia-smi is one."""

import glob
import os
import shutil
import subprocess
import unittest

from support import ROOT, Case, main

PASSES = 'echo "[       OK ] A.b (0 ms)"; echo "[  SKIPPED ] A.c (0 ms)"'
FAILS = 'echo "[       OK ] A.b (0 ms)"; echo "[  FAILED  ] A.c (0 ms)"; exit 1'
SKIPS = 'echo "[  SKIPPED ] A.c (0 ms)"'
GOLDENS = 'test -d "${LOCKSTEP_TEST_GOLDENS%/goldens}"'


class GpuCheck(Case):
    def setUp(self):
        super().setUp()
        (self.folder / "scripts").mkdir()
        for name in ("common.sh", "gpu_check.sh"):
            shutil.copy(ROOT / "scripts" / name, self.folder / "scripts")
        (self.folder / "PACKAGE.txt").write_text("lockstep\n")
        self.program("bin/lockstep", 'echo \'{"first_step_ms":12.5,"startup_parts_ms":{"launch":8,"other":4.5},"x":{}}\'; echo "identical in 2 runs: x"')
        self.program("bin/lockstep-env", 'exec "$@"')
        self.program("bin/mpirun", 'echo "[       OK ] $* (0 ms)"; case "$*" in *" train "*) echo "lockstep: error: ranks 0, 1 on host a '
                     'would share one GPU (x, GPU-1): start fewer, or pass --allow-shared-gpu, which is slow" >&2; exit 1 ;; esac')

    def program(self, path, text):
        path = self.folder / path
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def list_tests(self, *lines):
        (self.folder / "tests").mkdir(exist_ok=True)
        (self.folder / "tests" / "list").write_text("".join(line + "\n" for line in lines))

    def check(self, *options, gpu=True):
        """The exit code, and the table as {part: [result, seconds, figure]}."""
        if gpu:
            self.program("fake/nvidia-smi", "echo GPU")
        ran = subprocess.run([self.folder / "scripts" / "gpu_check.sh", "--out", self.folder / "out", *options], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=100, check=False,
                             env={**os.environ, "PATH": f"{self.folder}/fake:{os.environ['PATH']}"})
        self.assertIn("== result after", ran.stdout)
        lines = ran.stdout.partition("== result after")[2].splitlines()[2:]
        return ran.returncode, {line.split()[0]: line.split(maxsplit=3)[1:] for line in lines}

    def test_parts_that_pass(self):
        self.program("tests/good", f"{PASSES}; {GOLDENS}")
        self.list_tests("good_test 60 1 tests/good", "both_test 60 2 tests/good")
        code, table = self.check("--only", "start,tests,verify")
        self.assertEqual(code, 0, table)
        self.assertEqual({result for result, *_ in table.values()}, {"PASS"})
        self.assertEqual(table["start"][2], "first step done after 12 ms: launch:8,other:4.5")
        self.assertEqual(table["shared_gpu_refused"][2], "ranks 0, 1 would share one GPU")
        self.assertEqual(table["good_test"][2], "1 passed, 0 failed, 1 skipped")
        self.assertEqual(table["verify_gpt"][2], "identical in 2 runs: x")
        self.assertLessEqual({"verify_mlp", "verify_lenet", "verify_gpt_bfloat16", "verify_lenet_bfloat16", "verify_lenet_tf32",
                              "verify_mlp_float16"}, set(table))
        # Ranks of one GPU must look to NCCL as if they were on two hosts.
        self.assertIn("-n 1 -x NCCL_HOSTID=rank0 tests/good : -n 1 -x NCCL_HOSTID=rank1 tests/good",
                      (self.folder / "out" / "both_test.log").read_text())

    def test_two_ranks_that_train_on_one_gpu_have_failed_to_be_refused(self):
        self.program("bin/mpirun", "true")
        code, table = self.check("--only", "start")
        self.assertEqual((code, table["shared_gpu_refused"][0]), (1, "FAIL"))

    def test_a_failure_is_told_and_the_rest_goes_on(self):
        for name, text in (("bad", FAILS), ("empty", SKIPS), ("good", PASSES), ("slow", "sleep 60")):
            self.program(f"tests/{name}", text)
        self.list_tests("bad_test 60 1 tests/bad", "empty_test 60 1 tests/empty", "slow_test 5 1 tests/slow", "good_test 60 1 tests/good")
        code, table = self.check("--only", "tests")
        self.assertEqual(code, 1)
        self.assertEqual({name: row[0] for name, row in table.items()},
                         {"bad_test": "FAIL", "empty_test": "FAIL", "slow_test": "FAIL", "good_test": "PASS"})
        self.assertEqual(table["bad_test"][2], "exit code 1; 1 passed, 1 failed, 0 skipped")
        self.assertTrue(table["slow_test"][2].startswith("not done in 5 s"))

    def test_what_the_machine_lacks_fails_nothing(self):
        self.program("tests/good", PASSES)
        self.list_tests("ops_test 60 1 tests/good")
        if shutil.which("compute-sanitizer"):
            self.skipTest("there is a compute-sanitizer")
        code, table = self.check("--only", "sanitizer")
        self.assertEqual(code, 0)
        self.assertEqual({name: row[0] for name, row in table.items()}, {"memcheck_ops_test": "MISSING", "racecheck_ops_test": "MISSING"})

    def test_compute_sanitizer_looks_at_memory_and_at_races_of_own_kernels(self):
        self.program("fake/compute-sanitizer", 'echo "$*"; echo "========= ERROR SUMMARY: 0 errors"')
        self.list_tests("ops_test 60 1 tests/good", "train_test 60 1 tests/good", "step_kernels_test 60 1 tests/good",
                        "ops_of_two 60 2 tests/good")
        code, table = self.check("--only", "sanitizer")
        self.assertEqual(code, 0, table)
        self.assertEqual({name: (row[0], row[2]) for name, row in table.items()},
                         {f"{tool}_{test}": ("PASS", "0 errors") for tool in ("memcheck", "racecheck")
                          for test in ("ops_test", "step_kernels_test")})
        logs = {tool: (self.folder / "out" / f"{tool}_ops_test.log").read_text() for tool in ("memcheck", "racecheck")}
        self.assertIn("--tool memcheck --error-exitcode 9 --report-api-errors no tests/good\n", logs["memcheck"])
        self.assertIn("--tool racecheck --error-exitcode 9 --kernel-name kns=lockstep tests/good\n", logs["racecheck"])

    def test_compute_sanitizer_finds_errors_or_cannot_run(self):
        self.program("fake/compute-sanitizer", 'case $2 in memcheck) echo "========= ERROR SUMMARY: 3 errors"; exit 9 ;; esac\n'
                     'echo "========= Error: Device not supported. Please refer to the documentation"; exit 1')
        self.list_tests("ops_test 60 1 tests/good")
        code, table = self.check("--only", "sanitizer")
        self.assertEqual(code, 1)
        self.assertEqual({name: (row[0], row[2]) for name, row in table.items()},
                         {"memcheck_ops_test": ("FAIL", "exit code 9; 3 errors"),
                          "racecheck_ops_test": ("MISSING", "compute-sanitizer says: device not supported")})

    def test_compute_sanitizer_that_takes_too_long_has_not_failed_unless_it_found_something(self):
        self.program("fake/compute-sanitizer", 'case $2 in racecheck) echo "========= Error: Race reported between Write access" ;; esac\n'
                     'sleep 60')
        self.list_tests("ops_test 60 1 tests/good")
        code, table = self.check("--only", "sanitizer", "--limit", "12")
        self.assertEqual(code, 1)
        self.assertEqual({name: (row[0], row[2].partition(" s")[2]) for name, row in table.items()},
                         {"memcheck_ops_test": ("TIMEOUT", ""), "racecheck_ops_test": ("FAIL", "; 1 places told of")})

    def test_tests_leave_benchmarks_their_share_of_the_time(self):
        self.program("tests/slow", "sleep 60")
        self.program("tests/kernel_benchmark", 'echo "1 of 9 kernels below"; exit 1')
        self.program("fake/python", 'case "$*" in *bench_gpu.py*) echo "$*"; echo "GPT x64 - of eager; PyTorch is MISSING" ;; esac')
        self.list_tests("slow_test 60 1 tests/slow", "late_test 60 1 tests/slow")
        code, table = self.check("--only", "tests,benchmarks", "--limit", "20", "--python", "python")
        self.assertEqual(code, 1)
        self.assertEqual({name: row[0] for name, row in table.items()},
                         {"slow_test": "TIMEOUT", "late_test": "SKIP", "kernels": "FAIL", "benchmarks": "PASS", "PyTorch": "MISSING"})
        self.assertEqual(table["kernels"][2], "exit code 1; 1 of 9 kernels below")
        self.assertIn("--kernels bin/lockstep-env tests/kernel_benchmark --time-limit ", (self.folder / "out" / "benchmarks.log").read_text())

    def test_without_a_gpu_nothing_runs(self):
        if glob.glob("/dev/nvidia[0-9]*") or shutil.which("nvidia-smi"):
            self.skipTest("there is a GPU")
        self.program("tests/good", FAILS)
        self.list_tests("good_test 60 1 tests/good", "ops_test 60 1 tests/good")
        code, table = self.check(gpu=False)
        self.assertEqual(code, 0)
        self.assertEqual({tuple(row) for row in table.values()}, {("SKIP", "0", "there is no GPU")})
        self.assertLessEqual({"start", "good_test", "verify_mlp", "memcheck_ops_test", "racecheck_ops_test", "benchmarks"}, set(table))

    def test_stops_in_time(self):
        self.program("tests/good", PASSES)
        self.list_tests("good_test 60 1 tests/good")
        code, table = self.check("--only", "tests", "--limit", "0")
        self.assertEqual((code, table["good_test"]), (0, ["SKIP", "0", "no time is left of 0 s"]))


if __name__ == "__main__":
    main()
