"""Runs mpirun: passes stop requests on, and makes sure that nothing is left when the job has ended."""

import ctypes
import os
import select
import signal
import subprocess
import time
from typing import NamedTuple

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
# What is left so long after a failure, or after mpirun was told to end, is killed. mpirun gives its ranks a second between
# SIGTERM and SIGKILL, but waits without end for a host that does not answer; a second signal while it does makes it crash.
KILL_AFTER_S = 3.0
# Signals that come so soon after the first are the same request: `timeout` tells its child, and then its whole group.
ONE_REQUEST_S = 0.25
_SHOW_PARTIAL_AFTER_S = 0.5
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


class Request(NamedTuple):
    """How a job is asked to stop."""
    signal: int
    text: str                    # what is said of it
    end: int                     # what ends it at once


# SIGTERM is kept from mpirun, which would end ranks that are saving: systemd and scancel send it to all processes at once.
TRAINING = Request(signal.SIGUSR1, "stopping; the ranks finish their step and save; a second signal ends them", signal.SIGINT)
ONCE_MORE = "the ranks are stopping already; a second signal ends them at once"
# Nothing is to be saved, and nothing listens to another signal.
LOOKING = Request(signal.SIGTERM, "stopping", signal.SIGTERM)


class StopRequests:
    """Signals to lockstep-run, in the order in which they came. Main thread only."""

    def __init__(self):
        self.received = []
        self._asked_at = None        # by the first signal that is more than a request if it comes twice
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)   # only to wake up
        for number in STOP_SIGNALS:
            # What nohup or a shell's background job ignores stays ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._note)

    def _note(self, number, _):
        if number != signal.SIGUSR1:
            now = time.monotonic()
            if self._asked_at is not None and now - self._asked_at < ONE_REQUEST_S:
                return
            self._asked_at = self._asked_at or now
        self.received.append(number)

    def wait(self, seconds, *files):
        """Until a signal comes or one of `files` can be read; returns those that can."""
        ready = select.select([self._read, *files], [], [], max(0.0, seconds))[0]
        if self._read in ready:
            os.read(self._read, 4096)
        return [file for file in ready if file != self._read]

    def pause(self, seconds):
        """Until then, or until a stop is asked for."""
        end = time.monotonic() + seconds
        while not self.received and time.monotonic() < end:
            self.wait(end - time.monotonic())


def _end_with_parent(parent, end):
    def prepare():
        # Should lockstep-run be killed, mpirun gets a signal by which it ends the ranks.
        _libc.prctl(_PR_SET_PDEATHSIG, end, 0, 0, 0)
        if end != signal.SIGTERM:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])   # mpirun's own: its ranks begin without
            signal.signal(end, signal.SIG_DFL)
        if os.getppid() != parent:
            os._exit(1)
    return prepare


def _descendants(root):
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="latin-1") as file:
                    children.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(name))
            except OSError:
                pass                                                # it has ended
    found, wanted = [], [root]
    while wanted:
        own = children.get(wanted.pop(), [])
        found += own
        wanted += own
    return found


def _kill(processes):
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _end_orphans():
    """Ranks whose mpirun is gone are children of this process now. Those that do not end."""
    give_up = time.monotonic() + KILL_AFTER_S
    while time.monotonic() < give_up:
        left = _descendants(os.getpid())
        if not left:
            break
        _kill(left)
        for process in left:
            try:
                os.waitpid(process, os.WNOHANG)
            except ChildProcessError:
                pass                                                # not ours yet: its parent is about to end
        time.sleep(0.01)
    return left


class Job:
    """One run of mpirun, or of another program that ends by itself."""

    def __init__(self, command, listener, stops, say, streams=None, take_out=None, request=TRAINING, environment=None):
        """`streams`: takes stdout and stderr apart (RankStreams). None: the listener hears all of stderr, and stdout goes to
        `take_out`, or is this process's own. `environment`: None: this process's."""
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._listener, self._stops, self._say = listener, stops, say
        self._request = request
        self._kill_at = None
        self.killed = False          # by lockstep-run, before it was done
        # A session of its own: Ctrl-C on the terminal reaches lockstep-run alone.
        self._mpirun = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if streams or take_out else None,
                                        stderr=subprocess.PIPE, bufsize=0, start_new_session=True,
                                        env={**(environment or os.environ), "LOCKSTEP_LAUNCHER_ASKS": "1"}
                                        if request is TRAINING else environment,
                                        preexec_fn=_end_with_parent(os.getpid(), request.end))
        self._takes = {self._mpirun.stderr.fileno(): streams.feed_err if streams else listener.feed}
        if self._mpirun.stdout:
            self._takes[self._mpirun.stdout.fileno()] = streams.feed_out if streams else take_out
        self._open = list(self._takes)                # until their end was read
        self._stops_passed_on = self._ends = 0        # of these, signals that are more than a request where they come twice

    def run(self):
        """Until mpirun has ended: its exit code; negative: the signal that ended it."""
        partial_since = None
        while self._mpirun.poll() is None:
            self._read(self._stops.wait(self._seconds_to_wait(), *self._open))
            partial_since = (partial_since or time.monotonic()) if self._listener.waiting else None
            if partial_since and time.monotonic() - partial_since > _SHOW_PARTIAL_AFTER_S:
                self._listener.flush()
            self._pass_stops_on()
            self._enforce_end()
        left = _end_orphans()
        if left:
            self._say(f"processes {left} do not end")
        while self._open:
            ready = select.select(self._open, [], [], 0)[0]
            if not ready:
                break
            self._read(ready)
        for file in self._open:                       # somebody still holds it
            self._takes[file](b"")
        self._listener.flush()
        for stream in (self._mpirun.stdout, self._mpirun.stderr):
            if stream:
                stream.close()
        return self._mpirun.returncode

    def _read(self, files):
        for file in files:
            data = os.read(file, 65536)
            self._takes[file](data)
            if not data:
                self._open.remove(file)

    def _seconds_to_wait(self):
        if self._listener.waiting:
            return _SHOW_PARTIAL_AFTER_S
        return 60.0 if self._kill_at is None else self._kill_at - time.monotonic()

    def _pass_stops_on(self):
        for number in self._stops.received[self._stops_passed_on:]:
            self._stops_passed_on += 1
            # Who takes a machine away asks by SIGUSR1, perhaps several times, and then by SIGTERM: that is one request.
            self._ends += number != signal.SIGUSR1
            if self._stops_passed_on == 1:
                self._mpirun.send_signal(self._request.signal)
                self._say(self._request.text)
            elif self._ends < 2 and self._request is TRAINING:
                if number != signal.SIGUSR1:
                    self._say(ONCE_MORE)
            elif not self.killed:
                self.killed = True
                self._kill_at = time.monotonic() + KILL_AFTER_S
                self._mpirun.send_signal(self._request.end)

    def _enforce_end(self):
        if self._kill_at is None and (self._listener.decision or self._listener.failure):
            self._kill_at = time.monotonic() + KILL_AFTER_S
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            # Its ranks have process groups of their own.
            _kill(_descendants(self._mpirun.pid) + [self._mpirun.pid])
            self._mpirun.wait()
