#!/usr/bin/env python3
"""launcher/slurm/train.sbatch in a Slurm of two nodes (scripts/slurm_cluster.sh): runs, requests to stop, preemptions, lost workers."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import unittest

from support import PATIENCE_S, PROGRAM, ROOT, TrainingCase, main, need_mpirun

CLUSTER = ROOT / "scripts" / "slurm_cluster.sh"
SBATCH = ROOT / "launcher" / "slurm" / "train.sbatch"
# Some seconds of training.
LONGER = ("--set", "model.mlp.hidden=[256, 256]", "--set", "trainer.steps=3000", "--set", "trainer.eval_every_steps=0", "--set",
          "checkpoint.every_steps=100")


class Slurm(TrainingCase):
    @classmethod
    def setUpClass(cls):
        need_mpirun()

    def setUp(self):
        super().setUp()
        self.out = self.folder / "run"
        self.log = self.folder / "log"
        self.waiting = threading.Event()

    def submit(self, start, train, **variables):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "LOCKSTEP_PROGRAM": PROGRAM, "LOCKSTEP_START": start,
                       "LOCKSTEP_RUN_OPTIONS": "--interface net0", "OMPI_MCA_btl_tcp_if_include": "net0",
                       "LOCKSTEP_CONTROL_INTERFACE": "net0", **variables}
        ran = subprocess.run(["sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", f"--output={self.log}", SBATCH, self.config(),
                              *train, "--out", self.out, "--json"], env=environment, cwd=self.folder, check=True, stdout=subprocess.PIPE,
                             text=True)
        self.job = ran.stdout.strip()
        self.addCleanup(subprocess.run, ["scancel", "--quiet", self.job], check=False)

    def text(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait_for(self, condition):
        for _ in range(int(2 * PATIENCE_S / 0.1)):
            found = condition()
            if found:
                return found
            self.waiting.wait(0.1)
        state = subprocess.run(["scontrol", "show", "job", self.job], stdout=subprocess.PIPE, text=True, check=False).stdout
        raise AssertionError(f"did not happen; log: {self.text()}\n{state}")

    def state(self):
        shown = subprocess.run(["scontrol", "show", "job", self.job], stdout=subprocess.PIPE, text=True, check=True).stdout
        return re.search(r"JobState=(\w+)", shown)[1], re.search(r"ExitCode=(\d+)", shown)[1], re.search(r"Restarts=(\d+)", shown)[1]

    def end(self):
        """State, exit code and restarts of the job, once it is over."""
        return self.wait_for(lambda: (lambda found: found if found[0] in ("COMPLETED", "FAILED", "CANCELLED") else None)(self.state()))

    def report(self):
        return json.loads(next(line for line in reversed(self.text().splitlines()) if line.startswith("{")))

    def ranks(self):
        """Process and rank of each worker."""
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    environment = file.read().split(b"\0")
                program = os.readlink(f"/proc/{name}/exe")
            except OSError:
                continue
            if program == os.path.realpath(PROGRAM) and f"SLURM_JOB_ID={self.job}".encode() in environment:
                for variable in environment:
                    if variable.startswith((b"OMPI_COMM_WORLD_RANK=", b"PMIX_RANK=")):
                        found[int(variable.partition(b"=")[2])] = int(name)
        return found

    def test_a_run_makes_the_bits_of_one_process(self):
        for start in ("mpirun", "srun"):
            with self.subTest(start):
                self.out, self.log = self.folder / start, self.folder / f"{start}.log"
                self.submit(start, [])
                self.assertEqual(self.end(), ("COMPLETED", "0", "0"), self.text())
                self.assertEqual(self.report()["world_size"], 2)
                self.assertEqual(self.report()["params_hash"], self.alone([self.config()])["params_hash"])

    def test_a_request_to_stop_queues_it_again(self):
        for start in ("mpirun", "srun"):
            with self.subTest(start):
                self.out, self.log = self.folder / start, self.folder / f"{start}.log"
                self.submit(start, LONGER)
                self.wait_for(lambda: self.metrics_size(self.out) > 0)
                subprocess.run(["scancel", "--batch", "--signal=USR1", self.job], check=True)
                self.assertEqual(self.end(), ("COMPLETED", "0", "1"), self.text())
                self.assertIn("train.sbatch: ended with 143; the job is queued again\n", self.text())
                self.assertIn("resumed after step", self.text())
                self.assertEqual(self.report()["params_hash"], self.alone([self.config(), *LONGER])["params_hash"])

    def test_a_lost_worker_is_named_and_the_job_queued_again(self):
        for start in ("mpirun", "srun"):
            with self.subTest(start):
                self.out, self.log = self.folder / start, self.folder / f"{start}.log"
                self.submit(start, LONGER)
                self.wait_for(lambda: list(self.out.glob("checkpoints/step-*[0-9]")))
                os.kill(self.wait_for(lambda: self.ranks().get(1)), signal.SIGKILL)
                self.assertEqual(self.end(), ("COMPLETED", "0", "1"), self.text())
                self.assertIn("lockstep: the job ends with exit code 200 (lost: rank 1 on host-b)\n", self.text())
                self.assertIn("resumed after step", self.text())
                self.assertEqual(self.report()["params_hash"], self.alone([self.config(), *LONGER])["params_hash"])

    def test_a_preempted_job_saves_and_goes_on(self):
        for start in ("mpirun", "srun"):
            with self.subTest(start):
                self.out, self.log = self.folder / start, self.folder / f"{start}.log"
                self.submit(start, LONGER)
                self.wait_for(lambda: self.metrics_size(self.out) > 0)
                # Wants both nodes for itself, and is soon done.
                urgent = subprocess.run(["sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null",
                                         "--wrap=true"], check=True, stdout=subprocess.PIPE, text=True, cwd=self.folder).stdout.strip()
                self.addCleanup(subprocess.run, ["scancel", "--quiet", urgent], check=False)
                self.assertEqual(self.end(), ("COMPLETED", "0", "1"), self.text())
                self.assertIn("stopped by request after step", self.text())
                self.assertIn("resumed after step", self.text())
                self.assertEqual(self.report()["params_hash"], self.alone([self.config(), *LONGER])["params_hash"])

    def test_scancel_saves_and_does_not_queue_it_again(self):
        self.submit("mpirun", ["--set", "trainer.steps=1000000000", "--set", "trainer.eval_every_steps=0"])
        self.wait_for(lambda: self.metrics_size(self.out) > 0)
        subprocess.run(["scancel", "--batch", "--signal=TERM", self.job], check=True)
        self.assertEqual(self.end(), ("FAILED", "143", "0"), self.text())
        self.assertTrue(list(self.out.glob("checkpoints/step-*/manifest.json")))

    def test_compare_takes_the_hosts_of_the_allocation(self):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_MCA_btl_tcp_if_include": "net0", "OMPI_MCA_oob_tcp_if_include": "net0",
                       "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        ran = subprocess.run(["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", PROGRAM, "compare", self.config(), "--workers", "2",
                              "--layouts", "sync=all_reduce; shard=optimizer", "--steps", "12", "--minutes", "0", "--predict", "4",
                              "--out", self.out, "--json", "--quiet"], env=environment, cwd=self.folder, check=False,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        results = json.loads(ran.stdout)
        self.assertTrue(results["hostfile"].startswith("Slurm: "), results["hostfile"])
        for row in results["rows"]:
            self.assertEqual(row["proof"], "identical")
            self.assertEqual(row["samples"][0]["hosts"], 2)
        for row in results["forecasts"]:
            self.assertGreater(row["predicted_ms"], 0)

    def test_without_out_nothing_starts(self):
        ran = subprocess.run([SBATCH, "CONFIG"], env={**os.environ, "SLURM_JOB_ID": "1"}, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(ran.returncode, 2)
        self.assertIn("--out DIR is missing", ran.stderr)


if __name__ == "__main__":
    if "SLURM_CONF" in os.environ and os.environ.get("LOCKSTEP_SLURM_TEST"):
        main()
    if not PROGRAM:
        print("skipped: LOCKSTEP_PROGRAM does not say where lockstep is")
        sys.exit(77)
    sys.exit(subprocess.run([CLUSTER, "--", sys.executable, __file__, *sys.argv[1:]], env={**os.environ, "LOCKSTEP_SLURM_TEST": "1"},
                            check=False).returncode)
