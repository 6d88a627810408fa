#!/usr/bin/env python3
"""lockstep-run with real trainings on two ranks of this host."""

import os
import pathlib
import signal

from support import TrainingCase, main

ENDLESS = ("--set", "trainer.steps=1000000000", "--set", "trainer.eval_every_steps=0")
UNORDERED = ("--set", "parallel.reduction=FAST")
# Some seconds of training.
LONGER = ("--set", "model.mlp.hidden=[256, 256]", "--set", "trainer.steps=3000", "--set", "trainer.eval_every_steps=0", "--set",
          "checkpoint.every_steps=100")


class Training(TrainingCase):
    def test_two_ranks_make_the_bits_of_one_process(self):
        config = self.config()
        two = self.result(["-n", "2"], [config])
        self.assertEqual(two["world_size"], 2)
        self.assertEqual(two["params_hash"], self.alone([config])["params_hash"])

    def test_a_stop_saves(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            with self.subTest(number):
                out = self.folder / f"run-{code}"
                running = self.start(["-n", "2"], [self.config(), *ENDLESS, "--out", str(out)])
                self.wait_until(running, lambda out=out: self.metrics_size(out) > 0)
                running.signal(number)
                self.assertEqual(running.finish(), code, running.err)
                self.assertTrue(list(out.glob("checkpoints/step-*/manifest.json")))
                self.assertIn("go on with --resume auto\n", running.err)
                self.assertNotIn("-----", running.err)
                self.assertNotIn("mpirun", running.err)

    def test_workers_that_do_not_wait_stop_and_go_on(self):
        for mode in ("mode=stale", "mode=async"):
            with self.subTest(mode):
                out = self.folder / mode
                train = [self.config(), *ENDLESS, *UNORDERED, "--layout", f"dp=2,sync=ps,{mode}", "--out", str(out)]
                running = self.start(["-n", "3"], train)
                self.wait_until(running, lambda out=out: self.metrics_size(out) > 0)
                running.signal(signal.SIGTERM)
                self.assertEqual(running.finish(), 143, running.err)
                step = max(int(found.name[5:]) for found in out.glob("checkpoints/step-*"))
                report = self.result(["-n", "3"], [*train, "--resume", "auto", "--stop-after", str(step + 50)])
                self.assertEqual(report["steps"], step + 50)
                self.assertGreater(sum(report["staleness"]["histogram"]), 0)

    def test_a_killed_server_of_workers_that_do_not_wait_is_named(self):
        out = self.folder / "run"
        running = self.start(["-n", "3"], [self.config(), *ENDLESS, *UNORDERED, "--layout", "dp=2,sync=ps,mode=async", "--out", str(out)])
        self.wait_until(running, lambda: self.metrics_size(out) > 0)
        os.kill(self.rank_process(running, 2), signal.SIGKILL)
        self.assertEqual(running.finish(), 200, running.err)
        self.assertIn(f"lockstep: the job ends with exit code 200 (lost: rank 2 on {os.uname().nodename})\n", running.err)

    def test_a_second_signal_leaves_nothing_running(self):
        out = self.folder / "run"
        running = self.start(["-n", "2"], [self.config(), *ENDLESS, "--out", str(out)])
        self.wait_until(running, lambda: self.metrics_size(out) > 0)
        ranks = [self.rank_process(running, rank) for rank in (0, 1)]
        # A rank that is stopped cannot save.
        os.kill(ranks[1], signal.SIGSTOP)
        running.signal(signal.SIGTERM)
        running.wait_for("Once more ends them at once")
        running.signal(signal.SIGTERM)
        self.assertEqual(running.finish(), 143, running.err)
        for rank in ranks:
            self.assertTrue(self.gone(rank))

    def test_a_killed_launcher_leaves_nothing_running(self):
        out = self.folder / "run"
        running = self.start(["-n", "2"], [self.config(), *ENDLESS, "--out", str(out)])
        self.wait_until(running, lambda: self.metrics_size(out) > 0)
        ranks = [self.rank_process(running, rank) for rank in (0, 1)]
        running.signal(signal.SIGKILL)
        self.assertEqual(running.finish(), -signal.SIGKILL)
        for rank in ranks:
            self.assertTrue(self.gone(rank))

    def test_a_killed_rank_is_named(self):
        out = self.folder / "run"
        running = self.start(["-n", "2"], [self.config(), *ENDLESS, "--out", str(out)])
        self.wait_until(running, lambda: self.metrics_size(out) > 0)
        os.kill(self.rank_process(running, 1), signal.SIGKILL)
        self.assertEqual(running.finish(), 200, running.err)
        self.assertIn(f"lockstep: the job ends with exit code 200 (lost: rank 1 on {os.uname().nodename})\n", running.err)
        # The end of rank 0 may reach mpirun first.
        self.assertRegex(running.err,
                         r"lockstep-run: rank 1 on host \S+ was (killed by signal 9 \(SIGKILL\)|lost; mpirun does not say)")

    def test_a_restart_ends_with_the_same_bits(self):
        train = [self.config(), *LONGER]
        out = self.folder / "run"
        running = self.start(["-n", "2", "--max-restarts", "1", "--restart-delay", "0"], [*train, "--out", str(out), "--json"])
        self.wait_until(running, lambda: list(pathlib.Path(out).glob("checkpoints/step-*[0-9]")))
        os.kill(self.rank_process(running, 1), signal.SIGKILL)
        self.assertEqual(running.finish(), 0, running.err)
        self.assertRegex(running.err, rf"lockstep-run: restart 1 of 1 in 0 s, with 2 workers, from {out}/checkpoints/step-\d+\n")
        self.assertIn(self.alone(train)["params_hash"], running.out)

    def test_a_restart_before_the_first_checkpoint_begins_from_the_same_run(self):
        config = self.config()
        first = str(self.folder / "first")
        self.alone([config, "--out", first, "--stop-after", "3"])
        for asked in (["--resume", first], ["--set", f"checkpoint.resume_path={first}"]):
            with self.subTest(asked[0]):
                second = str(self.folder / f"second{asked[0]}")
                # The log keeps the restart from dying at the same step.
                options = ["-n", "2", "--max-restarts", "1", "--restart-delay", "0", "-x", f"LOCKSTEP_FAILPOINT_LOG={second}.log"]
                running = self.start(options, [config, "--out", second, *asked, "--failpoint", "kill@1,8,backward", "--json"])
                self.assertEqual(running.finish(), 0, running.err)
                self.assertIn(f"from where it first began: there is no checkpoint in {second} yet\n", running.err)
                self.assertEqual(running.err.count(f"resumed after step 3 from {first}/checkpoints/step-00000003\n"), 2,
                                 running.err)
                self.assertIn(self.alone([config])["params_hash"], running.out)

    def test_mistakes_keep_their_code(self):
        running = self.start(["-n", "2", "--max-restarts", "1"], [self.config(), "--out", "o", "--set", "trainer.global_batch=0"])
        self.assertEqual(running.finish(), 2)
        self.assertEqual(running.err.count("\n"), 1, running.err)
        self.assertIn("trainer.global_batch", running.err)


if __name__ == "__main__":
    main()
