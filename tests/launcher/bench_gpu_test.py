#!/usr/bin/env python3
"""scripts/bench_gpu.py: what it counts, and that it measures lockstep where there is neither a GPU nor PyTorch."""

import json
import re
import subprocess
import sys
import unittest

from support import PROGRAM, ROOT, Case, main

sys.path.insert(0, str(ROOT / "scripts"))
import bench_gpu  # noqa: E402


class BenchGpu(Case):
    def test_counts_parameters_and_operations(self):
        self.assertEqual(bench_gpu.gpt_parameters({**bench_gpu.GPT, "vocabulary": 50257}), 124439808)
        self.assertEqual(bench_gpu.gpt_flops_per_token(bench_gpu.GPT), 6 * 123689472 + 6 * 12 * 768 * 1024)

    def run_tiny(self, *options):
        return subprocess.run([sys.executable, ROOT / "scripts" / "bench_gpu.py", "--device", "cpu", "--tiny", "--lockstep", PROGRAM,
                               "--python", str(self.folder / "none"), *options],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100, check=False)

    def test_measures_lockstep_alone(self):
        if not PROGRAM:
            self.skipTest("LOCKSTEP_PROGRAM does not say where lockstep is")
        values = self.folder / "values.json"
        ran = self.run_tiny("--json-out", values)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertRegex(ran.stdout, r"(?m)^ +2  lockstep +[1-9]\d* .* - +- +1$")
        self.assertRegex(ran.stdout, r"(?m)^ +4  eager +- ")
        self.assertRegex(ran.stdout, r"(?m)^  mlp +[1-9]\d*\.\d +- +-$")
        self.assertEqual(len(re.findall("has no PyTorch", ran.stdout)), 1)
        measured = {(str(entry["what"]), entry["who"]) for entry in json.loads(values.read_text())}
        self.assertEqual(measured, {("['gpt', 2]", "lockstep"), ("['gpt', 4]", "lockstep"), ("lenet", "lockstep"), ("mlp", "lockstep")})

    def test_a_program_that_fails_is_told(self):
        ran = self.run_tiny("--lockstep", "/bin/false")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("not measured: lenet lockstep: exit code 1\n", ran.stdout)

    def test_stops_in_time(self):
        ran = self.run_tiny("--time-limit", "0")
        self.assertEqual(ran.returncode, 1, ran.stderr)
        self.assertIn("stopped by the time limit", ran.stdout)
        self.assertIn("not measured: mlp lockstep: no time was left\n", ran.stdout)


if __name__ == "__main__":
    main()
