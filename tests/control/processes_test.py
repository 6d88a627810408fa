#!/usr/bin/env python3
"""Real processes under mpirun, really killed and stopped: control_processes_test.py CONTROL_RANK MPIRUN"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, MPIRUN = sys.argv[1:3]


class Job:
    """mpirun with a few ranks, whose process ids it has said."""

    def __init__(self, ranks, *arguments, crash_directory=None, seconds_to_end=None):
        environment = dict(os.environ)
        if seconds_to_end:  # between mpirun's SIGTERM and its SIGKILL; one second, if nothing is said
            environment["OMPI_MCA_odls_base_sigkill_timeout"] = str(seconds_to_end)
        if crash_directory:
            environment["LOCKSTEP_TEST_CRASH_DIRECTORY"] = crash_directory
        self.process = subprocess.Popen([MPIRUN, "-n", str(ranks), PROGRAM, *map(str, arguments)], text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=environment, start_new_session=True)
        self.pids = {}
        while len(self.pids) < ranks:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError("the job did not start: " + self.process.stderr.read())
            if match := re.fullmatch(r"rank (\d+) pid (\d+)\n", line):
                self.pids[int(match[1])] = int(match[2])

    def send(self, rank, number):
        os.kill(self.pids[rank], number)

    def finish(self):
        """Exit code, stdout, stderr; at most a minute."""
        try:
            out, err = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.clean_up()
            out, err = self.process.communicate()
            raise AssertionError("the job hangs: " + out + err)
        return self.process.returncode, out, err

    def clean_up(self):
        for pid in [self.process.pid, *self.pids.values()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


class ControlProcesses(unittest.TestCase):
    maxDiff = None

    def check_report(self, err, first, last):
        lines = err.splitlines()
        errors = [line for line in lines if line.startswith("lockstep: error: ")]
        self.assertEqual(len(errors), 1, err)
        self.assertRegex(errors[0], first)
        ends = [line for line in lines if line.startswith("lockstep: the job ends")]
        self.assertEqual(len(ends), 1, err)
        self.assertRegex(ends[0], last)

    def test_a_healthy_job_says_nothing(self):
        code, out, err = Job(4, "work", 1).finish()
        self.assertEqual((code, err), (0, ""))
        self.assertIn("all 4 ranks have met", out)

    def test_a_killed_rank_is_named_and_all_others_leave_crash_files(self):
        with tempfile.TemporaryDirectory() as folder:
            job = Job(4, "work", 60, crash_directory=folder)
            job.send(2, signal.SIGKILL)
            began = time.monotonic()
            code, _, err = job.finish()
            self.assertEqual(code, 128 + signal.SIGKILL)
            self.assertLess(time.monotonic() - began, 20)
            self.check_report(err, r"rank 2 of 4 on host \S+ \(pid \d+\) was lost in step \d+: its connection .* without a "
                                   r"farewell", r"exit code 200 \(lost: rank 2 on \S+\)$")
            for rank in (0, 1, 3):
                self.assertRegex(err, rf"  rank {rank} on \S+: after step \d+, computes \d+\.\d s in step instruction 17")
            files = sorted(path.name for path in pathlib.Path(folder).iterdir())
            self.assertEqual(files, ["rank-00000.txt", "rank-00001.txt", "rank-00003.txt"])

    def test_a_killed_rank_zero_is_named_by_another(self):
        job = Job(4, "work", 60)
        job.send(0, signal.SIGKILL)
        code, _, err = job.finish()
        self.assertEqual(code, 128 + signal.SIGKILL)
        self.check_report(err, r"rank 0 of 4 on host \S+ \(pid \d+\) was lost", r"exit code 200 \(lost: rank 0 on \S+\)$")

    def test_a_stopped_rank_is_named(self):
        for rank in (0, 1):
            job = Job(3, "work", 60, 3000)
            job.send(rank, signal.SIGSTOP)
            # mpirun waits for a stopped rank for minutes; whoever starts jobs kills it once the decision is out.
            err = ""
            while "lockstep: the job ends" not in err:
                line = job.process.stderr.readline()
                self.assertTrue(line, err)
                err += line
            job.clean_up()
            err += job.finish()[2]
            self.check_report(err, rf"rank {rank} of 3 on host \S+ \(pid \d+\) is silent in step \d+: nothing was heard "
                                   r"from it for \d+\.\d s \(watchdog.silent_seconds is 3\)",
                              rf"exit code 201 \(silent: rank {rank} on \S+\)$")

    def test_a_rank_that_is_stopped_for_a_while_is_forgiven(self):
        job = Job(3, "work", 4, 6000)
        for rank in (0, 1, 2):
            job.send(rank, signal.SIGSTOP)
        time.sleep(1)
        for rank in (1, 2, 0):
            job.send(rank, signal.SIGCONT)
        code, _, err = job.finish()
        self.assertEqual((code, err), (0, ""))

    def test_a_job_that_was_stopped_as_a_whole_goes_on(self):
        job = Job(3, "work", 8, 4000)
        for rank in (0, 1, 2):
            job.send(rank, signal.SIGSTOP)
        time.sleep(6)
        for rank in (0, 1, 2):
            job.send(rank, signal.SIGCONT)
        code, _, err = job.finish()
        self.assertEqual((code, err), (0, ""))

    def test_a_rank_that_fails_ends_the_job_with_its_code(self):
        code, _, err = Job(3, "fail", 1).finish()
        self.assertEqual(code, 65, err)
        self.assertRegex(err, r"(?m)^lockstep: the job ends with exit code 65 \(failed: rank 1 on \S+\)$")
        self.assertNotIn("lost", err)

    def test_a_job_that_is_told_to_end_blames_nobody(self):
        job = Job(3, "work", 60, seconds_to_end=5)
        os.kill(job.process.pid, signal.SIGTERM)
        _, _, err = job.finish()
        self.assertEqual(err.count("lockstep: was told to end (SIGTERM); nothing was saved"), 1, err)
        self.assertNotIn("lockstep: error", err)
        self.assertNotIn("the job ends", err)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
