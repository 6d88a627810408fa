#!/usr/bin/env python3
"""lockstep-run with real trainings on two ranks of this host."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

from support import LAUNCHER, PATIENCE_S, PROGRAM, ROOT, Running, Terminal, TrainingCase, main

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

    def test_what_mpirun_lacks_is_given(self):
        # As of a container's arbitrary user, by a service with an empty environment.
        config = self.config()
        unknown = {"user": 54321, "group": 54321, "extra_groups": []} if os.geteuid() == 0 else {}
        self.folder.chmod(0o777)
        python = "/usr/bin/python3"   # others may lie where that user may not look
        if not os.access(python, os.X_OK):
            self.skipTest(f"there is no {python}")
        ran = subprocess.run([python, LAUNCHER, "--program", PROGRAM, "-n", "2", "--", "train", config, "--json", "--quiet"],
                             env={"TMPDIR": str(self.folder)}, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False, **unknown)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(json.loads(ran.stdout)["world_size"], 2)

    def test_a_stop_saves(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            with self.subTest(number):
                out = self.folder / f"run-{code}"
                running = self.start(["-n", "2"], [self.config(), *ENDLESS, "--out", str(out)])
                self.wait_until(running, lambda out=out: self.metrics_size(out) > 0)
                running.signal(number)
                self.assertEqual(running.finish(), code, running.err)
                self.assertTrue(list(out.glob("checkpoints/step-*/manifest.json")))
                self.assertIn("--resume auto\n", running.err)
                self.assertNotIn("-----", running.err)
                self.assertNotIn("mpirun", running.err)

    def test_a_signal_to_all_processes_at_once_saves(self):
        # As from systemd, unless KillMode is mixed.
        out = self.folder / "run"
        running = self.start(["-n", "2"], [self.config(), *ENDLESS, "--out", str(out)])
        self.wait_until(running, lambda: self.metrics_size(out) > 0)
        ranks = [self.rank_process(running, rank) for rank in (0, 1)]
        for process in (*ranks, self.child(running.process.pid), running.process.pid):
            os.kill(process, signal.SIGTERM)
        self.assertEqual(running.finish(), 143, running.err)
        self.assertTrue(list(out.glob("checkpoints/step-*/manifest.json")))
        self.assertNotIn("nothing was saved", running.err)

    def test_the_progress_line_moves_on_a_terminal(self):
        for options in ([], ["--log-dir", "logs"]):
            with self.subTest(options):
                terminal = Terminal(90)
                running = self.start(["-n", "2", *options], [self.config(), *ENDLESS, "--out", f"run{len(options)}"],
                                     environment={"TERM": "xterm", "LANG": "C.UTF-8"}, stdout=terminal.file, stderr=terminal.file)
                terminal.wait_until(lambda written: len(set(re.findall(rb"(\d+)/1000000000 \[", written))) > 1)
                running.signal(signal.SIGTERM)
                self.assertEqual(running.finish(), 143)
                terminal.close()
                lines = terminal.screen()
                self.assertEqual(sum("train: " in line for line in lines), 1, lines)
                self.assertTrue(all(line.startswith("train: ") for line in lines if "train: " in line), lines)
                self.assertTrue(any(line.startswith("lockstep-run: stopping") for line in lines), lines)
        log = (self.folder / "logs" / "rank-0.log").read_text()
        self.assertNotIn("\x1b", log)
        self.assertNotIn("\r", log)

    def stop_twice(self, first, launcher=None):
        """A job of which `first` asks ranks to stop, and then, later than signals of one request may be apart, the launcher."""
        out = self.folder / "run"
        running = self.start(["-n", "2"], [self.config(), *ENDLESS, "--out", str(out), "--set", "watchdog.silent_seconds=60"])
        self.wait_until(running, lambda: self.metrics_size(out) > 0)
        rank = self.rank_process(running, 1)
        # The job cannot stop before all have been asked twice.
        os.kill(rank, signal.SIGSTOP)
        first(running)
        time.sleep(2.5)
        if launcher:
            os.kill(launcher(running), signal.SIGTERM)
        else:
            running.signal(signal.SIGTERM)
        running.wait_for("a second signal ends them")
        time.sleep(0.5)
        os.kill(rank, signal.SIGCONT)
        self.assertEqual(running.finish(), 143, running.err)
        self.assertTrue(list(out.glob("checkpoints/step-*/manifest.json")))
        self.assertIn("--resume auto\n", running.err)

    def test_ranks_that_are_asked_several_times_save(self):
        # As where Kubernetes takes all pods of a job: a worker's own asks its ranks, and the launcher asks all of them.
        self.stop_twice(lambda running: os.kill(self.rank_process(running, 0), signal.SIGUSR1))

    def test_stop_ranks_and_then_the_launcher_lose_nothing(self):
        script = ROOT / "launcher" / "container" / "stop-ranks"
        if not shutil.which("pkill") or not shutil.which("unshare") or subprocess.run(
                ["unshare", "--pid", "--fork", "--mount-proc", "true"], stderr=subprocess.DEVNULL, check=False).returncode:
            self.skipTest("there is no pkill, or no right to a namespace of processes, without which it would stop others' ranks")
        # The launcher is the first process, as in a container, and stop-ranks comes in later. It ends with the container.
        self.before = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")

        def stop_ranks(running):
            asking = subprocess.Popen(["nsenter", f"--target={self.child(running.process.pid)}", "--pid", "--mount", script, "60"])
            self.addCleanup(asking.wait, 60)

        self.stop_twice(stop_ranks, lambda running: self.child(running.process.pid))

    def test_stop_ranks_refuses_what_are_no_seconds(self):
        for seconds in ("my_trainer", "-1", "1.5"):
            run = subprocess.run([ROOT / "launcher" / "container" / "stop-ranks", seconds, "no-such-program"], stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(run.returncode, 2)
            self.assertIn(f"expected whole seconds, found '{seconds}'", run.stderr)

    def child(self, pid):
        """The only child of a process."""
        (found,) = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(found)

    def test_a_program_of_ones_own_may_want_no_arguments(self):
        program = pathlib.Path(PROGRAM).parent / "api_program"
        if not program.exists():
            self.skipTest("the tests of the C++ interface are not built")
        # What it says of a start without arguments is 2, too; what lockstep-run would say of its own is not heard.
        running = Running([sys.executable, LAUNCHER, "-n", "2", "--program", str(program), "--"], {**os.environ})
        self.addCleanup(running.end)
        self.assertEqual(running.finish(), 2)
        self.assertRegex(running.err, r"^lockstep-run: (rank [01] ended first, with exit code 2|"
                                      r"a rank ended first, with exit code 2; mpirun does not say which)\n$")
        running = Running([sys.executable, LAUNCHER, "-n", "2", "--program", str(program), "--", "train"], {**os.environ})
        self.addCleanup(running.end)
        self.assertEqual(running.finish(), 0, running.err)

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

    def test_a_stopped_or_stuck_server_is_named(self):
        watched = ("--set", "watchdog.heartbeat_seconds=0.25", "--set", "watchdog.silent_seconds=2", "--set", "watchdog.compute_seconds=2",
                   "--set", "watchdog.communication_seconds=2")
        for layout, instruction, extra in (("dp=2,sync=ps,servers=2", "update", ()), ("dp=2,sync=ps,servers=2,mode=stale", "serve", UNORDERED)):
            for fault, what in (("stop", "silent"), ("hang", "stuck")):
                with self.subTest(f"{fault} with {layout}"):
                    out = self.folder / f"{fault}-{instruction}"
                    running = self.start(["-n", "4"], [self.config(), *ENDLESS, *extra, *watched, "--layout", layout, "--out", str(out),
                                                       "--failpoint", f"{fault}@3,50,{instruction}"])
                    self.assertEqual(running.finish(), 201, running.err)
                    self.assertIn(f"exit code 201 ({what}: rank 3 on {os.uname().nodename})\n", running.err)

    def test_another_number_of_servers_goes_on_with_the_same_bits(self):
        train = [self.config(), *LONGER]
        one = self.alone(train)["params_hash"]
        for role, rank in (("worker", 1), ("server", 2)):
            with self.subTest(role):
                out = self.folder / role
                running = self.start(["-n", "3"], [*train, "--layout", "dp=2,sync=ps", "--out", str(out)])
                self.wait_until(running, lambda out=out: list(out.glob("checkpoints/step-*[0-9]")))
                os.kill(self.rank_process(running, rank), signal.SIGKILL)
                self.assertEqual(running.finish(), 200, running.err)
                self.assertIn(f"exit code 200 (lost: rank {rank} on {os.uname().nodename})\n", running.err)
                rest = self.result(["-n", "4"], [*train, "--layout", "dp=2,sync=ps,servers=2", "--out", str(out), "--resume", "auto"])
                self.assertEqual(rest["params_hash"], one)

    def test_lost_workers_are_not_waited_for(self):
        out = self.folder / "run"
        train = [self.config(), *ENDLESS, *UNORDERED, "--set", "trainer.global_batch=48", "--out", str(out)]
        running = self.start(["-n", "4"], [*train, "--layout", "dp=3,sync=ps,mode=async"])
        # A rank can be spared once its watchdog has told that it is in the session, for which that needs a turn: thousands of
        # steps, since on a busy machine one came after two thousand.
        self.wait_until(running, lambda: self.metrics_size(out) > 1 << 20)
        for rank, number in ((2, signal.SIGKILL), (1, signal.SIGSEGV)):
            os.kill(self.rank_process(running, rank), number)
            warning = f"lockstep: warning: rank {rank} of 4 on host {os.uname().nodename} "
            self.wait_until(running, lambda warning=warning: warning in running.stderr.decode(errors="replace"))
            before = self.metrics_size(out)
            self.wait_until(running, lambda before=before: self.metrics_size(out) > before + 4096)
        running.signal(signal.SIGTERM)
        self.assertEqual(running.finish(), 143, running.err)
        self.assertIn("the run goes on as layout 'dp=1,sync=ps,mode=async,pushes=3' in 2 processes", running.err)
        self.assertNotIn("PMIX", running.err)
        self.assertNotIn("mpirun", running.err)
        step = max(int(found.name[5:]) for found in out.glob("checkpoints/step-*"))
        report = self.result(["-n", "3"], [*train, "--layout", "dp=2,sync=ps,mode=async,pushes=3", "--resume", "auto",
                                           "--stop-after", str(step + 50)])
        self.assertEqual(report["steps"], step + 50)

    def test_a_run_ends_in_order_without_lost_workers(self):
        for fault in ("kill@2,150,forward", "kill@1,120,push", "stop@2,130,backward", "hang@1,110,forward"):
            with self.subTest(fault):
                out = self.folder / fault
                victim = int(fault.split("@")[1].split(",")[0])
                # First it waits, so that its watchdog has had a turn since the checkpoint of step 100, on a busy machine, too.
                running = self.start(["-n", "4"], [
                    self.config(), *UNORDERED, "--set", "trainer.global_batch=48", "--set", "trainer.steps=400", "--set",
                    "trainer.eval_every_steps=200", "--set", "checkpoint.every_steps=100", "--layout", "dp=3,sync=ps,mode=async",
                    "--set", "watchdog.silent_seconds=3", "--set", "watchdog.compute_seconds=3", "--failpoint",
                    f"delay:1000@{victim},103,forward", "--failpoint", fault,
                    "--set", "metrics.machine_every_seconds=0.05", "--out", str(out), "--json",
                    "--timeline", str(self.folder / f"{fault}.json"), "--timeline-steps", "95:400"])
                self.assertEqual(running.finish(), 0, running.err)
                self.assertNotIn("lockstep: error:", running.err)
                report = json.loads(running.out)
                self.assertEqual((report["steps"], report["lost_workers"], report["world_size"]), (400, 1, 3))
                self.assertEqual(report["layout"], "dp=2,sync=ps,mode=async,pushes=3")
                self.assertEqual([process["rank"] for process in report["machine"]["processes"]], [0, 1, 2])
                self.assertTrue((out / "checkpoints/step-00000400/manifest.json").exists())
                steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()
                         if "eval_" not in line and '"kind"' not in line]
                self.assertEqual(len(steps), len(set(steps)))
                # What the others recorded before the loss, under the numbers that they had.
                timeline = json.loads((self.folder / f"{fault}.json").read_text())["otherData"]
                self.assertEqual([rank["rank"] for rank in timeline["ranks"]], [rank for rank in range(4) if rank != victim])
                self.assertEqual(len(timeline["notes"]), 1)

    def test_a_run_ends_in_order_without_a_worker_for_which_all_have_waited(self):
        # It hangs long before a meeting that the others reach soon, but not before it has had a turn on a busy machine. When it
        # is found, the others have waited for it for longer than all of them may wait for each other.
        out = self.folder / "run"
        running = self.start(["-n", "4"], [
            self.config(), *UNORDERED, "--set", "trainer.global_batch=48", "--set", "trainer.steps=1000", "--set",
            "trainer.eval_every_steps=0", "--layout", "dp=3,sync=ps,mode=async", "--set", "watchdog.heartbeat_seconds=0.25", "--set",
            "watchdog.compute_seconds=6", "--set", "watchdog.communication_seconds=3", "--failpoint", "hang@1,3,pull", "--out", str(out),
            "--json"])
        self.assertEqual(running.finish(), 0, running.err)
        self.assertIn(f"lockstep: warning: rank 1 of 4 on host {os.uname().nodename} ", running.err)
        report = json.loads(running.out)
        self.assertEqual((report["steps"], report["lost_workers"], report["world_size"]), (1000, 1, 3))

    def test_the_first_rank_and_servers_cannot_be_spared(self):
        for rank in (0, 3):
            with self.subTest(rank):
                out = self.folder / f"run-{rank}"
                running = self.start(["-n", "4"], [self.config(), *ENDLESS, *UNORDERED, "--set", "trainer.global_batch=48",
                                                   "--layout", "dp=3,sync=ps,mode=async", "--out", str(out)])
                self.wait_until(running, lambda out=out: self.metrics_size(out) > 0)
                os.kill(self.rank_process(running, rank), signal.SIGKILL)
                self.assertEqual(running.finish(), 200, running.err)
                self.assertIn(f"exit code 200 (lost: rank {rank} on {os.uname().nodename})\n", running.err)

    def test_a_second_signal_leaves_nothing_running(self):
        out = self.folder / "run"
        running = self.start(["-n", "2"], [self.config(), *ENDLESS, "--out", str(out)])
        self.wait_until(running, lambda: self.metrics_size(out) > 0)
        ranks = [self.rank_process(running, rank) for rank in (0, 1)]
        # A rank that is stopped cannot save.
        os.kill(ranks[1], signal.SIGSTOP)
        running.signal(signal.SIGTERM)
        running.wait_for("a second signal ends them")
        time.sleep(0.5)              # signals of one request are not so far apart
        running.signal(signal.SIGTERM)
        self.assertEqual(running.finish(), 202, running.err)
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
        self.assertRegex(running.err, rf"lockstep-run: restart 1 of 1 in 0 s, with 2 processes, from {out}/checkpoints/step-\d+\n")
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
                self.assertIn(f"no checkpoint in {second} yet\n", running.err)
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
