#!/usr/bin/env python3
"""scripts/gpu_probe.py: its tables and figures, what it does without PyTorch and cuDNN, and what counts as a failure."""

import pathlib
import signal
import subprocess
import sys
import time
import unittest

from support import PROGRAM, ROOT, Case, main

sys.path.insert(0, str(ROOT / "scripts"))
import gpu_probe  # noqa: E402

# Stand for gpu_probe, for cudnn_probe and for a Python with PyTorch.
PROBE = """
import json, sys
assert sys.argv[2:] in ([], ["--tiny"]), sys.argv
def say(**line):
    print(json.dumps(line), flush=True)
say(part=sys.argv[1], device="a GPU", libraries="cuda=13.0")
def products():
    def candidate(us, taken=False):
        return {"algorithm": f"algorithm {us}", "taken": taken, "workspace_bytes": 32 << 20, "waves": 1.5, "us": us, "tflops": 700}
    broken = {"algorithm": "broken", "taken": False, "workspace_bytes": 0, "waves": 1, "error": "not supported"}
    say(name="mlp up forward", count=12, fused=False, epilogue="taken", candidates=[candidate(500, True), broken, candidate(400)])
    say(name="head forward", count=1, fused=False, epilogue="none", candidates=[candidate(4000, True)])
    say(name="mlp up forward, GELU", count=12, fused=True, epilogue="refused", candidates=[candidate(600, True)])
    say(asked=9, refused=["[1, 2]"], epilogue_refused=["[3, 4] with a bias", "[5, 6] with a bias"])
def attention():
    for dropout, forward in ((0, 500), (0.1, 600)):
        say(batch=64, heads=12, positions=1024, head_size=64, dropout=dropout, forward_flops=1e11, forward_us=forward, backward_us=1500)
def convolutions():
    say(name="224x224 3->64 7x7/2", count=1, forward_us=1000, weight_gradient_us=2000, forward_by_64_mib_us=900, weight_gradient_by_64_mib_us=1800)
    say(name="56x56 64->64 3x3", count=3, forward_us=100, input_gradient_us=200, weight_gradient_us=300, forward_by_64_mib_us=90,
        input_gradient_by_64_mib_us=180, weight_gradient_by_64_mib_us=270)
def launches():
    say(name="stream write", host_us=1.5, stream_us=2.5, gated=True, works=True)
    say(name="empty kernel", host_us=2, stream_us=3, gated=True)
    say(name="graph, empty kernels: 1000", kernels=1000, host_us=10, stream_us=900, gated=False)
    say(name="graph of 100 stream writes", works=False, why="not permitted")
    say(name="queue, empty kernels", all_fit=False, fit=1022, ms=1000)
globals()[sys.argv[1]]()
"""
CUDNN = """
import json, sys
print(json.dumps({"device": "a GPU", "library": "cuDNN 9.19.0"}))
for name in ("224x224 3->64 7x7/2", "56x56 64->64 3x3"):
    plan = {"us": 50, "deterministic_us": 80}
    line = {"name": name, "forward": plan, "weight_gradient": plan, "float32_weight_gradient": {"us": 60} if "7x7" in name else {"why": "no engine"}}
    print(json.dumps(line if "7x7" in name else {**line, "input_gradient": plan}))
"""
PYTHON = """
import json, sys
if sys.argv[1] == "-c":
    sys.exit()
for line in sys.stdin:
    request = json.loads(line)
    assert (request["do"], request["batch"], request["head_size"]) == ("attention", 64, 64)
    if request["deterministic"] and request["backend"] == "cudnn":
        reply = {"error": "RuntimeError: No available kernel"}
    else:
        reply = {"forward_us": 400, "backward_us": {"cudnn": 1200, "flash": 1400}[request["backend"]] + 100 * request["deterministic"]}
    print(json.dumps(reply), flush=True)
"""


class GpuProbe(Case):
    def program(self, name, text):
        path = self.folder / name
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)
        return path

    def command(self, part, *options, probe=PROBE, python=PYTHON, cudnn=CUDNN):
        # Behind a program that sets up an environment, as in a package.
        environment = self.program("environment", "import os, sys; os.execv(sys.argv[1], sys.argv[1:])")
        if cudnn:
            self.program("cudnn_probe", cudnn)
        return [sys.executable, str(ROOT / "scripts" / "gpu_probe.py"), part, "--probe", f"{environment} {self.program('gpu_probe', probe)}",
                "--python", str(self.program("python", python)) if python else "none", *options]

    def run_part(self, part, *options, **programs):
        ran = subprocess.run(self.command(part, *options, **programs), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=200,
                             check=False)
        self.assertEqual(ran.stderr, "")
        self.figure = ran.stdout.splitlines()[-1]
        self.assertLessEqual(len(self.figure), 100)
        return ran

    def assert_lines(self, ran, *lines):
        for line in lines:
            self.assertIn(line + "\n", ran.stdout)

    def test_products(self):
        ran = self.run_part("products", "--tiny")
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assert_lines(ran, "products, a GPU, cuda=13.0",
                          "  mlp up forward                    taken    500.0      700    32    1.5    400.0   #3  500 - 400",
                          "  head forward                       none   4000.0      700    32    1.5   4000.0   #1  4000",
                          "  mlp up forward: taken algorithm 500; fastest algorithm 400",
                          "  refused: [1, 2]", "  refused with its epilogue: [5, 6] with a bias")
        self.assertNotIn("head forward: taken", ran.stdout)
        self.assertEqual(self.figure, "10.0 ms a step, by the fastest 8.8; fused_gelu 11.2; refused 1 of 9, epilogues 2")

    def test_attention_beside_pytorch(self):
        ran = self.run_part("attention")
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assert_lines(ran, "  lockstep, no dropout            500.0   200     1500.0   167     2000.0      -",
                          "  lockstep, dropout 0.1           600.0   167     1500.0   167     2100.0   1.05",
                          "  cuDNN, no dropout               400.0   250     1200.0   208     1600.0   0.80",
                          "  cuDNN, deterministic                -     -          -     -          -      -  RuntimeError: No available kernel",
                          "  flash, deterministic            400.0   250     1500.0   167     1900.0   0.95",
                          "  flash, dropout 0.1              400.0   250     1400.0   179     1800.0   0.86")
        self.assertEqual(self.figure, "2.00 ms; cuDNN 1.60; cuDNN determ. -; flash 1.80; flash determ. 1.90")

    def test_attention_without_pytorch(self):
        ran = self.run_part("attention", python=None)
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assert_lines(ran, "PyTorch is MISSING: none has no PyTorch")
        self.assertEqual(self.figure, "2.00 ms; PyTorch is MISSING")

    def test_attention_beside_a_pytorch_that_does_not_work(self):
        ran = self.run_part("attention", python="import sys; sys.exit(sys.argv[1] != '-c')")
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assert_lines(ran, "PyTorch is MISSING: PyTorch's process ended")
        self.assertEqual(self.figure, "2.00 ms; PyTorch is MISSING")

    def test_convolutions_beside_cudnn(self):
        ran = self.run_part("convolutions")
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assert_lines(ran, "a GPU, cuDNN 9.19.0",
                          "  224x224 3->64 7x7/2         1000     50     80         -      -      -      2000     50     80         60      -",
                          "  56x56 64->64 3x3             100     50     80       200     50     80       300     50     80          -      -",
                          "  float32 weight gradient not computed by cuDNN: no engine")
        self.assertEqual(self.figure, "4.8 ms a step, by 64 MiB 4.3; cuDNN 0.6 (0.11), deterministic 0.9; float32 dW 1 of 2, determ. 0")

    def test_convolutions_without_cudnn(self):
        ran = self.run_part("convolutions", cudnn="import sys; sys.stderr.write('cudnn_probe: there is no libcudnn.so.9\\n'); sys.exit(77)")
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assert_lines(ran, "cuDNN is MISSING: cudnn_probe: there is no libcudnn.so.9")
        self.assertEqual(self.figure, "4.8 ms a step, by 64 MiB 4.3; cuDNN is MISSING")

    def test_convolutions_where_there_is_no_program_for_cudnn(self):
        ran = self.run_part("convolutions", "--cudnn", str(self.folder / "nothing"))
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertRegex(ran.stdout, r"(?m)^cuDNN is MISSING: .*No such file")

    def test_finds_libraries_in_folders_of_python_packages(self):
        library = self.folder / "packages" / "nvidia" / "cudnn" / "lib"
        library.mkdir(parents=True)
        where = self.program("python", f"print({str(self.folder / 'packages' / 'nvidia')!r})")
        self.assertEqual(gpu_probe.with_cuda_libraries(str(where))["LD_LIBRARY_PATH"].split(":")[-1], str(library))

    def test_launches(self):
        ran = self.run_part("launches")
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assert_lines(ran, "  stream write                                     1.50     2.50  works true",
                          "  graph, empty kernels: 1000                      10.00   900.00  kernels 1000, the host had to wait for the stream",
                          "  graph of 100 stream writes                          -        -  works false, why not permitted")
        self.assertEqual(self.figure, "launch 2.0 + 3.0 us, write 1.5 + 2.5 (works: yes, captured: no), in graphs 0.9, queue 1022")

    def test_reads_what_the_program_really_prints(self):
        program = pathlib.Path(PROGRAM).parent / "gpu_probe_emulated"
        if not PROGRAM or not program.exists():
            self.skipTest("there is no gpu_probe_emulated beside LOCKSTEP_PROGRAM")
        expected = {"products": r"[\d.]+ ms a step, by the fastest [\d.]+; fused_gelu [\d.]+; refused 0 of 156, epilogues 10",
                    "attention": r"[\d.]+ ms; PyTorch is MISSING", "convolutions": r"[\d.]+ ms a step, by 64 MiB [\d.]+; cuDNN is MISSING",
                    "launches": r"launch [\d.]+ \+ [\d.]+ us, write [\d.]+ \+ [\d.]+ \(works: yes, captured: -\), in graphs -, queue -"}
        for part, figure in expected.items():
            ran = self.run_part(part, "--tiny", "--probe", str(program), "--cudnn", str(self.folder / "nothing"), python=None)
            self.assertEqual(ran.returncode, 0, ran.stdout)
            self.assertRegex(self.figure, f"^{figure}$")

    def test_a_failure_of_lockstep_is_one(self):
        ran = self.run_part("launches", probe=PROBE + "say(name='graph', error='CUDA reports trouble')\nsys.exit(1)")
        self.assertEqual(ran.returncode, 1)
        self.assert_lines(ran, "failed: graph: CUDA reports trouble")
        self.assertTrue(self.figure.startswith("1 failed; launch 2.0 + 3.0 us"), self.figure)

    def test_a_program_that_crashes_has_failed(self):
        ran = self.run_part("attention", probe=PROBE + "sys.stderr.write('first\\nout of memory\\n'); sys.exit(2)")
        self.assertEqual(ran.returncode, 1)
        self.assert_lines(ran, "failed: out of memory")
        self.assertTrue(self.figure.startswith("1 failed; 2.00 ms; cuDNN 1.60;"), self.figure)

    def test_a_program_that_measures_nothing_has_failed(self):
        for part in gpu_probe.REPORTS:
            for program in ("", "import sys; sys.exit(1)"):
                ran = self.run_part(part, probe=program)
                self.assertEqual(ran.returncode, 1, ran.stdout)
                self.assertTrue(self.figure.startswith("1 failed; "), self.figure)

    def test_a_machine_without_a_gpu_is_told(self):
        ran = self.run_part("products", probe="import sys; sys.stderr.write('gpu_probe: there is no CUDA driver\\n'); sys.exit(77)")
        self.assertEqual(ran.returncode, 77)
        self.assertEqual(self.figure, "no GPU: gpu_probe: there is no CUDA driver")

    def test_tells_what_came_in_time(self):
        # What it has started keeps the pipe open.
        hangs = PROBE + "import subprocess; subprocess.Popen(['sleep', '110']); __import__('time').sleep(110)"
        began = time.monotonic()
        ran = self.run_part("products", "--time-limit", "12", probe=hangs)
        self.assertLess(time.monotonic() - began, 90)
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertTrue(self.figure.startswith("cut short; 10.0 ms a step"), self.figure)

    def test_tells_what_there_is_when_it_is_asked_to_stop(self):
        tells = PROBE + "open(sys.argv[0] + '.done', 'w').close(); __import__('time').sleep(100)"
        with subprocess.Popen(self.command("launches", probe=tells), stdout=subprocess.PIPE, text=True) as running:
            self.wait_for_file(self.folder / "gpu_probe.done")
            running.send_signal(signal.SIGTERM)
            out = running.stdout.read()
        self.assertEqual(running.returncode, 0, out)
        self.assertTrue(out.splitlines()[-1].startswith("cut short; launch 2.0 + 3.0 us"), out)


if __name__ == "__main__":
    main()
