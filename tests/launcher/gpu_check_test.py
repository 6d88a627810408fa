#!/usr/bin/env python3
"""scripts/gpu_check.sh, on packages whose programs are scripts and a machine whose nvidia-smi is one."""

import glob
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import unittest

from support import ROOT, Case, Running, main

PASSES = 'echo "[       OK ] A.b (0 ms)"; echo "[  SKIPPED ] A.c (0 ms)"'
FAILS = 'echo "[       OK ] A.b (0 ms)"; echo "[  FAILED  ] A.c (0 ms)"; exit 1'
SKIPS = 'echo "[  SKIPPED ] A.c (0 ms)"'
GOLDENS = 'test -d "${LOCKSTEP_TEST_GOLDENS%/goldens}"'
# What lockstep prints of a training, and of two layouts.
REPORT = ('{"tokens_per_second":400000.5,"samples_per_second":5000,"step_ms":{"mean":161,"p50":160.25,"p99":170},"data_wait_ms":0.5,"first_step_ms":12.5,'
          '"startup_parts_ms":{"launch":8,"other":4.5},"peak_memory_bytes":34359738368,'
          '"machine":{"power":{"p50":1.0}}}')
# What ncu prints around a program, of a kernel that takes a millisecond.
NCU = """while [ "${1#-}" != "$1" ]; do
  case $1 in --csv) ;; *) shift ;; esac
  shift
done
"$@" || exit
echo '==PROF== Disconnected from process 7'
echo '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
echo '"0","7","lockstep","127.0.0.1","lockstep::run::<unnamed>::add_kernel(float *, const float *, long, long)","1","7","(256, 1, 1)","(9, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","nsecond","1,000,000"'
"""
PROBE = "import sys; print('first'); print(' '.join(sys.argv[1:]))\n"
MOST_PRINTED = 12000


class GpuCheck(Case):
    def setUp(self):
        super().setUp()
        scripts = self.folder / "scripts"
        scripts.mkdir()
        for name in ("common.sh", "gpu_check.sh", "kernel_times.py", "bench_gpu.py"):
            shutil.copy(ROOT / "scripts" / name, scripts)
        shutil.copytree(ROOT / "scripts" / "gpu_check", scripts / "gpu_check")
        (self.folder / "PACKAGE.txt").write_text("lockstep\n")
        self.program("bin/lockstep", f"echo '{REPORT}'; echo 'identical in 2 runs: x'")
        self.program("bin/lockstep-env", 'exec "$@"')
        self.program("bin/mpirun", 'echo "[       OK ] $* (0 ms)"; case "$*" in *" train "*) echo "lockstep: error: ranks 0, 1 on host a '
                     'would share one GPU (x, GPU-1): start fewer, or pass --allow-shared-gpu, which is slow" >&2; exit 1 ;; esac')
        self.program("fake/ncu", NCU)

    def program(self, path, text):
        path = self.folder / path
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def list_tests(self, *lines):
        (self.folder / "tests").mkdir(exist_ok=True)
        (self.folder / "tests" / "list").write_text("".join(line + "\n" for line in lines))

    def start(self, *options, before=()):
        environment = {**os.environ, "PATH": f"{self.folder}/fake:{os.environ['PATH']}"}
        return Running([*before, self.folder / "scripts" / "gpu_check.sh", "--out", self.folder / "out", *options], environment)

    def check(self, *options, gpu=True, before=()):
        """The exit code, and the table as {part: [result, seconds, figure]}."""
        if gpu:
            self.program("fake/nvidia-smi", "echo GPU")
        running = self.start(*options, before=before)
        code = running.finish()
        return code, self.table(running)

    def table(self, running):
        self.out = running.out + running.err
        self.assertIn("== result after", self.out)
        lines = self.out.partition("== result after")[2].partition("\n\nall logs: ")[0].splitlines()[2:]
        return {line.split()[0]: line.split(maxsplit=3)[1:] for line in lines}

    def log(self, name):
        return (self.folder / "out" / f"{name}.log").read_text()

    def archived(self, path=None):
        """{file: content} of the archive."""
        path = path or self.folder / "out.tar.gz"
        self.assertLess(path.stat().st_size, 16 << 20)
        with tarfile.open(path) as archive:
            return {os.path.basename(member.name): archive.extractfile(member).read() for member in archive if member.isfile()}

    def everything(self):
        """Programs for all parts."""
        self.program("tests/good", PASSES)
        self.program("tests/gpu_probe", "true")
        self.program("tests/kernel_benchmark", """echo '{"copy_bytes_per_second":3e+12,"product_size":8192,"product_flops":6.5e+14}'\n"""
                     'case $1 in ceilings) exit ;; esac; echo "of $*"\necho "cast_kernel bfloat16 - 100 MiB 0.1 ms 3000 GB/s 80.1 % FAIL"\n'
                     'echo "add_kernel float32 - 100 MiB 0.1 ms 2000 GB/s 61.5 % FAIL"\n'
                     'echo "norm float32 - 100 MiB 0.1 ms 4000 GB/s 95.0 % PASS"\necho "2 of 3 kernels below"; exit 1')
        self.program("fake/compute-sanitizer", 'echo "$*"; echo "========= ERROR SUMMARY: 0 errors"')
        self.program("fake/python", f'case "$*" in *bench_gpu.py*) echo "ceilings by lockstep: x"; echo "GPT x64 1.10 of compile" ;; '
                     f'*) exec {sys.executable} "$@" ;; esac')
        (self.folder / "scripts" / "gpu_probe.py").write_text(PROBE)
        self.list_tests("comm_nccl_test 600 2 tests/good", "ops_gpu_test 60 1 tests/good", "device_test 60 1 tests/good")
        return ("--python", self.folder / "fake" / "python")

    def test_parts_that_pass(self):
        self.program("tests/good", f"{PASSES}; {GOLDENS}")
        self.list_tests("device_test 60 1 tests/good", "train_test 60 1 tests/good", "ops_test 60 1 tests/good", "both_test 60 2 tests/good")
        code, table = self.check("--only", "device,start,tests,verify,nccl")
        self.assertEqual(code, 0, table)
        self.assertEqual({result for result, *_ in table.values()}, {"PASS"})
        self.assertEqual(table["start"][2], "first step done after 12 ms: launch:8,other:4.5")
        self.assertEqual(table["shared_gpu_refused"][2], "ranks 0, 1 would share one GPU")
        for name in ("device_test", "train_test", "ops_test.0", "ops_test.3"):
            self.assertEqual(table[name][2], "1 passed, 0 failed, 1 skipped")
        self.assertEqual(table["verify_gpt"][2], "identical in 2 runs: x")
        self.assertLessEqual({"verify_gpt_bfloat16", "verify_lenet_bfloat16", "verify_lenet_tf32", "verify_mlp_float16"}, set(table))
        # Ranks of one GPU must look to NCCL as if they were on two hosts.
        self.assertRegex(self.log("both_test"), "-n 1 -x NCCL_HOSTID=rank0 -x GTEST_COLOR=no -x GTEST_FILTER=[^ ]* tests/good : -n 1 -x NCCL_HOSTID=rank1 ")

    def test_two_ranks_that_train_on_one_gpu_have_failed_to_be_refused(self):
        self.program("bin/mpirun", "true")
        code, table = self.check("--only", "start")
        self.assertEqual((code, table["shared_gpu_refused"][0]), (1, "FAIL"))

    def test_a_failure_is_told_and_the_rest_goes_on(self):
        for name, text in (("bad", FAILS), ("empty", SKIPS), ("good", PASSES), ("slow", "sleep 60")):
            self.program(f"tests/{name}", text)
        self.list_tests("train_bad 60 1 tests/bad", "train_empty 60 1 tests/empty", "train_slow 5 1 tests/slow", "train_good 60 1 tests/good",
                        "train_unbuilt 60 1 tests/unbuilt")
        code, table = self.check("--only", "tests")
        self.assertEqual(code, 1)
        self.assertEqual({name: row[0] for name, row in table.items()},
                         {"train_bad": "FAIL", "train_empty": "FAIL", "train_slow": "FAIL", "train_good": "PASS", "train_unbuilt": "MISSING"})
        self.assertEqual(table["train_bad"][2], "exit code 1; 1 passed, 1 failed, 0 skipped")
        self.assertTrue(table["train_slow"][2].startswith("not done in 5 s"))

    def test_a_device_that_does_not_work_ends_the_call(self):
        self.everything()
        self.program("tests/bad", SKIPS)
        self.list_tests("device_test 60 1 tests/bad", "ops_test 60 1 tests/good")
        code, table = self.check("right")
        self.assertEqual((code, list(table)), (1, ["device_test"]))
        self.assertIn("device_test", self.archived()["table.log"].decode())
        self.program("tests/bad", FAILS)    # one of its tests
        code, table = self.check("--only", "device,tests")
        self.assertEqual((code, table["ops_test.1"][0]), (1, "PASS"))

    def test_parts_that_run_side_by_side_do_run_side_by_side(self):
        # Each waits for the other to have begun.
        for name, other in (("a", "b"), ("b", "a")):
            self.program(f"tests/{name}", f'touch "{self.folder}/{name}"; while [ ! -e "{self.folder}/{other}" ]; do sleep 0.05; done; {PASSES}')
        self.list_tests("train_a 60 1 tests/a", "step_kernels_b 60 1 tests/b")
        code, table = self.check("--only", "tests")
        self.assertEqual((code, {row[0] for row in table.values()}), (0, {"PASS"}), self.out)

    def test_what_the_machine_lacks_fails_nothing(self):
        self.program("tests/good", PASSES)
        self.list_tests("ops_gpu_test 60 1 tests/good")
        if shutil.which("compute-sanitizer"):
            self.skipTest("there is a compute-sanitizer")
        code, table = self.check("--only", "sanitizer")
        self.assertEqual(code, 0)
        self.assertEqual({row[0] for row in table.values()}, {"MISSING"})
        self.assertIn("racecheck_attention", table)

    def list_sanitized(self):
        self.list_tests("ops_gpu_test 60 1 tests/good", "step_kernels_gpu_test 60 1 tests/good", "train_gpu_test 60 1 tests/good")

    def test_compute_sanitizer_looks_at_memory_and_at_races_of_own_kernels(self):
        self.program("fake/compute-sanitizer", 'echo "$GTEST_FILTER $*"; echo "========= ERROR SUMMARY: 0 errors"')
        self.list_sanitized()
        code, table = self.check("--only", "sanitizer")
        self.assertEqual(code, 0, table)
        names = {"racecheck_attention", "racecheck_embedding", "racecheck_layer_norm", "racecheck_step_kernels", "memcheck_step_kernels"}
        self.assertEqual({name: (row[0], row[2]) for name, row in table.items()}, {name: ("PASS", "0 errors") for name in names})
        self.assertIn("* --tool memcheck --report-api-errors no --error-exitcode 9 tests/good\n", self.log("memcheck_step_kernels"))
        self.assertIn("GpuAttention.* --tool racecheck --kernel-name kns=lockstep --error-exitcode 9 tests/good\n", self.log("racecheck_attention"))

    def test_compute_sanitizer_finds_errors_or_cannot_run(self):
        self.program("fake/compute-sanitizer", 'case $2 in memcheck) echo "========= ERROR SUMMARY: 3 errors"; exit 9 ;; esac\n'
                     'echo "========= Error: Device not supported. Please refer to the documentation"; exit 1')
        self.list_sanitized()
        code, table = self.check("--only", "sanitizer")
        self.assertEqual(code, 1)
        self.assertEqual(table["memcheck_step_kernels"][0::2], ["FAIL", "exit code 9; 3 errors"])
        self.assertEqual(table["racecheck_attention"][0::2], ["MISSING", "compute-sanitizer says: device not supported"])

    def test_compute_sanitizer_that_takes_too_long_has_not_failed_unless_it_found_something(self):
        self.program("fake/compute-sanitizer", 'case $2 in racecheck) echo "========= Error: Race reported between Write access" ;; esac\n'
                     'sleep 60')
        self.list_sanitized()
        code, table = self.check("--only", "sanitizer", "--limit", "7")
        self.assertEqual(code, 1)
        self.assertEqual(table["memcheck_step_kernels"][0], "TIMEOUT")
        self.assertEqual(table["racecheck_embedding"][0], "FAIL")
        self.assertTrue(table["racecheck_embedding"][2].endswith("; 1 places told of"))

    def test_parts_share_the_time(self):
        self.program("tests/slow", "sleep 60")
        self.program("tests/kernel_benchmark", 'echo "kernel_benchmark: x"; exit 2')
        self.program("fake/python", 'case "$*" in *bench_gpu.py*) echo "$*"; echo "GPT x64 - of eager; PyTorch is MISSING" ;; esac')
        self.list_tests("train_slow 60 1 tests/slow")
        code, table = self.check("--only", "tests,kernels,benchmarks", "--limit", "36", "--python", "python")
        self.assertEqual(code, 1)
        self.assertEqual({name: row[0] for name, row in table.items()},
                         {"train_slow": "TIMEOUT", "kernels": "FAIL", "benchmarks": "PASS", "PyTorch": "MISSING"})
        self.assertEqual(table["kernels"][2], "exit code 2; kernel_benchmark: x")
        self.assertIn("--kernels bin/lockstep-env tests/kernel_benchmark --time-limit ", self.log("benchmarks"))

    def test_pytorch_has_as_much_to_do_as_the_gpu_has_memory(self):
        for memory, batch in ((81559, 32), (143771, 64)):
            self.program("fake/python", 'case "$*" in *bench_gpu.py*) echo "$*" ;; esac')
            self.program("fake/nvidia-smi", f'case "$*" in *memory.total*nounits*) echo {memory} ;; *) echo GPU ;; esac')
            self.program("tests/kernel_benchmark", "true")
            self.check("--only", "benchmarks", "--python", "python", gpu=False)
            self.assertIn(f" --micro-batches {batch} ", self.log("benchmarks"))

    def test_the_first_call(self):
        options = self.everything()
        code, table = self.check("right", *options)
        self.assertEqual(code, 0, self.out)
        self.assertEqual({row[0] for row in table.values()}, {"PASS"}, self.out)
        names = list(table)
        self.assertEqual(names[0], "device_test")
        self.assertEqual(set(names[1:5]), {f"ops_gpu_test.{shard}" for shard in range(4)})
        self.assertEqual(names[5:], ["ceilings", "gpt", "gpt_fused_gelu", "ncu_counters", "gpt_under_ncu", "step_kernels", "probe_launches",
                                     "probe_products", "probe_attention", "probe_convolutions", "start", "shared_gpu_refused", "kernels",
                                     *(f"replicas_{model}_{how}" for model in ("gpt2", "mlp", "lenet") for how in ("fast", "apart", "joined")),
                                     "watched_run", "profile", "compare", "chaos"])
        self.assertEqual(table["replicas_gpt2_joined"][2], "5000 samples/s, 160.25 ms a step")
        self.assertEqual(table["ceilings"][2], "copy 3.00 TB/s, product 650 TFLOP/s")
        self.assertEqual(table["gpt"][2], "400000 tokens/s, 160.25 ms a step")
        self.assertEqual(table["gpt_under_ncu"][2], "times of 1 kernels")
        self.assertEqual(table["kernels"][2], "2 of 3 kernels below")
        self.assertIn("of bfloat16 float32 float16\n", self.log("kernels"))
        self.assertEqual(table["probe_launches"][2], f"launches --probe bin/lockstep-env tests/gpu_probe --python {options[1]}")

        # What counts is in the end of what is printed.
        end = self.out[-MOST_PRINTED:]
        for text in ("\nproducts: products --probe ", "\ngpt: 400,000 tokens/s (predicted 4",
                     "\ngpt_fused_gelu: 400,000 tokens/s", "\npredictions of one GPU\n", "\ntied add                        1    1.000     0.158   6.34     464      2940 GB/s\n",
                     "\npart "):
            self.assertIn(text, end)
        # The slowest first, and those alone that are slow.
        self.assertRegex(end, r"below 85 % of the copy's bandwidth\nadd_kernel .* 61.5 %\ncast_kernel .* 80.1 %\n\n")

        archived = self.archived()
        self.assertLessEqual({f"{name}.log" for name in names} |
                             {"machine.log", "table.log", "summary.log", "gpt_figures.log", "slow_kernels.log", "step_kernels.json"}, set(archived))
        self.assertEqual(archived["table.log"].decode().splitlines()[0].split()[:2], ["device_test", "PASS"])
        self.assertTrue(self.out.endswith(f"all logs: {self.folder / 'out.tar.gz'}\n"))

    def test_the_second_call(self):
        options = self.everything()
        code, table = self.check("fast", *options)
        self.assertEqual(code, 0, self.out)
        names = list(table)
        self.assertEqual([name for name in names if not name.startswith(("verify_", "racecheck_", "memcheck_"))], ["benchmarks", "comm_nccl_test"])
        self.assertIn("== beside PyTorch\nceilings by lockstep: x\nGPT x64", self.out[-MOST_PRINTED:])
        self.assertTrue(names[-1].startswith(("racecheck_", "memcheck_")))
        # With what was mended since the first.
        code, table = self.check("fast", "--also", "device,tests", *options)
        self.assertEqual(list(table)[0], "device_test")
        self.assertIn("ops_gpu_test.2", table)
        self.assertIn("benchmarks", table)

    def test_gpt_is_trained_as_it_was_predicted(self):
        self.program("bin/lockstep", f"echo \"$@\"; echo '{REPORT}'")
        self.check("--only", "gpt,ncu")
        shared = ("train configs/gpt2_124m.textproto --device cuda --json --set trainer.global_batch=64 --set trainer.micro_batch=64 "
                  "--set trainer.virtual_replicas=1 --set trainer.eval_every_steps=0 --set trainer.eval_at_end=false "
                  "--set trainer.check_every_steps=0 --set trainer.steps=")
        self.assertEqual(self.log("gpt").splitlines()[0], shared + "25 --set precision.fused_gelu=false")
        self.assertEqual(self.log("gpt_fused_gelu").splitlines()[0], shared + "25 --set precision.fused_gelu=true")
        self.assertEqual(self.log("gpt_under_ncu").splitlines()[0], shared.replace("--set trainer.steps=", "--quiet --set precision.fused_gelu=false --set trainer.steps=") + "1")
        # The rest of the step, of 160.25 ms, was in no kernel.
        self.assertRegex(self.log("step_kernels"), r"(?m)^words, waits and gaps +159\.250 ")

    def test_ncu_looks_at_times_alone(self):
        self.program("fake/ncu", 'echo "$*"')
        code, table = self.check("--only", "ncu")
        self.assertEqual(code, 0)
        # It ran, and had nothing to tell.
        self.assertEqual({name: row[0] for name, row in table.items()}, {"ncu_counters": "MISSING", "gpt_under_ncu": "SKIP"})
        self.assertIn("--clock-control none --cache-control none --print-units base --metrics gpu__time_duration.sum --csv --launch-count 1 bin/lockstep train ",
                      self.log("ncu_counters"))

    def test_ncu_that_is_refused_fails_nothing_and_one_that_shows_a_failure_does(self):
        self.program("fake/ncu", 'echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"; exit 1')
        code, table = self.check("--only", "ncu")
        self.assertEqual(table["gpt_under_ncu"], ["SKIP", "0", "ncu measures nothing here"])
        self.assertEqual((code, table["ncu_counters"][0::2]), (0, ["MISSING", "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"]))
        self.program("fake/ncu", 'echo "==ERROR== The application returned an error code (1)."; exit 1')
        code, table = self.check("--only", "ncu")
        self.assertEqual((code, table["gpt_under_ncu"][0]), (1, "FAIL"))

    def test_a_probe_that_fails_and_probes_that_are_not_there(self):
        self.assertEqual(self.check("--only", "probes")[1]["probe_products"], ["MISSING", "0", "there is no tests/gpu_probe"])
        self.everything()
        (self.folder / "scripts" / "gpu_probe.py").write_text("import sys; print('refused'); sys.exit(sys.argv[1] == 'attention')\n")
        code, table = self.check("--only", "probes")
        self.assertEqual(code, 1)
        self.assertEqual({name: row[0] for name, row in table.items()}, {"probe_products": "PASS", "probe_attention": "FAIL",
                                                                         "probe_convolutions": "PASS", "probe_launches": "PASS"})
        self.assertEqual(table["probe_attention"][2], "exit code 1; refused")

    def test_time_that_runs_out_leaves_an_archive(self):
        self.everything()
        self.program("bin/lockstep", "echo begun; sleep 60")
        self.program("tests/kernel_benchmark", "true")
        self.list_tests("train_slow 60 1 bin/lockstep")
        code, table = self.check("--only", "gpt,tests", "--limit", "24", "--archive", self.folder / "all.tar.gz")
        self.assertEqual((code, table["train_slow"][0]), (0, "TIMEOUT"))
        archived = self.archived(self.folder / "all.tar.gz")
        self.assertEqual(archived["train_slow.log"], b"begun\n")
        self.assertIn(b"train_slow", archived["table.log"])

    def test_the_archive_is_there_before_the_end(self):
        self.program("tests/good", PASSES)
        self.program("tests/slow", f'touch "{self.folder}/waits"; sleep 60')
        self.list_tests("device_test 60 1 tests/good", "train_slow 60 1 tests/slow")
        self.program("fake/nvidia-smi", "echo GPU")
        running = self.start("--only", "device,tests")
        self.wait_for_file(self.folder / "waits")
        archived = self.archived()
        self.assertIn(b"device_test", archived["table.log"])
        self.assertIn(b"A.b", archived["device_test.log"])
        running.signal(signal.SIGTERM)
        running.finish()

    def stopped_by(self, number, name):
        """The table and the archive, of a check that is stopped while GPT trains by a process that heeds no signal."""
        self.everything()
        self.program("bin/lockstep", f'trap "" TERM\necho $$ >"{self.folder}/pid"; mv "{self.folder}/pid" "{self.folder}/trains"\nwhile :; do sleep 0.1; done')
        self.program("fake/nvidia-smi", "echo GPU")
        running = self.start("--only", "gpt,benchmarks")
        self.wait_for_file(self.folder / "trains")
        running.signal(number)
        self.assertEqual(running.finish(), 128 + number)
        table = self.table(running)
        self.assertEqual(list(table), ["ceilings", "gpt"])
        self.assertEqual(table["gpt"][0::2], ["STOPPED", f"by {name}"])
        self.assertIn(f"stopped by {name}\n", self.out)
        self.assertIn(b"gpt ", self.archived()["table.log"])
        self.assertTrue(self.gone(int((self.folder / "trains").read_text())))

    def test_a_signal_leaves_an_archive_and_no_process(self):
        self.stopped_by(signal.SIGTERM, "SIGTERM")

    def test_an_interrupt_leaves_an_archive_and_no_process(self):
        self.stopped_by(signal.SIGINT, "SIGINT")

    def test_long_logs_are_cut(self):
        # Random bytes: they do not become fewer in an archive.
        self.program("bin/lockstep", f'echo begin; head -c {6 << 20} /dev/urandom; echo "identical in 2 runs: x"')
        code, table = self.check("--only", "verify")
        self.assertEqual(code, 0, self.out)
        archived = self.archived()
        for name in table:
            content = archived[f"{name}.log"]
            self.assertTrue(content.startswith(b"begin\n") and content.endswith(b"identical in 2 runs: x\n"))
            self.assertIn(b"\n... left out of 6291", content)
            self.assertLess(len(content), 2 << 20)

    def test_the_end_of_what_is_printed_holds_all_that_counts(self):
        options = self.everything()
        self.program("tests/bad", f"echo {'x' * 500}; exit 1")
        self.program("tests/kernel_benchmark", 'i=0; while [ $i -lt 90 ]; do echo "kernel$i bfloat16 forward 100 MiB 0.1 ms 3000 GB/s 80.1 % FAIL"; i=$((i + 1)); done')
        self.list_tests("train_bad 60 1 tests/bad", *(f"train_with_a_name_that_is_long_{i} 60 1 tests/good" for i in range(60)))
        code, table = self.check(*options, "--only", "gpt,ncu,probes,tests,kernels,benchmarks")
        self.assertEqual(code, 1)
        # Those that passed are left out of a table that would be too long.
        self.assertIn("train_bad", table)
        self.assertNotIn("train_with_a_name_that_is_long_7", table)
        self.assertIn(b"train_with_a_name_that_is_long_7", self.archived()["table.log"])
        end = self.out[-MOST_PRINTED:]
        for text in ("== kernels bound by memory", "== beside PyTorch", "== probes", "\ngpt: 400,000", "\ntied add "):
            self.assertIn(text, end)

    def in_its_own_network(self):
        """What a command begins with that shall see a network of its own, whose lo is down."""
        before = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
        if not shutil.which("unshare") or subprocess.run([*before, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
            self.skipTest("no right to make a network")
        return before

    def test_a_question_without_an_answer_costs_no_other(self):
        self.program("fake/nvidia-smi", 'case "$*" in -L) echo GPU ;; *) echo broken; exit 255 ;; esac')
        self.check("--only", "start", gpu=False)
        facts = self.log("machine")
        self.assertIn("GPU           broken\nGPU           nvidia-smi ended with 255\n", facts)
        for name in ("lo ", "host ", "/dev/shm ", "ncu ", "PyTorch "):
            self.assertRegex(facts, f"(?m)^{name}")

    def test_the_loopback_is_brought_up(self):
        self.check("--only", "start")
        self.assertRegex(self.log("machine"), r"(?m)^lo            up$")
        before = self.in_its_own_network()
        self.check("--only", "start", before=before)
        self.assertRegex(self.log("machine"), r"(?m)^lo            was down, and was brought up$")
        # Without programs for it Python does it.
        for name in ("ip", "ifconfig"):
            self.program(f"fake/{name}", "exit 1")
        self.check("--only", "start", before=before)
        self.assertRegex(self.log("machine"), r"(?m)^lo            was down, and was brought up$")
        self.program("fake/python", "exit 1")
        self.check("--only", "start", "--python", "python", before=before)
        self.assertRegex(self.log("machine"), r"(?m)^lo            is down, and could not be brought up: mpirun will fail")

    def test_unknown_parts_are_refused(self):
        running = self.start("--only", "tests,sanitiser")
        self.assertEqual(running.finish(), 2)
        self.assertIn("not sanitiser", running.err)
        for options in ((), ("right", "fast"), ("right", "--only", "tests"), ("--only", "tests", "--also", "gpt")):
            self.assertEqual(self.start(*options).finish(), 2, options)

    def test_without_a_gpu_nothing_runs(self):
        if glob.glob("/dev/nvidia[0-9]*") or shutil.which("nvidia-smi"):
            self.skipTest("there is a GPU")
        self.program("tests/good", FAILS)
        self.list_tests("device_test 60 1 tests/good", "ops_gpu_test 60 1 tests/good")
        kinds = "device,tests,gpt,ncu,probes,start,kernels,benchmarks,verify,nccl,sanitizer"
        code, table = self.check("--only", kinds, gpu=False)
        self.assertEqual(code, 0)
        self.assertEqual({tuple(row) for row in table.values()}, {("SKIP", "0", "there is no GPU")})
        self.assertLessEqual({"gpt", "gpt_under_ncu", "probe_products", "start", "device_test", "verify_gpt", "racecheck_attention", "benchmarks"},
                             set(table))

    def test_stops_in_time(self):
        self.program("tests/good", PASSES)
        self.list_tests("train_good 60 1 tests/good")
        code, table = self.check("--only", "tests", "--limit", "0")
        self.assertEqual((code, table["train_good"]), (0, ["SKIP", "0", "no time is left of 0 s"]))


if __name__ == "__main__":
    main()
