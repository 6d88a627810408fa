#!/usr/bin/env python3
"""What lockstep-run shows of its ranks and writes to their logs, with a scripted mpirun."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

from support import LATER_S, LAUNCHER, LOST, TRAIN, ScriptedCase, Terminal, main, transcript
from lockstep_run import output as lockstep_run_output
from lockstep_run.logs import RankLogs
from lockstep_run.messages import Listener
from lockstep_run.ranks import Untagged
from lockstep_run.terminal import LoggedDrawings, described, fitted


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

    def decision(self, text):
        shown, said = [], []
        listener = Listener(shown.append, said.append)
        listener.feed(text.encode("latin-1"))
        listener.flush()
        return listener, b"".join(shown).decode(), said

    def test_a_decision_between_rules_of_a_rank_counts(self):
        text = "-" * 60 + "\n" + LOST + "-" * 60 + "\n"
        listener, shown, said = self.decision(text)
        self.assertEqual((listener.decision, shown, said), ((200, "lost", 1, "host-b"), text, []))

    def test_a_decision_behind_a_rule_that_stays_alone_counts(self):
        text = "-" * 60 + "\n" + LOST
        listener, shown, said = self.decision(text)
        self.assertEqual((listener.decision, shown, said), ((200, "lost", 1, "host-b"), text, []))

    def test_a_decision_within_a_known_message_counts_and_is_shown(self):
        text = transcript("aborted").split("[vm:")[0].replace("\nNOTE", LOST + "\nNOTE")
        listener, shown, said = self.decision(text)
        self.assertEqual((listener.decision, listener.failure.code, shown, said), ((200, "lost", 1, "host-b"), 75, text, []))

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
            self.assertEqual(listener.decision, (200, "lost", 1, "host-b"))


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
            self.assertIn("--mpi-args", ran.err)

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


if __name__ == "__main__":
    main()
