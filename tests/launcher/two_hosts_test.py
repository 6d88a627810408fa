#!/usr/bin/env python3
"""Trainings on the two hosts of scripts/two_hosts.sh, whose link is slow or cut."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from support import TWO_HOSTS, TrainingCase, main, need_mpirun

PAIR = f"test{os.getpid()}"
BOTH = ("-n", "2", "--host", "host-a,host-b", "--interface", "net0")
ENDLESS = ("--set", "trainer.steps=1000000000", "--set", "trainer.eval_every_steps=0")
UNORDERED = ("--set", "parallel.reduction=FAST")
SILENT_S = 3
WATCHED = ("--set", f"watchdog.silent_seconds={SILENT_S}")


def two_hosts(*arguments):
    return subprocess.run([TWO_HOSTS, "--id", PAIR, *arguments], stderr=subprocess.PIPE, check=False)


class TwoHosts(TrainingCase):
    before = (TWO_HOSTS, "--id", PAIR, "on", "host-a", "--")

    @classmethod
    def setUpClass(cls):
        need_mpirun()
        up = two_hosts("up")
        if up.returncode == 77:
            raise unittest.SkipTest(up.stderr.decode())
        cls.addClassCleanup(two_hosts, "down")
        if up.returncode != 0:
            raise AssertionError(up.stderr.decode())

    def setUp(self):
        super().setUp()
        self.addCleanup(two_hosts, "restore")
        self.addCleanup(two_hosts, "unthrottle")

    def training(self, *more, options=BOTH):
        """One that does not end, and has begun."""
        self.out = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "run"
        running = self.start(options, [self.config(), *more, "--out", str(self.out)])
        self.wait_until(running, lambda: self.metrics_size(self.out) > 0)
        return running

    def test_two_hosts_make_the_bits_of_one_process(self):
        two = self.result(BOTH, [self.config()])
        self.assertEqual(two["world_size"], 2)
        self.assertEqual(two["params_hash"], self.alone([self.config()])["params_hash"])

    def test_servers_on_another_host_make_the_bits_of_one_process(self):
        one = self.alone([self.config()])["params_hash"]
        for layout in ("dp=1,sync=ps", "dp=2,sync=ps,placement=colocated", "dp=2,sync=ps,servers=2,placement=colocated,aggregate=host"):
            self.assertEqual(self.result(BOTH, [self.config(), "--layout", layout])["params_hash"], one, layout)

    def test_several_workers_of_a_host_and_servers_make_the_bits_of_one_process(self):
        one = self.alone([self.config()])["params_hash"]
        options = ("-n", "6", "--host", "host-a:3,host-b:3", "--interface", "net0")
        for layout in ("dp=4,sync=ps,servers=2,aggregate=host", "dp=4,sync=ps,servers=2,assign=whole"):
            self.assertEqual(self.result(options, [self.config(), "--layout", layout])["params_hash"], one, layout)

    def test_sums_within_hosts_first_make_the_bits_of_one_process(self):
        one = self.alone([self.config()])["params_hash"]
        options = ("-n", "4", "--host", "host-a:2,host-b:2", "--interface", "net0")
        self.assertEqual(self.result(options, [self.config(), "--layout", "dp=4,aggregate=host"])["params_hash"], one)

    def test_workers_that_do_not_wait_make_all_steps(self):
        for layout in ("dp=1,sync=ps,mode=async", "dp=2,sync=ps,placement=colocated,mode=stale"):
            two = self.result(BOTH, [self.config(), *UNORDERED, "--layout", layout])
            self.assertEqual(two["steps"], self.alone([self.config()])["steps"], layout)

    def test_each_host_has_figures_of_its_own(self):
        running = self.training(*ENDLESS, "--set", "metrics.machine_every_seconds=0.1")

        def sampled():
            lines = [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines(keepends=True) if line.endswith("\n")]
            return {(line["host"], line.get("rank")) for line in lines if line.get("kind") == "machine"}

        self.wait_until(running, lambda: sampled() >= {("host-a", None), ("host-b", None), ("host-a", 0), ("host-b", 1)})
        running.signal(signal.SIGTERM)
        self.assertEqual(running.finish(), 143, running.err)
        (events,) = (self.out / "tensorboard").iterdir()
        for tag in (b"host-a.machine/processor_share", b"host-b.machine/processor_share", b"rank1/processor_cores"):
            self.assertIn(tag, events.read_bytes())

    def test_a_slow_link_only_slows_down(self):
        two_hosts("throttle", "1mbit")
        two = self.result(BOTH, [self.config(), *WATCHED])
        self.assertEqual(two["params_hash"], self.alone([self.config()])["params_hash"])

    def test_a_link_that_comes_back_costs_nothing(self):
        running = self.training(*ENDLESS)
        two_hosts("cut")
        threading.Event().wait(2)
        before = self.metrics_size(self.out)
        two_hosts("restore")
        self.wait_until(running, lambda: self.metrics_size(self.out) > before + 4096)
        running.signal(signal.SIGTERM)
        self.assertEqual(running.finish(), 143, running.err)
        self.assertTrue(list(self.out.glob("checkpoints/step-*/manifest.json")))

    def test_a_cut_link_ends_the_job(self):
        self.cut_ends(())

    def test_a_link_to_a_server_that_is_cut_ends_the_job(self):
        self.cut_ends(("--layout", "dp=1,sync=ps"))

    def test_a_link_to_a_server_that_does_not_wait_ends_the_job(self):
        for mode in ("stale", "async"):
            with self.subTest(mode):
                two_hosts("restore")
                self.cut_ends((*UNORDERED, "--layout", f"dp=1,sync=ps,mode={mode}"))

    def test_a_lost_worker_on_another_host_is_not_waited_for(self):
        out = self.folder / "run"
        running = self.start(("-n", "3", "--host", "host-a:1,host-b:2", "--interface", "net0"), [
            self.config(), *UNORDERED, "--set", "trainer.steps=400", "--layout", "dp=2,sync=ps,mode=async", "--failpoint",
            "kill@1,100,backward", "--out", str(out), "--json"])
        self.assertEqual(running.finish(), 0, running.err)
        report = json.loads(running.out)
        self.assertEqual((report["steps"], report["lost_workers"], report["world_size"]), (400, 1, 2))
        self.assertNotIn("mpirun", running.err)

    def cut_ends(self, layout):
        running = self.training(*ENDLESS, *WATCHED, *layout)
        ranks = [self.rank_process(running, rank) for rank in (0, 1)]
        two_hosts("cut")
        begin = time.monotonic()
        self.assertEqual(running.finish(), 201, running.err)
        # Other programs may use the machine: scripts/measure_faults.py cuts measures how soon.
        self.assertLess(time.monotonic() - begin, SILENT_S + 20)
        self.assertIn("lockstep: the job ends with exit code 201 (silent: rank 1 on host-b)\n", running.err)
        for rank in ranks:
            self.assertTrue(self.gone(rank))

    def test_the_other_host_goes_on_alone(self):
        length = ("--set", "trainer.steps=40000", "--set", "trainer.eval_every_steps=0", "--set", "checkpoint.every_steps=1000")
        running = self.training(*length, *WATCHED, "--json", options=(
            *BOTH, "--max-restarts", "1", "--restart-processes", "surviving", "--restart-delay", "0"))
        self.wait_until(running, lambda: list(self.out.glob("checkpoints/step-*[0-9]")))
        two_hosts("cut")
        self.assertEqual(running.finish(), 0, running.err)
        self.assertIn("lockstep-run: restart 1 of 1 in 0 s, with 1 process, from ", running.err)
        self.assertIn(self.alone([self.config(), *length])["params_hash"], running.out)


if __name__ == "__main__":
    main()
