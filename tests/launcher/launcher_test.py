#!/usr/bin/env python3
"""lockstep-run with a scripted mpirun, which writes what a real one wrote."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

from support import LAUNCHER, ROOT, ScriptedCase, Terminal, main, transcript
from lockstep_run import near_gpu, surroundings  # found by support
from lockstep_run import output as lockstep_run_output
from lockstep_run.logs import RankLogs
from lockstep_run.messages import Listener
from lockstep_run.ranks import Untagged
from lockstep_run.terminal import LoggedDrawings, described, fitted

TRAIN = ("--", "train", "c.textproto")
LOST = "lockstep: the job ends with exit code 200 (lost: rank 1 on host-b)\n"
NO_SIGNAL = ("lockstep-run: rank 1 on host host-b was lost; mpirun does not say by which signal. Where nobody sent one, that host "
             "was mostly out of memory: see its dmesg\n")


class ExitCodes(ScriptedCase):
    def ends(self, script, code, said, *arguments):
        """Whether the job ends with `code` and lockstep-run says exactly `said`."""
        ran = self.run_scripts([script], *(arguments or ("-n", "2", *TRAIN)))
        self.assertEqual((ran.code, ran.err), (code, said))

    def test_success_is_silent(self):
        ran = self.run_scripts([[["print", '{"steps":1}\n'], ["exit", 0]]], *TRAIN)
        self.assertEqual((ran.code, ran.out, ran.err), (0, '{"steps":1}\n', ""))

    def test_codes_of_lockstep_pass(self):
        for code in (2, 65, 69, 70, 74, 200, 201):
            self.ends([["say", "lockstep: error: it is broken\n" + transcript("exited").replace("200", str(code))],
                       ["exit", code]], code, "lockstep: error: it is broken\n")
            (self.bin / "call-0.json").unlink()

    def test_the_verdict_counts_more_than_mpiruns_code(self):
        self.ends([["say", LOST + transcript("killed")], ["exit", 137]], 200, LOST +
                  "lockstep-run: rank 3 on host host-b (process 29427) was killed by signal 9 (SIGKILL)\n")
        (self.bin / "call-0.json").unlink()
        hang = "lockstep: the job ends with exit code 201 (deadlock: rank 0 on host-a)\n"
        self.ends([["say", hang], ["exit", 1]], 201, hang)

    def test_a_killed_rank_is_named(self):
        self.ends([["say", transcript("killed")], ["exit", 137]], 200,
                  "lockstep-run: rank 3 on host host-b (process 29427) was killed by signal 9 (SIGKILL)\n")

    def test_a_lost_rank_that_mpirun_does_not_name_is_named(self):
        other = transcript("exited").replace(",1],1]", ",1],0]")
        self.ends([["say", LOST + other], ["exit", 200]], 200, LOST + NO_SIGNAL)

    def test_a_lost_rank_that_ended_by_itself_is_named(self):
        self.ends([["say", LOST + transcript("exited").replace("200", "3")], ["exit", 3]], 200,
                  LOST + "lockstep-run: rank 1 ended first, with exit code 3\n")

    def test_a_crash_keeps_its_backtrace(self):
        ran = self.run_scripts([[["say", transcript("killed_here")], ["exit", 139]]], *TRAIN)
        self.assertEqual(ran.code, 200)
        self.assertIn("[vm:30487] Failing at address: (nil)\n", ran.err)
        self.assertTrue(ran.err.endswith(
            "*** End of error message ***\nlockstep-run: rank 1 on host vm was killed by signal 11 (SIGSEGV)\n"))

    def test_a_rank_that_says_nothing_is_named(self):
        self.ends([["say", transcript("exited")], ["exit", 200]], 200, "lockstep-run: rank 1 ended first, with exit code 200\n")

    def test_a_rank_that_mpirun_does_not_name_is_told_of(self):
        # As where ranks end as soon as they are started.
        rule = "-" * 74 + "\n"
        unnamed = rule + transcript("exited").split(rule)[1] + rule
        self.assertIn("Primary job", unnamed)
        self.ends([["say", unnamed], ["exit", 2]], 2, "lockstep-run: a rank ended first, with exit code 2; mpirun does not say which\n")

    def test_abort_is_summarised(self):
        self.ends([["say", transcript("aborted")], ["exit", 75]], 75, "lockstep-run: rank 1 ended first, with exit code 75\n")

    def test_a_rank_that_leaves_early_is_an_internal_error(self):
        self.ends([["say", transcript("left_early")], ["exit", 1]], 70,
                  "lockstep-run: rank 0 on host vm ended before the job was done\n")

    def test_a_lost_host_is_named(self):
        self.ends([["say", transcript("host_lost")], ["exit", 205]], 200, "lockstep-run: the connection to host host-b was lost\n")

    def test_what_cannot_begin(self):
        for name, exit_code, code, said in (
                ("few_slots", 1, 2, "5 workers are asked for, but the hosts have fewer slots"),
                ("refused_root", 1, 2, "set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"),
                ("no_program", 132, 69, "there is no program /nope/lockstep on host host-a"),
                ("no_interface", 1, 2, "there is no network interface eth9 on this host"),
                ("no_interface_of_mpi", 200, 2, "there is no network interface eth9 on host host-a"),
                ("bad_option", 1, 2, "mpirun has no option --nonsense (--mpi-args)"),
                ("bad_hostfile", 1, 2, "two.hosts: The slots parameter is less than 0: slots=-1"),
                ("no_hostfile", 1, 2, "cannot read the hostfile nope.hosts"),
                ("unreadable_hostfile", 1, 2, "two.hosts:1: mpirun cannot read this line"),
                ("no_rsh_agent", 243, 69, "(ssh : rsh)"),
                ("no_ssh", 255, 69, "`ssh HOST true` must work for each of them without a password")):
            with self.subTest(name):
                ran = self.run_scripts([[["say", transcript(name)], ["exit", exit_code]]], *TRAIN)
                self.assertEqual(ran.code, code)
                ours = [line for line in ran.err.splitlines() if line.startswith("lockstep-run: ")]
                self.assertEqual(len(ours), 1, ran.err)
                self.assertIn("lockstep-run: error: ", ours[0])
                self.assertIn(said, ours[0])
                (self.bin / "call-0.json").unlink()

    def test_sshs_own_message_stays(self):
        ran = self.run_scripts([[["say", transcript("no_ssh")], ["exit", 255]]], *TRAIN)
        self.assertTrue(ran.err.startswith("ssh: connect to host 127.0.0.9 port 22: Connection refused\r\nlockstep-run: error:"))

    def test_ranks_that_cannot_reach_each_other(self):
        block = transcript("no_interface_of_mpi")
        block = block[block.index("-" * 74 + "\nAt least one pair"):]
        ran = self.run_scripts([[["say", block], ["exit", 200]]], *TRAIN)
        self.assertEqual(ran.code, 69)
        self.assertIn("ranks on host-b and host-a cannot reach each other", ran.err)

    def test_a_crash_by_a_long_name_is_explained(self):
        long = "h" * 57
        why = surroundings.why_crashed(signal.SIGABRT, [long + ".cluster"])
        self.ends([["die", signal.SIGABRT]], 69, f"lockstep-run: error: {why}\n", "--host", f"a,{long}.cluster", *TRAIN)
        (self.bin / "call-0.json").unlink()
        self.assertIn("57", surroundings.why_crashed(signal.SIGABRT, ["a", long]))
        for number, name in ((signal.SIGSEGV, long), (signal.SIGABRT, "h" * 56 + ".cluster"),
                             (signal.SIGABRT, "node1" + long)):
            self.assertIsNone(surroundings.why_crashed(number, [name]))

    def test_mpirun_killed_from_outside(self):
        ran = self.run_scripts([[["child", ""], ["die", int(signal.SIGKILL)]]], *TRAIN)
        self.assertEqual((ran.code, ran.err), (137, "lockstep-run: mpirun was killed by signal 9 (SIGKILL)\n"))
        self.assertTrue(self.gone((self.bin / "child").read_text()))


class Recovering(ScriptedCase):
    """Under --enable-recovery mpirun goes on after losses, says little of them, and passes on no exit code."""

    ASYNC = ("-n", "4", "--", "train", "c.textproto", "--layout", "dp=3,sync=ps,mode=async")
    ENDED = "[vm:1] PMIX ERROR: BAD-PARAM in file ../../../src/event/pmix_event_notification.c at line 1033\n"
    CONNECTED = "lockstep: all processes are connected\n"

    def ends(self, script, code, err):
        ran = self.run_scripts([script], *self.ASYNC)
        self.assertEqual((ran.code, ran.err), (code, err))
        self.assertIn("--enable-recovery", self.call(0))

    @staticmethod
    def done(code):
        return f"lockstep: the job ends with exit code {code} (done)\n"

    def test_the_code_is_lockstep_s_own(self):
        for code in (0, 70, 143):
            self.ends([["say", self.CONNECTED + "one\n" + self.done(code)], ["exit", 0]], code, "one\n")
            (self.bin / "call-0.json").unlink()

    def test_losses_go_by(self):
        self.ends([["say", self.CONNECTED + self.ENDED + "lockstep: warning: rank 2 was lost\n" + self.done(0)], ["exit", 0]], 0,
                  "lockstep: warning: rank 2 was lost\n")

    def test_a_job_that_ends_without_a_word_is_lost(self):
        self.ends([["say", self.CONNECTED], ["exit", 0]], 200,
                  "lockstep-run: the job ended without a word: a rank was lost that could not be spared\n")

    def test_a_loss_before_ranks_know_each_other_ends_the_job(self):
        self.ends([["child", ""], ["say", self.ENDED], ["wait", "SIGINT"]], 200,
                  "lockstep-run: a rank ended before all were connected\n")
        self.assertTrue(self.gone((self.bin / "child").read_text()))

    def test_a_host_that_is_lost_is_no_mistake_of_the_start(self):
        silent = "lockstep: the job ends with exit code 201 (silent: rank 1 on host-b)\n"
        ran = self.run_scripts([[["say", self.CONNECTED + silent + transcript("no_ssh")], ["exit", 1]]], *self.ASYNC)
        self.assertEqual(ran.code, 201)
        self.assertNotIn("lockstep-run: error", ran.err)

    def test_a_config_says_that_nobody_waits(self):
        config = self.folder / "async.textproto"
        for mode, recovers in (("ASYNC", True), ("SYNC", False)):
            config.write_text("# ASYNC\n")
            (self.bin / "lockstep").write_text(f"#!/bin/sh\necho 'parallel {{ mode: {mode} }}'\n")
            ran = self.run_scripts([], "--dry-run", "--", "train", "--out", str(self.folder / "c.textproto"), str(config))
            self.assertEqual((ran.code, "--enable-recovery" in ran.out), (0, recovers), mode)


class Output(ScriptedCase):
    def shown(self, *pieces):
        return self.run_scripts([[["say", piece] for piece in pieces] + [["exit", 0]]], *TRAIN).err

    def test_passes_unchanged(self):
        for text in ("one\ntwo\n", "no end of line", "train: 10%\rtrain: 20%\rtrain: 100%\n", "a\r\nb\r\n", "[1] and [vm:3] x\n",
                     "m\n", "-\n", "---- short ----\n", "\n\n"):
            self.assertEqual(self.shown(text), text)
            (self.bin / "call-0.json").unlink()

    def test_a_message_that_is_not_known_passes_whole(self):
        block = "-" * 74 + "\nSomething new from mpirun\n" + "-" * 74 + "\n"
        self.assertEqual(self.shown("before\n" + block + "after\n"), "before\n" + block + "after\n")

    def test_a_line_of_dashes_alone_passes(self):
        text = "table\n" + "-" * 60 + "\n1 2 3\n"
        self.assertEqual(self.shown(text), text)

    def verdict(self, text):
        shown, said = [], []
        listener = Listener(shown.append, said.append)
        listener.feed(text.encode("latin-1"))
        listener.flush()
        return listener, b"".join(shown).decode(), said

    def test_a_verdict_between_rules_of_a_rank_counts(self):
        text = "-" * 60 + "\n" + LOST + "-" * 60 + "\n"
        listener, shown, said = self.verdict(text)
        self.assertEqual((listener.verdict, shown, said), ((200, "lost", 1, "host-b"), text, []))

    def test_a_verdict_behind_a_rule_that_stays_alone_counts(self):
        text = "-" * 60 + "\n" + LOST
        listener, shown, said = self.verdict(text)
        self.assertEqual((listener.verdict, shown, said), ((200, "lost", 1, "host-b"), text, []))

    def test_a_verdict_within_a_known_message_counts_and_is_shown(self):
        text = transcript("aborted").split("[vm:")[0].replace("\nNOTE", LOST + "\nNOTE")
        listener, shown, said = self.verdict(text)
        self.assertEqual((listener.verdict, listener.failure.code, shown, said), ((200, "lost", 1, "host-b"), 75, text, []))

    def test_nobody_reads_for_a_while(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, writer)
        os.set_blocking(writer, False)
        filled = 0
        try:
            while True:
                filled += os.write(writer, b"." * 4096)
        except BlockingIOError:
            pass
        os.set_blocking(writer, True)
        output = lockstep_run_output.Output(writer, limit=100)
        for number in range(10):
            output.write(b"%d" % number * 100)
        # One or two of the ten: the thread may have taken the first before the second came.
        text = b""
        with open(reader, "rb", buffering=0) as file:
            while not text.endswith(b"in time\n"):
                text += file.read(65536)
        kept = 1 if b"1" * 100 not in text else 2
        self.assertEqual(text[filled:], b"0" * 100 + b"1" * 100 * (kept - 1) +
                         b"\nlockstep-run: %d00 bytes are missing here: nobody read them in time\n" % (10 - kept))

    def test_what_is_missing_of_results_is_said_elsewhere(self):
        reader, writer = os.pipe()
        said, told = [], threading.Event()
        output = lockstep_run_output.Output(writer, limit=100, say=lambda text: (said.append(text), told.set()))
        # The first is more than the pipe holds; the thread may have taken it before the second came.
        output.write(b"a" * (1 << 20))
        for _ in range(3):
            output.write(b"b" * 100)
        text = []
        with open(reader, "rb") as file:
            drain = threading.Thread(target=lambda: text.append(file.read()))
            drain.start()
            self.assertTrue(told.wait(60))
            os.close(writer)
            drain.join()
        self.assertRegex(said[0], r"^[23]00 bytes of stdout are missing: nobody read them in time$")
        self.assertEqual(text[0], b"a" * (1 << 20) + b"b" * (300 - int(said[0][:3])))

    def test_a_message_behind_a_line_without_end(self):
        self.assertEqual(self.shown("train: 50%", transcript("exited")),
                         "train: 50%\nlockstep-run: rank 1 ended first, with exit code 200\n")

    def test_progress_is_seen_at_once(self):
        running = self.start([[["say", "train: 10%\r"], ["wait", "SIGUSR1"], ["say", "train: 20%"], ["wait", "SIGINT"],
                               ["exit", 143]]], *TRAIN)
        running.wait_for("train: 10%\r")
        running.signal(signal.SIGTERM)
        running.wait_for("train: 20%")
        time.sleep(LATER_S)
        running.signal(signal.SIGTERM)
        self.assertEqual(running.finish(), 202)

    def test_any_cut_of_the_bytes_gives_the_same(self):
        data = ("a\r" + LOST + transcript("killed") + transcript("aborted") + "end").encode("latin-1")
        for step in (1, 2, 3, 7, 64, len(data)):
            shown, said = [], []
            listener = Listener(shown.append, said.append)
            for at in range(0, len(data), step):
                listener.feed(data[at:at + step])
            listener.flush()
            self.assertEqual(b"".join(shown), ("a\r" + LOST + "end").encode())
            self.assertEqual(said, ["rank 3 on host host-b (process 29427) was killed by signal 9 (SIGKILL)"])
            self.assertEqual(listener.verdict, (200, "lost", 1, "host-b"))


LATER_S = 0.5                    # than signals of one request are apart


def drawing(text):
    """As rank 0 sends its line where LOCKSTEP_TERMINAL is set."""
    return f"\r\x1b[K{text}\x1b[K"


class ProgressLine(ScriptedCase):
    """The line that moves, on a terminal of lockstep-run's own."""

    def on_terminal(self, *steps, columns=60, arguments=TRAIN, both=True):
        """The lines on the screen, at the end."""
        terminal = Terminal(columns)
        running = self.start([[*steps, ["exit", 0]]], *arguments, environment={"TERM": "xterm", "LANG": "C.UTF-8", "NO_COLOR": ""},
                             stderr=terminal.file, stdout=terminal.file if both else subprocess.PIPE)
        self.assertEqual(running.finish(), 0)
        terminal.close()
        self.running, self.written = running, terminal.written.decode()
        return terminal.screen()

    def test_replaces_itself_and_ends_as_a_line(self):
        said = [["say", drawing(f"train: {percent}%")] for percent in (10, 20, 90)]
        self.assertEqual(self.on_terminal(*said, ["say", drawing("") + "train: 100%\n"]), ["train: 100%", ""])
        self.assertNotIn("\n", self.written.partition("train: 100%")[0])

    def test_lines_come_above_it(self):
        said = (drawing("train: 10%") + "[rank 1] warning: slow\n" + drawing("train: 20%") + "[vm:12] 1 more process has sent help message a / b\n" + "two\nlines\n")
        for step in (1, 2, 3, 7, 1000):
            pieces = [["say", said[at:at + step]] for at in range(0, len(said), step)]
            self.assertEqual(self.on_terminal(*pieces), ["[rank 1] warning: slow", "two", "lines", "train: 20%", ""])
            (self.bin / "call-0.json").unlink()

    def test_what_goes_to_stdout_comes_above_it(self):
        lines = self.on_terminal(["say", drawing("train: 10%")], ["print", "half a "], ["say", drawing("train: 20%")],
                                 ["print", "line\n"])
        self.assertEqual(lines, ["half a line", "train: 20%", ""])

    def test_results_go_elsewhere(self):
        lines = self.on_terminal(["say", drawing("train: 10%")], ["print", "{}\n"], both=False)
        self.assertEqual((lines, self.running.out), (["train: 10%", ""], "{}\n"))

    def test_goes_where_the_rank_erases_it(self):
        self.assertEqual(self.on_terminal(["say", drawing("train: 10%") + drawing("") + "error: x\n"]), ["error: x", ""])

    def test_is_not_wider_than_the_window(self):
        text = "train: 10%|\x1b[32m" + "█" * 30 + "\x1b[0m| " + "x" * 30
        self.assertEqual(self.on_terminal(["say", drawing(text).encode().decode("latin-1")], columns=70)[0], "train: 10%|" + "█" * 30 + "| " + "x" * 26)
        (self.bin / "call-0.json").unlink()
        self.assertEqual(fitted(text.encode(), 12).decode(), "train: 10%|\x1b[32m█\x1b[0m")
        self.assertEqual(fitted(text.encode(), 1000).decode(), text)

    def test_ranks_know_of_the_terminal(self):
        echo = [["say", ""]]
        self.on_terminal(*echo, columns=72)
        self.assertIn("LOCKSTEP_TERMINAL", self.call(0))
        ran = self.run_scripts([[["exit", 0]]] * 2, *TRAIN, environment={"LOCKSTEP_TERMINAL": "80"})
        self.assertNotIn("LOCKSTEP_TERMINAL", " ".join(self.call(1)) + ran.err)

    def test_is_described_as_ranks_would_find_it(self):
        terminal = Terminal(72)
        self.addCleanup(terminal.close)
        for environment, expected in (({"TERM": "xterm"}, "72,color"), ({"TERM": "xterm", "LC_ALL": "C", "LANG": "C.UTF-8"}, "72,color"),
                                      ({"TERM": "xterm", "NO_COLOR": "1", "LC_CTYPE": "de_DE.utf8"}, "72,unicode"),
                                      ({"TERM": "dumb"}, None), ({}, None)):
            self.assertEqual(described(environment, terminal.file), expected)

    def test_other_programs_lines_pass(self):
        text = "\rstep 1\rstep 2\r\x1b[Kstep 3\r\x1b[Kstep 4\n"
        self.assertEqual(self.on_terminal(*[["say", byte] for byte in text]), ["step 4", ""])
        self.assertEqual(self.written.replace("\r\n", "\n"), text)

    def test_logs_have_lines(self):
        tag = "[1,0]<stderr>:"
        said = tag + drawing("train: 10%") + tag + "hello\n" + tag + drawing("") + "train: 100%|\x1b[32m##\x1b[0m|\n"
        lines = self.on_terminal(["say", said], arguments=("-n", "2", "--log-dir", "logs", *TRAIN))
        self.assertEqual(lines, ["hello", "train: 100%|##|", ""])
        self.assertEqual((self.folder / "logs" / "rank-0.log").read_text().splitlines()[1:], ["hello", "train: 100%|##|"])
        times = iter((0, 1, 5, 6, 10))
        logged = LoggedDrawings(lambda: next(times))
        self.assertEqual([logged.line(b"\x1b[1ma\x1b[0m") for _ in range(4)], [b"", b"a\n", b"", b"a\n"])


class Stopping(ScriptedCase):
    def test_the_first_signal_becomes_sigusr1(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143), (signal.SIGUSR1, 143)):
            with self.subTest(number):
                running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["say", transcript("stopped")], ["exit", 143]]],
                                     *TRAIN)
                running.wait_for("ready")
                running.signal(number)
                self.assertEqual(running.finish(), code)
                self.assertIn("lockstep-run: stopping; the ranks finish their step and save.", running.err)
                self.assertIn("saved o/checkpoints/step-00040174\n", running.err)
                self.assertTrue(running.err.endswith("go on with --resume auto\n"), running.err)
                self.assertNotIn("Forwarding", running.err)
                (self.bin / "call-0.json").unlink()

    def test_a_run_that_was_done_anyway_succeeds(self):
        running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["exit", 0]]], *TRAIN)
        running.wait_for("ready")
        running.signal(signal.SIGTERM)
        self.assertEqual(running.finish(), 0)

    def test_a_second_signal_ends_the_job(self):
        running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["say", "again\n"], ["wait", "SIGINT"], ["exit", 1]]],
                             *TRAIN)
        running.wait_for("ready")
        running.signal(signal.SIGINT)
        running.wait_for("again")
        time.sleep(LATER_S)
        running.signal(signal.SIGINT)
        self.assertEqual(running.finish(), 202)
        self.assertIn("the job was ended at once", running.err)

    def test_signals_of_one_moment_are_one_request(self):
        # As `timeout` sends them.
        for numbers in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGHUP, signal.SIGTERM), (signal.SIGINT, signal.SIGINT)):
            with self.subTest(numbers):
                running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["say", "asked\n"], ["exit", 143]]], *TRAIN)
                running.wait_for("ready")
                for number in numbers:
                    running.signal(number)
                    time.sleep(0.002)
                self.assertEqual(running.finish(), 130 if numbers[0] == signal.SIGINT else 143, running.err)
                (self.bin / "call-0.json").unlink()

    def test_who_is_ended_before_all_is_saved_says_so(self):
        told = "lockstep: was told to end (SIGTERM); nothing was saved\n"
        for said, code in ((told, 143), ("", 1)):
            with self.subTest(code):
                running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["say", said], ["exit", code]]], *TRAIN)
                running.wait_for("ready")
                running.signal(signal.SIGTERM)
                self.assertEqual(running.finish(), 202, running.err)
                (self.bin / "call-0.json").unlink()

    def test_a_request_before_a_signal_is_the_same_request(self):
        running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["say", "asked\n"], ["wait", "SIGINT"], ["exit", 1]]], *TRAIN)
        running.wait_for("ready")
        running.signal(signal.SIGUSR1)
        running.wait_for("asked")
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1):
            running.signal(number)
            time.sleep(LATER_S)
        self.assertIsNone(running.process.poll())
        running.signal(signal.SIGINT)
        self.assertEqual(running.finish(), 202)
        self.assertEqual(running.err.count("Once more ends them at once"), 2)

    def test_nothing_survives_an_mpirun_that_does_not_obey(self):
        running = self.start([[["child", ""], ["say", "ready\n"], ["wait", "SIGUSR1"], ["say", "again\n"], ["wait", "SIGINT"],
                               ["wait", "SIGHUP"]]], *TRAIN)
        running.wait_for("ready")
        running.signal(signal.SIGTERM)
        running.wait_for("again")
        time.sleep(LATER_S)
        running.signal(signal.SIGTERM)
        self.assertEqual(running.finish(), 202)
        self.assertTrue(self.gone((self.bin / "child").read_text()))

    def test_a_job_that_failed_is_ended_where_mpirun_hangs(self):
        running = self.run_scripts([[["child", ""], ["say", LOST], ["wait", "SIGINT"]]], *TRAIN)
        self.assertEqual((running.code, running.err), (200, LOST + NO_SIGNAL))
        self.assertTrue(self.gone((self.bin / "child").read_text()))

    def test_stops_in_order_where_stderr_is_gone(self):
        for name, make in (("pipe", os.pipe), ("terminal", os.openpty)):
            with self.subTest(name):
                try:
                    reader, writer = make()
                except OSError as error:
                    self.skipTest(f"this system gives no {name}: {error}")
                running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["say", "saved\n"], ["print", "stopped\n"],
                                       ["exit", 143]]], *TRAIN, stderr=writer)
                os.close(writer)
                while b"ready" not in os.read(reader, 100):
                    pass
                os.close(reader)
                running.signal(signal.SIGTERM)
                self.assertEqual((running.finish(), running.out), (143, "stopped\n"))
                (self.bin / "call-0.json").unlink()

    def test_a_refusal_keeps_its_code_where_stderr_is_gone(self):
        reader, writer = os.pipe()
        os.close(reader)
        running = self.start([], "-n", "0", *TRAIN, stderr=writer)
        os.close(writer)
        self.assertEqual(running.finish(), 2)

    def test_stops_in_order_where_nobody_reads_stderr(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        # More than all pipes on the way hold: the scripted mpirun waits for the signal only once lockstep-run has read it.
        running = self.start([[["say", "x" * 1000000], ["wait", "SIGUSR1"], ["print", "stopped\n"], ["exit", 143]]], *TRAIN,
                             stderr=writer)
        os.close(writer)
        self.wait_for_file(self.bin / "call-0.json")
        running.signal(signal.SIGTERM)
        self.assertEqual((running.finish(), running.out), (143, "stopped\n"))

    def test_ranks_that_sigusr1_kills_had_not_begun(self):
        killed = transcript("killed").replace("signal 9 (Killed)", "signal 10 (User defined signal 1)")
        running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["say", killed], ["exit", 138]]], *TRAIN)
        running.wait_for("ready")
        running.signal(signal.SIGTERM)
        self.assertEqual(running.finish(), 143)
        self.assertIn("stopped before the training began", running.err)

    def test_mpirun_ends_with_its_launcher(self):
        running = self.start([[["child", ""], ["say", "ready\n"], ["wait", "SIGINT"], ["exit", 1]]], *TRAIN)
        running.wait_for("ready")
        pid = json.loads((self.bin / "call-0.json").read_text())["pid"]
        self.addCleanup(lambda: os.kill(int((self.bin / "child").read_text()), signal.SIGKILL))
        running.signal(signal.SIGKILL)
        running.process.wait()
        self.assertTrue(self.gone(pid))


class Restarting(ScriptedCase):
    KILLED = [["say", LOST + transcript("killed")], ["exit", 137]]
    DONE = [["exit", 0]]

    def restart(self, scripts, *options, out="runs/a", train=()):
        return self.run_scripts(scripts, "-n", "4", "--restart-delay", "0", *options, *TRAIN, "--out", out, *train)

    def checkpoint(self, step):
        folder = self.folder / "runs" / "a" / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)

    def test_goes_on_from_the_newest_checkpoint(self):
        for step in (5, 20, 100000000):
            self.checkpoint(step)
        (self.folder / "runs/a/checkpoints/step-00000030.tmp").mkdir()
        ran = self.restart([self.KILLED, self.DONE], "--max-restarts", "3", train=("--quiet",))
        self.assertEqual(ran.code, 0)
        self.assertIn("lockstep-run: restart 1 of 3 in 0 s, with 4 workers, from runs/a/checkpoints/step-100000000\n", ran.err)
        self.assertEqual(self.call(0)[-5:], ["train", "c.textproto", "--out", "runs/a", "--quiet"])
        self.assertEqual(self.call(1)[-7:], ["train", "c.textproto", "--out", "runs/a", "--quiet", "--resume", "auto"])

    def test_replaces_another_resume(self):
        self.checkpoint(5)
        self.restart([self.KILLED, self.DONE], "--max-restarts", "1", train=("--resume", "other/run", "--quiet"))
        self.assertEqual(self.call(1)[-7:], ["--out", "runs/a", "--quiet", "--set", "checkpoint.resume_path=other/run",
                                             "--resume", "auto"])

    def test_begins_where_it_first_began_while_nothing_was_saved(self):
        for asked, config in ((("--resume=other/run",), ["--set", "checkpoint.resume_path=other/run"]),
                              (("--resume", "never"), ["--set", "checkpoint.resume_automatic=false"]),
                              (("--resume", "auto"), []), ((), [])):
            with self.subTest(asked):
                ran = self.restart([self.KILLED, self.KILLED, self.DONE], "--max-restarts", "2", train=asked)
                for call in (1, 2):
                    arguments = self.call(call)
                    self.assertEqual(arguments[arguments.index("runs/a") + 1:], [*config, "--resume", "auto"])
                self.assertIn("from where it first began: there is no checkpoint in runs/a yet\n", ran.err)
                for call in range(3):
                    (self.bin / f"call-{call}.json").unlink()

    def test_gives_up_with_the_last_code(self):
        hang = [["say", "lockstep: the job ends with exit code 201 (stuck: rank 0 on host-a)\n"], ["exit", 201]]
        ran = self.restart([self.KILLED, self.KILLED, hang], "--max-restarts", "2")
        self.assertEqual(ran.code, 201)
        self.assertIn("restart 1 of 2", ran.err)
        self.assertIn("restart 2 of 2", ran.err)
        self.assertTrue(ran.err.endswith("lockstep-run: gives up after 2 restarts\n"))
        self.assertEqual(self.calls(), 3)

    def test_what_would_fail_again_is_not_restarted(self):
        for code in (0, 1, 2, 65, 69, 70, 74, 130, 143):
            ran = self.restart([[["exit", code]]], "--max-restarts", "3")
            self.assertEqual((ran.code, self.calls(), ran.err), (code, 1, ""))
            (self.bin / "call-0.json").unlink()

    def test_nothing_is_restarted_after_a_stop(self):
        running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["say", LOST], ["exit", 200]]], "--max-restarts", "3",
                             *TRAIN, "--out", "runs/a")
        running.wait_for("ready")
        running.signal(signal.SIGTERM)
        self.assertEqual(running.finish(), 200)
        self.assertEqual(self.calls(), 1)

    def test_a_stop_before_the_restart(self):
        running = self.start([self.KILLED], "--max-restarts", "3", "--restart-delay", "60", *TRAIN, "--out", "runs/a")
        running.wait_for("restart 1 of 3 in 60 s")
        running.signal(signal.SIGINT)
        self.assertEqual(running.finish(), 130)

    def workers(self, scripts, *options):
        """Those of each call, with the hosts that are named."""
        self.run_scripts(scripts, "--restart-delay", "0", "--max-restarts", "3", *options, *TRAIN, "--out", "runs/a")
        calls = []
        for number in range(self.calls()):
            call = self.call(number)
            calls.append((int(call[call.index("-n") + 1]), call[call.index("--host") + 1] if "--host" in call else None))
        return calls

    def test_a_number_of_workers(self):
        self.assertEqual(self.workers([self.KILLED, self.DONE], "-n", "4", "--restart-workers", "2"), [(4, None), (2, None)])

    def test_surviving_workers(self):
        self.assertEqual(self.workers([self.KILLED, self.KILLED, self.DONE], "-n", "4", "--restart-workers", "surviving"),
                         [(4, None), (3, None), (2, None)])

    def test_no_survivor_is_no_restart(self):
        ran = self.restart([self.KILLED], "--max-restarts", "3", "-n", "1", "--restart-workers", "surviving")
        self.assertEqual(ran.code, 200)
        self.assertTrue(ran.err.endswith("lockstep-run: gives up: no worker is left\n"))

    def test_a_silent_host_loses_its_slots(self):
        silent = [["say", "lockstep: the job ends with exit code 201 (silent: rank 3 on host-b)\n"], ["exit", 201]]
        hostfile = self.folder / "hosts"
        hostfile.write_text("host-a slots=2  # first\n\nhost-b.example.org slots=3\nhost-c slots=2\n")
        self.assertEqual(self.workers([silent, self.DONE], "-n", "6", "--hostfile", str(hostfile), "--restart-workers",
                                      "surviving"), [(6, None), (3, "host-a:2,host-c:2")])

    def test_a_lost_host_loses_its_slots(self):
        gone = [["say", transcript("host_lost")], ["exit", 205]]
        self.assertEqual(self.workers([gone, self.DONE], "-n", "3", "--host", "host-b:2,host-a:2", "--restart-workers",
                                      "surviving"), [(3, "host-b:2,host-a:2"), (1, "host-a:2")])

    def test_hosts_that_are_addresses_are_told_apart(self):
        gone = [["say", transcript("host_lost").replace("host-b", "10.0.0.2")], ["exit", 205]]
        self.assertEqual(self.workers([gone, self.DONE], "-n", "6", "--host", "10.0.0.1:1,10.0.0.2:2,10.0.0.3:3", "--restart-workers",
                                      "surviving"), [(6, "10.0.0.1:1,10.0.0.2:2,10.0.0.3:3"), (4, "10.0.0.1:1,10.0.0.3:3")])

    def test_a_whole_name_counts_more_than_its_beginning(self):
        gone = [["say", transcript("host_lost").replace("host-b", "a.two")], ["exit", 205]]
        self.assertEqual(self.workers([gone, self.DONE], "-n", "3", "--host", "a.one:1,a.two:2", "--restart-workers",
                                      "surviving"), [(3, "a.one:1,a.two:2"), (1, "a.one:1")])

    def test_a_killed_rank_costs_its_host_nothing(self):
        self.assertEqual(self.workers([self.KILLED, self.DONE], "-n", "4", "--host", "host-a:2,host-b:2", "--restart-workers",
                                      "surviving"), [(4, "host-a:2,host-b:2"), (3, "host-a:2,host-b:2")])


class Ranks(ScriptedCase):
    """Ranks told apart, by what mpirun --tag-output really writes: a tag before every line, and before every further piece of
    a line that came in several."""

    SAID = ("[1,1]<stderr>:hello 1\n[1,1]<stderr>:half a [1,0]<stderr>:hello 0\n[1,1]<stderr>:line\n[1,0]<stderr>:two\n"
            "[1,0]<stderr>:lines [0] of 0\n[1,1]<stderr>:without an end")
    LOGS = {0: "out of 0\nhello 0\ntwo\nlines [0] of 0\n", 1: "hello 1\nhalf a line\nwithout an end"}

    def log(self, rank):
        """What the ranks wrote, without the time at which a start begins."""
        text = (self.folder / "logs" / f"rank-{rank}.log").read_text()
        return re.sub(r"(?m)^lockstep-run: begins \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}\n", "BEGINS\n", text)

    def logs(self):
        return {rank: self.log(rank).replace("BEGINS\n", "", 1) for rank in (0, 1)}

    def test_each_has_a_log_and_all_are_shown_line_by_line(self):
        ran = self.run_scripts([[["print", "[1,0]<stdout>:out of 0\n"], ["say", self.SAID], ["exit", 0]]], "-n", "2", "--log-dir", "logs",
                               *TRAIN)
        self.assertEqual((ran.code, ran.out), (0, "out of 0\n"))
        self.assertEqual(ran.err, "hello 1\nhello 0\nhalf a line\ntwo\nlines [0] of 0\nwithout an end")
        logs = self.logs()
        self.assertEqual(sorted(logs[0].splitlines()), sorted(self.LOGS[0].splitlines()))
        self.assertEqual(logs[1], self.LOGS[1])

    def test_any_cut_of_the_bytes_gives_the_same(self):
        said = self.SAID.encode()
        for cut in range(1, len(said)):
            streams, parts = Untagged(), []
            for piece in (said[:cut], said[cut:]):
                parts += streams.feed(piece)
            parts += streams.end()
            for rank in (0, 1):
                text = b"".join(part for one, part in parts if one == rank).decode()
                self.assertEqual(text, self.LOGS[rank].replace("out of 0\n", ""), (cut, parts))
            self.assertNotIn(None, [rank for rank, _ in parts])

    def test_one_is_shown_and_of_the_others_what_matters(self):
        said = ("[1,1]<stderr>:lockstep: error: rank 1 fell\n[1,1]<stderr>:  in step 3\n[1,1]<stderr>:  of 9\n"
                "[1,1]<stderr>:more\n[1,1]<stderr>:  that is not shown\n[1,0]<stderr>:half a line\n"
                "[1,1]<stderr>:[rank 1] warning: slow\n[1,1]<stderr>:warning: old\n[1,1]<stderr>:")
        script = [["say", self.SAID + "\n" + said + LOST + transcript("killed")], ["exit", 137]]
        ran = self.run_scripts([script], "-n", "2", "--log-dir", "logs", "--tail", "0", *TRAIN)
        self.assertEqual(ran.code, 200)
        self.assertEqual(ran.err, "hello 0\ntwo\nlines [0] of 0\n"
                                  "rank 1: lockstep: error: rank 1 fell\nrank 1:   in step 3\nrank 1:   of 9\nhalf a line\n"
                                  "rank 1: [rank 1] warning: slow\nrank 1: warning: old\nrank 1: " + LOST +
                                  "lockstep-run: rank 3 on host host-b (process 29427) was killed by signal 9 (SIGKILL)\n")
        self.assertIn(LOST, self.logs()[1])

    def test_what_another_rank_says_begins_a_line(self):
        script = [["say", "[1,0]<stderr>:train: 10%"], ["say", "\n[1,1]<stderr>:error: a\n"], ["exit", 1]]
        ran = self.run_scripts([script], "-n", "2", "--tail", "0", *TRAIN)
        self.assertEqual((ran.code, ran.err), (1, "train: 10%\nrank 1: error: a\n"))

    def test_restarts_go_on_in_the_same_file_on_lines_of_their_own(self):
        ends = [["say", "[1,1]<stderr>:once\n[1,1]<stderr>:half\n[1,0]<stderr>:" + LOST + "[1,1]<stderr>:x"], ["exit", 200]]
        for _ in range(2):
            ran = self.run_scripts([ends, [["say", "[1,1]<stderr>:again"], ["exit", 0]]], "-n", "2", "--log-dir", "logs",
                                   "--max-restarts", "1", "--restart-delay", "0", *TRAIN, "--out", "o")
            self.assertEqual(ran.code, 0, ran.err)
            for number in (0, 1):
                (self.bin / f"call-{number}.json").unlink()
        one = "BEGINS\nonce\nhalf\nx\nlockstep-run: restart 1\nagain"
        self.assertEqual(self.log(1), one + "\n" + one)

    def test_a_log_that_cannot_be_written_ends_nothing_and_no_other(self):
        (self.folder / "logs" / "rank-1.log").mkdir(parents=True)
        ran = self.run_scripts([[["say", self.SAID], ["exit", 0]]], "-n", "2", "--log-dir", "logs", *TRAIN)
        self.assertEqual(ran.code, 0)
        self.assertEqual(ran.err.count("warning: cannot write logs/rank-1.log: Is a directory"), 1)
        self.assertIn("hello 0\n", ran.err)
        self.assertEqual(self.log(0), "BEGINS\nhello 0\ntwo\nlines [0] of 0\n")

    def test_a_log_that_nobody_takes_keeps_no_signal_from_the_ranks(self):
        (self.folder / "logs").mkdir()
        # Stands for a file system that does not answer: opened for reading by this test, and never read.
        pipe = self.folder / "logs" / "rank-0.log"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        running = self.start([[["say", "[1,0]<stderr>:" + "x" * 300000 + "\n[1,0]<stderr>:ready\n"], ["wait", "SIGUSR1"],
                               ["exit", 143]]], "-n", "1", "--log-dir", "logs", *TRAIN)
        running.wait_for("ready\n")
        running.signal(signal.SIGTERM)
        self.assertEqual(running.finish(), 143, running.err)

    def test_what_a_log_misses_stands_in_it(self):
        folder, said = self.folder / "few", []
        folder.mkdir()
        os.mkfifo(folder / "rank-0.log")
        logs = RankLogs(str(folder), said.append, limit=100)
        # Its thread waits for somebody who reads, once it has taken the first, or the second, too.
        for letter in (b"a", b"b", b"c"):
            logs.write(0, letter * 100 + b"\n")
        text, missing = b"", 0
        with open(folder / "rank-0.log", "rb", buffering=0) as file:
            while missing == 0 or missing + 101 * len(re.findall(rb"(.)\1{99}\n", text)) < 303:
                text += file.read(65536)
                missing = sum(map(int, re.findall(rb"(?m)^lockstep-run: (\d+) bytes are missing here: they could not be written in time\n",
                                                  text)))
        self.assertEqual(missing + 101 * len(re.findall(rb"(.)\1{99}\n", text)), 303)
        self.assertEqual(said, [])

    def test_marks_that_the_user_asks_for_stay(self):
        said = "[1,0]<stderr>:hello\n"
        ran = self.run_scripts([[["say", said], ["print", "[1,0]<stdout>:out\n"], ["exit", 0]]], "-n", "1",
                               "--mpi-args=--tag-output", *TRAIN)
        self.assertEqual((ran.code, ran.err, ran.out), (0, said, "[1,0]<stdout>:out\n"))
        for asked in ("--tag-output", "-timestamp-output"):
            (self.bin / "call-0.json").unlink(missing_ok=True)
            ran = self.run_scripts([[["exit", 0]]], "--tail", "0", f"--mpi-args={asked}", *TRAIN)
            self.assertEqual((ran.code, self.calls()), (2, 0))
            self.assertIn("tell ranks apart by mpirun's own marks", ran.err)

    def test_a_log_is_followed(self):
        (self.folder / "logs").mkdir()
        log = self.folder / "logs" / "rank-3.log"
        log.write_text("first\n")
        follower = subprocess.Popen([sys.executable, LAUNCHER, "--log-dir", "logs", "--tail", "3"], cwd=self.folder, stdout=subprocess.PIPE)
        self.addCleanup(follower.stdout.close)
        self.addCleanup(follower.wait)
        self.addCleanup(follower.kill)
        self.assertEqual(follower.stdout.readline(), b"first\n")
        with open(log, "a", encoding="ascii") as file:
            file.write("second\n")
        self.assertEqual(follower.stdout.readline(), b"second\n")


class NearGpu(unittest.TestCase):
    GPUS = [("0", "GPU-aaaa", "0000:17:00.0"), ("1", "GPU-bbbb", "0000:98:00.0")]

    def test_the_gpu_of_a_rank_is_the_one_that_lockstep_takes(self):
        bus = near_gpu.bus_of_rank
        self.assertEqual(bus(self.GPUS, None, 1), "0000:98:00.0")
        self.assertEqual(bus(self.GPUS, "1", 1), "0000:98:00.0")      # the only one that it sees
        self.assertEqual(bus(self.GPUS, "1,0", 1), "0000:17:00.0")
        self.assertEqual(bus(self.GPUS, "GPU-bb", 0), "0000:98:00.0")
        # More ranks than GPUs (--allow-shared-gpu): one after the other, again.
        self.assertEqual([bus(self.GPUS, None, rank) for rank in (2, 3)], ["0000:17:00.0", "0000:98:00.0"])
        # What CUDA sees ends before the first entry that it does not know.
        self.assertEqual([bus(self.GPUS, "1,7,0", rank) for rank in (0, 1)], ["0000:98:00.0"] * 2)
        for visible in ("", "7", "-1,0", ",0", "GPU-c"):
            self.assertIsNone(bus(self.GPUS, visible, 0))
        self.assertIsNone(bus([], None, 0))

    def test_cores_are_those_that_the_system_names(self):
        with tempfile.TemporaryDirectory() as devices:
            os.mkdir(f"{devices}/0000:17:00.0")
            with open(f"{devices}/0000:17:00.0/local_cpulist", "w", encoding="ascii") as file:
                file.write("0-3,8,10-11\n")
            self.assertEqual(near_gpu.cores_near("0000:17:00.0", devices), {0, 1, 2, 3, 8, 10, 11})
            self.assertEqual(near_gpu.cores_near("0000:98:00.0", devices), set())

    def run_near(self, command, text="0, GPU-a, 00000000:17:00.0", **environment):
        """Runs `command` by near_gpu with an nvidia-smi that says `text`, where the GPU at 17:00 is near core `self.core`."""
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/nvidia-smi", "w", encoding="ascii") as file:
                file.write(f"#!/bin/sh\necho '{text}'\n")
            os.chmod(f"{folder}/nvidia-smi", 0o755)
            self.core = max(os.sched_getaffinity(0))
            os.mkdir(f"{folder}/0000:17:00.0")
            with open(f"{folder}/0000:17:00.0/local_cpulist", "w", encoding="ascii") as file:
                file.write(f"{self.core}\n")
            inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "OMPI_", "SLURM_"))}
            script = f"import sys; sys.path.insert(0, {os.path.dirname(near_gpu.__file__)!r}); import near_gpu; " \
                     f"near_gpu.main({command!r}, {folder!r})"
            return subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                                  env={**inherited, "PATH": f"{folder}:{os.environ['PATH']}", **environment})

    ALLOWED = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)), os.environ['CUDA_DEVICE_ORDER'])"]

    def test_a_rank_runs_on_the_cores_that_are_near(self):
        for rank in ("0", "5"):
            ran = self.run_near(self.ALLOWED, OMPI_COMM_WORLD_LOCAL_RANK=rank)
            self.assertEqual((ran.stdout, ran.returncode), (f"[{self.core}] PCI_BUS_ID\n", 0), ran.stderr)

    def test_where_the_gpu_cannot_be_told_nothing_changes(self):
        every = sorted(os.sched_getaffinity(0))
        for text, environment in (("No devices were found", {}), ("0, GPU-a, 00000000:99:00.0", {}),
                                  ("0, GPU-a, 00000000:17:00.0", {"CUDA_VISIBLE_DEVICES": "3"}),
                                  ("0, GPU-a, 00000000:17:00.0", {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})):
            ran = self.run_near(self.ALLOWED, text, **environment)
            order = environment.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            self.assertEqual((ran.stdout, ran.returncode), (f"{every} {order}\n", 0), ran.stderr)

    def test_a_program_that_is_not_there_is_named(self):
        ran = self.run_near(["/nope/lockstep"])
        self.assertEqual((ran.returncode, ran.stderr),
                         (69, "lockstep-run: error: cannot start /nope/lockstep: No such file or directory\n"))


class Command(ScriptedCase):
    def command(self, *arguments, environment=None):
        ran = self.run_scripts([], "--dry-run", *arguments, environment=environment)
        self.assertEqual((ran.code, ran.err), (0, ""))
        return ran.out

    def test_dry_run_prints_and_starts_nothing(self):
        root = "--allow-run-as-root " if os.geteuid() == 0 else ""
        self.assertEqual(self.command("-n", "1", "--", "train", "c.textproto", "--out", "a b"),
                         f"# hosts: this host alone\n# workers: 1\n# program: {self.bin}/lockstep\n"
                         f"{self.bin}/mpirun {root}-n 1 --bind-to none {self.bin}/lockstep train c.textproto --out 'a b'\n")
        more = self.command("--host", "a:2,b", "--bind", "gpu", "--log-dir", "logs", "--tail", "1", "--max-restarts", "2", *TRAIN,
                            "--out", "o")
        for line in ("# hosts: a (2 slots), b (1 slot)\n", "# workers: as many as the hosts have slots\n",
                     "# cores: those that are nearest to each rank's GPU\n", "# logs: logs/rank-N.log\n", "# shown: rank 1\n",
                     "# restarts: up to 2, after 2 s and more, with the same workers, from where it first began: there is no "
                     "checkpoint in o yet\n",
                     f" --tag-output python3 {ROOT}/launcher/lockstep_run/near_gpu.py {self.bin}/lockstep train"):
            self.assertIn(line, more)
        self.assertFalse((self.folder / "logs").exists())
        self.assertEqual(self.calls(), 0)

    def test_oversubscribes_this_host_alone(self):
        many = "100000"
        self.assertIn("--oversubscribe --mca mpi_yield_when_idle 1", self.command("-n", many, *TRAIN))
        self.assertNotIn("--oversubscribe", self.command("-n", "1", *TRAIN))
        self.assertNotIn("--oversubscribe", self.command("-n", many, "--host", "a,b", *TRAIN))
        self.assertNotIn("--oversubscribe", self.command("-n", many, *TRAIN, environment={"SLURM_JOB_ID": "1"}))

    def test_finds_an_allocation_of_slurm(self):
        (self.bin / "scontrol").write_text('#!/bin/sh\n[ "$3" = "node[1-3]" ] && printf "node1\\nnode2\\nnode3\\n"\n')
        (self.bin / "scontrol").chmod(0o755)
        inside = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_TASKS_PER_NODE": "4(x2),3", "SLURM_NTASKS": "11"}
        found = self.command(*TRAIN, environment=inside)
        self.assertIn("# hosts: Slurm's job 12: node1 (4 slots), node2 (4 slots), node3 (3 slots)\n# workers: 11\n", found)
        self.assertIn(" -n 11 --bind-to none ", found)      # its mpirun asks Slurm for the hosts
        self.assertIn("# workers: 2\n", self.command("-n", "2", *TRAIN, environment=inside))
        self.assertIn("# hosts: a (2 slots)\n", self.command("--host", "a:2", *TRAIN, environment=inside))
        ran = self.run_scripts([[["exit", 0]]], *TRAIN, environment=inside)
        self.assertEqual((ran.code, ran.err), (0, "lockstep-run: runs in Slurm's job 12: node1 (4 slots), node2 (4 slots), node3 (3 slots)\n"))
        (self.bin / "call-0.json").unlink()
        self.refused("scontrol does not say which", *TRAIN, environment={**inside, "SLURM_JOB_NODELIST": "other"}, code=69)

    def test_does_without_scontrol(self):
        # As in a container within an allocation.
        inside = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_NTASKS": "11", "PATH": str(self.bin)}
        found = self.command(*TRAIN, environment=inside)
        self.assertIn("# hosts: Slurm's job 12 on node[1-3]\n# workers: 11\n", found)
        self.assertNotIn("--oversubscribe", found)

    def test_finds_a_job_of_kubernetes(self):
        hostfile = self.folder / "hostfile"
        hostfile.write_text("worker-0.job slots=2\nworker-1.job slots=2\n")
        inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "OMPI_MCA_orte_default_hostfile": str(hostfile)}
        found = self.command(*TRAIN, environment=inside)
        self.assertIn("# hosts: a job of Kubernetes' MPI Operator: worker-0.job (2 slots), worker-1.job (2 slots)\n# workers: 4\n",
                      found)
        self.assertNotIn("Kubernetes", self.command(*TRAIN, environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}))
        # The workers run elsewhere: what this host has says nothing of them, and connections are watched.
        hostfile.write_text("worker-0.job slots=100000\n")
        found = self.command(*TRAIN, environment={**inside, "LD_LIBRARY_PATH": "/x"})
        self.assertNotIn("--oversubscribe", found)
        for part in (" -n 100000 ", " --mca oob_tcp_keepalive_time 60 ", " -x LD_LIBRARY_PATH "):
            self.assertIn(part, found)

    def test_doctor_looks_at_this_host_and_at_the_job(self):
        lockstep = self.bin / "lockstep"
        for host, job, code in ((0, 0, 0), (1, 0, 1), (0, 69, 69), (69, 1, 69)):
            lockstep.write_text(f'#!/bin/sh\necho "host: $*"\nexit {host}\n')
            ran = self.run_scripts([[["print", "job\n"], ["exit", job]]], "-n", "2", "doctor", "--data-dir", "d")
            self.assertEqual((ran.code, ran.out), (code, "host: doctor --data-dir d\njob\n"))
            self.assertEqual(self.call(0)[-5:], [str(lockstep), "doctor", "--job", "--data-dir", "d"])
            (self.bin / "call-0.json").unlink()

    def doctor(self, host, job, *arguments):
        """Of a lockstep that does `host` in a shell, and a job that plays `job`."""
        (self.bin / "lockstep").write_text(f"#!/bin/sh\n{host}\n")
        return self.start([job], "-n", "2", "doctor", *arguments)

    def test_doctor_says_its_last_words(self):
        for _ in range(20):
            running = self.doctor("exit 0", [["say", transcript("killed")], ["exit", 137]])
            self.assertEqual(running.finish(), 200)
            self.assertEqual(running.err, "lockstep-run: rank 3 on host host-b (process 29427) was killed by signal 9 (SIGKILL)\n")
            (self.bin / "call-0.json").unlink()

    def test_doctor_ends_with_the_host_where_the_job_would_end_alike(self):
        for host, arguments, code in (("echo no such option >&2; exit 2", ("--nonsense",), 2), ("echo help; exit 0", ("--help",), 0),
                                      ("kill -SEGV $$", (), 139), ("exit 70", (), 70)):
            running = self.doctor(host, [["exit", 0]], *arguments)
            self.assertEqual((running.finish(), self.calls()), (code, 0), running.err)
        self.assertEqual(self.doctor("kill -9 $$", [["exit", 0]]).finish(), 137)

    def test_doctor_prints_one_object(self):
        def said(verdict, check):
            return json.dumps({"verdict": verdict, "checks": [{"check": check, "verdict": verdict}]})

        for first, second, worst in (("ok", "warn", "warn"), ("fail", "ok", "fail"), ("skip", "ok", "skip")):
            for options in ((), ("--log-dir", "logs")):
                (self.bin / "lockstep").write_text(f"#!/bin/sh\necho '{said(first, 'memory')}'\n")
                tag = "[1,0]<stdout>:" if options else ""
                ran = self.run_scripts([[["print", tag + said(second, "ranks") + "\n"], ["exit", 0]]], "-n", "2", *options, "doctor",
                                       "--json")
                self.assertEqual(ran.code, 0, ran.err)
                found = json.loads(ran.out)
                self.assertEqual((found["verdict"], [each["check"] for each in found["checks"]]), (worst, ["memory", "ranks"]))
                (self.bin / "call-0.json").unlink()
        running = self.doctor("echo '{}'", [["exit", 70]], "--json")
        self.assertEqual((running.finish(), running.out), (70, "{}\n"))

    def test_doctor_stops_at_once(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                running = self.doctor(f"sleep 1000 & echo $! > {self.bin}/child; echo ready >&2; wait", [["exit", 0]])
                running.wait_for("ready")
                running.signal(number)
                self.assertEqual((running.finish(), running.err), (code, "ready\nlockstep-run: stopping\n"))
                self.assertEqual(self.calls(), 0)
                self.assertTrue(self.gone((self.bin / "child").read_text().strip()))
                running = self.doctor("exit 0", [["say", "ready\n"], ["wait", "SIGTERM"], ["exit", 1]])
                running.wait_for("ready")
                running.signal(number)
                self.assertEqual((running.finish(), running.err), (code, "ready\nlockstep-run: stopping\n"))
                (self.bin / "call-0.json").unlink()

    def test_nothing_is_taken_from_a_loop_s_list(self):
        # As in: while read layout; do lockstep-run ...; done < list. A bare mpirun takes it all.
        (self.folder / "list").write_text("dp=1\ndp=2\n")
        with open(self.folder / "list", encoding="ascii") as layouts:
            running = self.start([[["repeat", ""], ["exit", 0]]], *TRAIN, stdin=layouts)
            self.assertEqual((running.finish(), running.out), (0, ""), running.err)
            self.assertEqual(layouts.read(), "dp=1\ndp=2\n")

    def test_what_mpirun_needs_is_set(self):
        for given, expected in (({}, "/usr/local/bin:/usr/bin:/bin"), ({"PATH": "/sbin"}, "/sbin")):
            environment = dict(given)
            surroundings.mend(environment)
            self.assertEqual(environment, {"PATH": expected})
        with mock.patch("pwd.getpwuid", side_effect=KeyError):
            for given, expected in (({}, "/nonexistent"), ({"HOME": ""}, "")):
                environment = dict(given)
                surroundings.mend(environment)
                self.assertEqual(environment["HOME"], expected)

    def test_a_program_of_ones_own_may_want_no_arguments(self):
        ran = self.run_scripts([[["exit", 0]]], "-n", "2", "--")
        self.assertEqual((ran.code, self.call(0)[-1]), (0, str(self.bin / "lockstep")))

    def test_environment_of_the_ranks(self):
        self.assertIn(" -x LOCKSTEP_CONTROL_PORT -x NCCL_DEBUG -x OMP_NUM_THREADS -x MINE -x OTHER=1 ", self.command(
            "-x", "MINE", "-x", "OTHER=1", *TRAIN,
            environment={"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO", "LOCKSTEP_CONTROL_PORT": "7000", "MINE": "x"}))

    def test_interface(self):
        command = self.command("--host", "a:2,b:2", "--interface", "eth0", "--rsh-agent", "ssh -q", *TRAIN,
                               environment={"LD_LIBRARY_PATH": "/x"})
        for part in (" --host a:2,b:2 ", " --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 ",
                     " -x LOCKSTEP_CONTROL_INTERFACE=eth0 -x NCCL_SOCKET_IFNAME==eth0 ", " -x LD_LIBRARY_PATH ",
                     " --mca plm_rsh_agent 'ssh -q' ", " --mca oob_tcp_keepalive_time 60 "):
            self.assertIn(part, command)

    def test_further_options_of_mpirun(self):
        self.assertIn(f" --map-by 'a b' {self.bin}/lockstep train", self.command("--mpi-args", "--map-by 'a b'", *TRAIN))

    def refused(self, said, *arguments, code=2, environment=None):
        ran = self.run_scripts([], *arguments, environment=environment)
        self.assertEqual(ran.code, code, ran.err)
        self.assertIn(said, ran.err)
        self.assertEqual(self.calls(), 0)

    def test_refusals(self):
        hosts = self.folder / "hosts"
        out = (*TRAIN, "--out", "o")
        self.refused("Write it behind --", "-n", "2")
        self.refused("at least 1 worker", "-n", "0", *TRAIN)
        self.refused("unrecognized arguments: --nonsense", "--nonsense", *TRAIN)
        self.refused("no such environment variable", "-x", "NOT_THERE", *TRAIN)
        self.refused("No closing quotation", "--mpi-args", "'", *TRAIN)
        self.refused("needs train with --out DIR", "--max-restarts", "1", *TRAIN)
        self.refused("needs train with --out DIR", "--max-restarts", "1", "--", "eval", "c", "--out", "o")
        self.refused("means nothing without --max-restarts", "--restart-workers", "same", *out)
        self.refused("expected same, surviving", "--max-restarts", "1", "--restart-workers", "some", *out)
        self.refused("needs -n", "--max-restarts", "1", "--restart-workers", "surviving", *out)
        self.refused("cannot read the hostfile", "--hostfile", str(hosts), *TRAIN)
        hosts.write_text("# nothing\n")
        self.refused("names no host", "--hostfile", str(hosts), *TRAIN)
        hosts.write_text("a slots=2\nb slots=-1\n")
        self.refused(f"{hosts}:2: expected 'HOST slots=N', found 'b slots=-1'", "--hostfile", str(hosts), *TRAIN)
        for text, said in (("a slots=2\r\nb\r\n", f"{hosts}:1: ends in a carriage return"),
                           ("a slots=2\n\r\n", f"{hosts}:2: ends in a carriage return"),
                           ("\ufeffa slots=2\n", f"{hosts}:1: begins with a byte-order mark"),
                           ("a\nb:2\n", f"{hosts}:2: expected 'HOST slots=N', found 'b:2'; write 'b slots=2'")):
            hosts.write_bytes(text.encode())
            self.refused(said, "--hostfile", str(hosts), *TRAIN)
        hosts.write_text("a slots=2\nb\n")
        self.refused("needs slots=N for every host", "--max-restarts", "1", "--restart-workers", "surviving", "--hostfile",
                     str(hosts), *out)
        self.refused("expected names or NAME:SLOTS", "--host", "a:0", *TRAIN)
        self.refused("the ranks of 2 workers are 0 to 1", "-n", "2", "--tail", "2", *TRAIN)
        self.refused("expected the number of a rank", "--tail", "-1", *TRAIN)
        self.refused("Write it behind --", "--tail", "1")
        self.refused("invalid choice", "--bind", "core", *TRAIN)
        hosts.write_text("")
        self.refused("cannot be made", "--log-dir", str(hosts), *TRAIN)
        self.refused("there is no", "--log-dir", str(self.folder), "--tail", "1")
        self.refused("--dry-run means nothing where --tail follows", "--log-dir", str(self.folder), "--tail", "1", "--dry-run")
        self.refused("-n, --max-restarts means nothing", "--log-dir", "l", "--tail", "1", "-n", "2", "--max-restarts", "1")

    def test_missing_programs(self):
        self.refused("there is no such program", "--program", "/nope", *TRAIN, code=69)
        python = shutil.which("python3")
        self.assertTrue(python)
        with tempfile.TemporaryDirectory() as empty:
            self.refused("there is no mpirun on the PATH", *TRAIN, code=69, environment={"PATH": empty})


if __name__ == "__main__":
    main()
