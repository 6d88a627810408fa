#!/usr/bin/env python3
"""scripts/bench_gpu.py: what it counts, and that it measures lockstep where there is neither a GPU nor PyTorch."""

import argparse
import json
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

from support import PROGRAM, ROOT, Case, main

sys.path.insert(0, str(ROOT / "scripts"))
import bench_gpu  # noqa: E402


# Stand for lockstep, for kernel_benchmark and for a Python with PyTorch.
LOCKSTEP = """
import json, sys
small = "gpt2_124m" not in sys.argv[2]
assert small == any(word.startswith("data.prefetch_threads=") for word in sys.argv) == ("data.prefetch_depth=64" in sys.argv)
model = "gpt" if "gpt2_124m" in sys.argv[2] else "lenet" if "lenet" in sys.argv[2] else "mlp"
rate, step_ms = {"gpt": (4, 250), "lenet": (64000, 0.5), "mlp": (128000, 0.25)}[model]
print(json.dumps({"samples_per_second": rate, "step_ms": {"mean": 1, "p50": step_ms, "p99": 2}, "data_wait_ms": 0.0625, "first_step_ms": 1500,
                  "startup_parts_ms": {"launch": 1100, "kernels": 1, "first_step": 399}, "peak_memory_bytes": 3 << 30}))
"""
KERNELS = """
import json, sys
assert sys.argv[1] == "--tiny"
if sys.argv[2] == "ceilings":
    print(json.dumps({"copy_bytes_per_second": 4.2e12, "product_flops": 7e14}))
else:
    print(json.dumps({"name": "LeNet 1", "type": "tf32", "batch": 1, "side": 6, "channels": 1, "out_channels": 4, "kernel": 5, "padding": 2,
                      "forward_us": 10, "input_gradient_us": 20, "weight_gradient_us": 40}))
"""
PYTHON = """
import json, os, sys
if sys.argv[1] == "-c":
    sys.exit()
asked = set()
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "train":
        reply = {"samples_per_second": {"eager": 2, "compile": 5, "graph": 6}[request["variant"]], "step_us": 1000, "peak_memory_bytes": None}
        if not asked:
            reply.update(first_step_s=7.25, parts_s={"import": 7, "first_step": 0.25, "start": 0.001})
    elif request["do"] == "convolution":
        reply = {"error": "no " + request["type"]} if request["side"] != 6 else {
            "forward_us": 5, "input_gradient_us": 30, "weight_gradient_us": 40}
    else:
        reply = {"bytes_per_second": 4.1e12, "flops": 6.5e14}
    asked.add(request["do"])
    with open(os.environ["TORCHINDUCTOR_CACHE_DIR"] + "/x", "w"):
        pass
    print(json.dumps(reply), flush=True)
"""


class BenchGpu(Case):
    def program(self, name, text):
        path = self.folder / name
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)
        return path

    def run_with_fakes(self, *options):
        return subprocess.run([sys.executable, ROOT / "scripts" / "bench_gpu.py", "--device", "cuda", "--tiny",
                               "--lockstep", self.program("lockstep", LOCKSTEP), "--kernels", self.program("kernels", KERNELS),
                               "--python", self.program("python", PYTHON), "--json-out", self.folder / "values.json", *options],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100, check=False)

    def measured(self):
        return {(str(entry["what"]), entry["who"]) for entry in json.loads((self.folder / "values.json").read_text())}

    def test_prints_everything_beside_pytorch(self):
        ran = self.run_with_fakes()
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        for line in ("ceilings by lockstep: copy 4.20 TB/s read and written, bfloat16 product 700.0 TFLOP/s",
                     "ceilings by PyTorch: copy 4.10 TB/s read and written, bfloat16 product 650.0 TFLOP/s",
                     "     4  lockstep         128     250.00   0.0%       0.0%      3.00      2.00       0.80      1",
                     "     4  compile          160       1.00   0.0%       0.0%         -      2.50       1.00      1",
                     "  lenet, median     500.0    1000.0    1000.0    1000.0",
                     "  lenet, mean      1000.0 32000000.0 12800000.0 10666666.7",
                     "  waits for data      62.5",
                     "  mlp, median       250.0    1000.0    1000.0    1000.0",
                     "  gpt x4   lockstep     1.50  launch 1.10, first_step 0.40",
                     "  gpt x4   compile      7.25  import 7.00, first_step 0.25",
                     "  lenet    eager        7.25  import 7.00, first_step 0.25",
                     "  LeNet 1          tf32           10.0      5.0   0.50      20.0     30.0   1.50      40.0     40.0   1.00"):
            self.assertIn(line + "\n", ran.stdout)
        self.assertNotIn("not measured", ran.stdout)
        self.assertEqual(ran.stdout.splitlines()[-1],
                         "GPT x4 2.00 of eager, 0.80 of compile; GPT x2 2.00 of eager, 0.80 of compile; lenet 2.00 x eager; mlp 4.00 x eager")
        self.assertLessEqual({("['gpt', 4]", "compile"), ("lenet", "graph"), ("mlp", "compile"), ("product", "PyTorch's"),
                              ("['convolution', 'LeNet 1', 'tf32']", "cuDNN")}, self.measured())

    def test_the_largest_micro_batch_comes_first(self):
        lines = [line.partition(":")[0] for line in self.run_with_fakes().stdout.splitlines() if re.match(r"(gpt|lenet|mlp)[^:]* (lockstep|eager): ", line)]
        self.assertEqual(lines, ["gpt x4 lockstep", "gpt x4 eager", "lenet lockstep", "lenet eager", "mlp lockstep", "mlp eager",
                                 "gpt x2 lockstep", "gpt x2 eager"])

    def test_what_there_is_is_told_when_it_is_asked_to_stop(self):
        # torch.compile does not come back; what was measured until then is saved already.
        self.program("python", PYTHON.replace("request = json.loads(line)",
                                              "request = json.loads(line)\n    if request.get('variant') == 'compile': __import__('time').sleep(100)"))
        command = [sys.executable, "-u", ROOT / "scripts" / "bench_gpu.py", "--device", "cuda", "--tiny", "--lockstep",
                   self.program("lockstep", LOCKSTEP), "--python", self.folder / "python", "--kernels", "none",
                   "--json-out", self.folder / "values.json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            while not running.stdout.readline().startswith("gpt x4 eager"):
                self.assertIsNone(running.poll())
            running.terminate()
            rest = running.stdout.read()
        self.assertEqual(running.returncode, 1)
        self.assertIn("     4  lockstep         128 ", rest)
        self.assertIn("not measured: mlp lockstep: no time was left\n", rest)
        self.assertEqual(self.measured(), {("['gpt', 4]", "lockstep"), ("['gpt', 4]", "eager")})

    def test_sigterm_ends_it_though_sent_twice(self):
        command = [sys.executable, "-u", ROOT / "scripts" / "bench_gpu.py", "--device", "cpu", "--tiny", "--python", "none",
                   "--lockstep", self.program("lockstep", "__import__('time').sleep(100)")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            children = f"/proc/{running.pid}/task/{running.pid}/children"
            while not pathlib.Path(children).read_text():
                self.assertIsNone(running.poll())
            running.terminate()
            running.terminate()
            out, err = running.communicate()
        self.assertEqual((running.returncode, err), (1, ""), out)
        self.assertIn("not measured: gpt x4 lockstep: no time was left\n", out)

    def test_measures_kernels_without_pytorch(self):
        ran = self.run_with_fakes("--python", "none")
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("  LeNet 1          tf32           10.0        -      -      20.0        -      -      40.0        -      -\n", ran.stdout)
        self.assertIn("ceilings by lockstep: copy 4.20 ", ran.stdout)
        self.assertEqual(len(re.findall("has no PyTorch", ran.stdout)), 1)
        self.assertTrue(ran.stdout.endswith("; PyTorch is MISSING\n"))

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
        self.assertRegex(ran.stdout, r"(?m)^  mlp, median +[1-9]\d*\.\d +- +- +-$")
        self.assertRegex(ran.stdout, r"(?m)^  lenet +lockstep +\d+\.\d\d  .*launch \d")
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


class Asked(Case):
    """One peer, a process that runs `text`, asked by this one."""

    def peer(self, text, limit=60):
        python = self.folder / "python"
        python.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{text}")
        python.chmod(0o755)
        peer = bench_gpu.Peer(argparse.Namespace(python=str(python), device="cpu"), bench_gpu.Clock(limit), str(self.folder))
        self.addCleanup(peer.process.stdout.close)
        self.addCleanup(peer.process.stdin.close)
        self.addCleanup(peer.close)
        return peer

    def test_takes_answers_in_pieces(self):
        peer = self.peer("for line in sys.stdin:\n    for piece in (b'{\"a\": ', line.strip().encode(), b'}', b'\\n'): os.write(1, piece)\n")
        self.assertEqual(peer.ask(do="one"), {"a": {"do": "one"}})
        self.assertEqual(peer.ask(do="two"), {"a": {"do": "two"}})

    def test_is_missing_once_its_process_has_ended(self):
        peer = self.peer("sys.stdin.readline(); os.write(1, b'{')\n")
        for _ in range(2):
            self.assertEqual(peer.ask(do="one"), {"error": "PyTorch's process ended"})

    def test_is_given_up_when_the_time_is_over(self):
        with self.assertRaises(bench_gpu.OutOfTime):
            self.peer("time.sleep(100)\n", limit=1.5).ask(do="one")

    def test_a_signal_ends_the_wait_and_nothing_is_left_that_python_waits_for(self):
        # A thread that was started for the wait is left behind if the signal comes while it starts.
        peer, threads = self.peer("time.sleep(100)\n"), []

        def interrupt(*_):
            threads.extend(thread for thread in threading.enumerate() if not thread.daemon)
            raise bench_gpu.OutOfTime

        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        begin = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with self.assertRaises(bench_gpu.OutOfTime):
            peer.ask(do="one")
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual(threads, [threading.main_thread()])


if __name__ == "__main__":
    main()
