"""What the tests of launcher/ share: running lockstep-run with a real or a scripted mpirun."""

import fcntl
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "launcher"))
LAUNCHER = str(ROOT / "launcher" / "lockstep-run")
TWO_HOSTS = str(ROOT / "scripts" / "two_hosts.sh")
PROGRAM = os.environ.get("LOCKSTEP_PROGRAM", "")
PATIENCE_S = 60                  # for what must come; nothing is expected to take as long

# Trains in a fraction of a second, on data that it makes itself.
SMALL_CONFIG = """
model { mlp { image: [4, 4, 1] hidden: [8] classes: 3 dropout: 0.1 } }
data { synthetic { samples: 240 eval_samples: 50 classes: 3 } }
trainer { global_batch: 24 virtual_replicas: 4 steps: 12 seed: 1 eval_every_steps: 5 }
optimizer { learning_rate: 0.05 sgd { momentum: 0.9 } }
parallel { reduction: REPRODUCIBLE }
"""

# Stands for mpirun: plays the next of its scripts, a list of [action, argument].
_SCRIPTED_MPIRUN = """#!%s
import json, os, pathlib, signal, subprocess, sys
here = pathlib.Path(__file__).parent
number = len(list(here.glob("call-*.json")))
(here / f"call-{number}.json").write_text(json.dumps({"arguments": sys.argv[1:], "pid": os.getpid()}))
signals = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP]
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
for action, argument in json.loads((here / "scripts.json").read_text())[number]:
    if action == "say":
        os.write(2, argument.encode("latin-1"))
    elif action == "print":
        os.write(1, argument.encode())
    elif action == "repeat":        # what comes on stdin, all of it
        os.write(1, sys.stdin.buffer.read())
    elif action == "wait":          # for a signal; tells which one it was
        got = signal.sigwait(signals)
        if got != getattr(signal, argument):
            os.write(2, f"expected {argument}, got {got}\\n".encode())
            sys.exit(99)
    elif action == "child":         # that stands for a rank, in a process group of its own; outlives mpirun
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        (here / "child").write_text(str(child.pid))
    elif action == "die":
        os.kill(os.getpid(), argument)
    elif action == "exit":
        os._exit(argument)
""" % sys.executable
# What lockstep-run is called with, and what ranks say of a lost one.
TRAIN = ("--", "train", "c.textproto")
LOST = "lockstep: the job ends with exit code 200 (lost: rank 1 on host-b)\n"
LATER_S = 0.5                    # than signals of one request are apart


class Terminal:
    """A terminal of so many columns: `file` is for programs to write to, and `written` what came. A program that was started
    has its own; `close()` reads the rest."""

    def __init__(self, columns=100):
        self._read, self.file = pty.openpty()
        self.resize(columns)
        self.written = b""
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._run)
        self._reader.start()

    def resize(self, columns):
        self.columns = columns
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def _run(self):
        while True:
            try:
                data = os.read(self._read, 65536)
            except OSError:                                        # nobody holds the other end
                return
            with self._changed:
                self.written += data
                self._changed.notify_all()

    def wait_until(self, condition):
        """Until `condition` is true of what was written."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self.written), PATIENCE_S):
                raise AssertionError(f"what was awaited did not come; there is {self.written!r}")

    def close(self):
        os.close(self.file)
        self._reader.join(PATIENCE_S)
        os.close(self._read)

    def screen(self):
        """The lines that somebody sees; text that is wider than the window fails."""
        lines, column = [""], 0
        for part in re.findall(r"\r|\n|\x1b\[\d*[A-Za-z]|[^\r\n\x1b]+", self.written.decode()):
            if part == "\r":
                column = 0
            elif part == "\n":
                lines.append("")
            elif part == "\x1b[K":
                lines[-1] = lines[-1][:column]
            elif not part.startswith("\x1b"):
                lines[-1] = lines[-1][:column].ljust(column) + part + lines[-1][column + len(part):]
                column += len(part)
                if column > self.columns:
                    raise AssertionError(f"{part!r} does not fit into {self.columns} columns")
        return lines


class Running:
    """A process whose output is read while it runs; not where it is a file that the caller gives."""

    def __init__(self, command, environment=None, cwd=None, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                 stdin=subprocess.DEVNULL):
        self.process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr,
                                        env=environment, cwd=cwd,
                                        # Ignored where a shell started the tests in the background, and that is inherited.
                                        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        self.stdout, self.stderr = b"", b""
        self._changed = threading.Condition()
        self._readers = [threading.Thread(target=self._read, args=(name,)) for name in ("stdout", "stderr")
                         if getattr(self.process, name)]
        for reader in self._readers:
            reader.start()

    def _read(self, name):
        stream = getattr(self.process, name)
        while True:
            data = os.read(stream.fileno(), 65536)
            with self._changed:
                setattr(self, name, getattr(self, name) + data)
                self._changed.notify_all()
            if not data:
                return

    def wait_for(self, text):
        """Until stderr holds `text`."""
        with self._changed:
            if not self._changed.wait_for(lambda: text.encode() in self.stderr, PATIENCE_S):
                raise AssertionError(f"'{text}' did not come; stderr: {self.stderr.decode()}")

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        """Where a test failed before it had ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)

    def finish(self):
        """The exit code."""
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"does not end; stderr: {self.stderr.decode()}") from None
        for reader in self._readers:
            reader.join(PATIENCE_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()
        self.out, self.err = self.stdout.decode(errors="replace"), self.stderr.decode(errors="replace")
        return self.process.returncode


class Case(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def config(self, text=SMALL_CONFIG):
        path = self.folder / "small.textproto"
        path.write_text(text)
        return str(path)

    def wait_for_file(self, path):
        waiting = threading.Event()
        for _ in range(int(PATIENCE_S / 0.02)):
            if path.exists():
                return
            waiting.wait(0.02)
        raise AssertionError(f"{path} did not come")

    def gone(self, pid):
        """Whether process `pid` has ended, or does in time."""
        waiting = threading.Event()
        for _ in range(int(PATIENCE_S / 0.05)):
            try:
                state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                return True
            if state == "Z":
                return True
            waiting.wait(0.05)
        return False


class ScriptedCase(Case):
    """Runs lockstep-run with an mpirun that plays scripts, one for each time that it is called."""

    def setUp(self):
        super().setUp()
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        for name, text in (("mpirun", _SCRIPTED_MPIRUN), ("lockstep", "#!/bin/sh\n")):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)

    def start(self, scripts, *arguments, environment=None, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
              stdin=subprocess.DEVNULL):
        (self.bin / "scripts.json").write_text(json.dumps(scripts))
        own = {name: value for name, value in os.environ.items()
               if not name.startswith(("LOCKSTEP_", "NCCL_", "OMP_", "OMPI_", "SLURM_", "LD_LIBRARY_PATH"))}
        own["PATH"] = f"{self.bin}:{os.environ['PATH']}"
        running = Running([sys.executable, LAUNCHER, "--program", str(self.bin / "lockstep"), *arguments],
                          {**own, **(environment or {})}, cwd=self.folder, stderr=stderr, stdout=stdout, stdin=stdin)
        self.addCleanup(running.end)
        return running

    def run_scripts(self, scripts, *arguments, environment=None):
        running = self.start(scripts, *arguments, environment=environment)
        running.code = running.finish()
        return running

    def call(self, number):
        return json.loads((self.bin / f"call-{number}.json").read_text())["arguments"]

    def calls(self):
        return len(list(self.bin.glob("call-*.json")))


class TrainingCase(Case):
    """Runs lockstep-run with the real mpirun and the real program."""

    @classmethod
    def setUpClass(cls):
        need_mpirun()

    # Of the lockstep-run command; tests of two hosts put another before it.
    before = ()

    def start(self, options, train, environment=None, **files):
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "PWD": str(self.folder), **(environment or {})}
        running = Running([*self.before, sys.executable, LAUNCHER, "--program", PROGRAM, *options, "--", "train", *train],
                          environment, cwd=self.folder, **files)
        self.addCleanup(running.end)
        return running

    def result(self, options, train):
        """The JSON of a training that succeeds."""
        running = self.start(options, [*train, "--json", "--quiet"])
        self.assertEqual(running.finish(), 0, running.err)
        return json.loads(running.out)

    def alone(self, train):
        """The same, of one process without mpirun."""
        ran = subprocess.run([PROGRAM, "train", *train, "--json", "--quiet"], stdout=subprocess.PIPE, check=True)
        return json.loads(ran.stdout)

    def wait_until(self, running, condition):
        """Until condition() holds, while `running` runs."""
        waiting = threading.Event()
        for _ in range(int(PATIENCE_S / 0.02)):
            if condition():
                return
            if running.process.poll() is not None:
                raise AssertionError(f"ended with {running.finish()}: {running.err}")
            waiting.wait(0.02)
        raise AssertionError(f"did not happen in {PATIENCE_S} s; stderr: {running.stderr.decode()}")

    def metrics_size(self, run):
        path = pathlib.Path(run) / "metrics.jsonl"
        return path.stat().st_size if path.exists() else 0

    def rank_process(self, running, rank):
        """The process that is `rank` of the job that `running` started."""
        for name in os.listdir("/proc"):
            try:
                environment = pathlib.Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                program = os.readlink(f"/proc/{name}/exe")
            except OSError:
                continue
            if (program == os.path.realpath(PROGRAM) and f"OMPI_COMM_WORLD_RANK={rank}".encode() in environment
                    and f"PWD={self.folder}".encode() in environment):
                return int(name)
        raise AssertionError(f"there is no process of rank {rank}")


def transcript(name):
    """What mpirun 4.1.4 really wrote, as text of one byte a character."""
    return (pathlib.Path(__file__).parent / "transcripts" / f"{name}.txt").read_bytes().decode("latin-1")


def main():
    """Runs the tests of the program's file; exits with 77 where all of them were skipped."""
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    # A class that is skipped as a whole counts as one skip of no test.
    if result.wasSuccessful() and result.skipped and result.testsRun <= len(result.skipped):
        sys.exit(77)
    sys.exit(0 if result.wasSuccessful() and result.testsRun else 1)


def need_mpirun():
    if not PROGRAM:
        raise unittest.SkipTest("LOCKSTEP_PROGRAM does not say where lockstep is")
    if not shutil.which("mpirun"):
        raise unittest.SkipTest("there is no mpirun")
