"""What mpirun says on stderr, told apart from what the ranks say.

Lines of the ranks pass untouched and at once. mpirun frames its messages by lines of dashes; those that are known become
one line, or none; the rest pass too. The texts are those of Open MPI 4.1.
"""

import re
import signal
from typing import NamedTuple, Optional

from .errors import INTERNAL, PEER_LOST, UNAVAILABLE, USAGE
from .terminal import Drawings

_RULE = b"-" * 40            # Open MPI 4.1.4 garbles the end of some of these lines
_LONGEST_BLOCK = 80          # lines; more than that is nothing of mpirun's
_NOISE = re.compile(
    rb"\[[^\]]+:\d+\] (?:\d+ more process(?:es)? ha(?:s|ve) sent help message |"
    rb"Read -1, expected \d+, errno = 3|"
    rb"Set MCA parameter \"orte_base_help_aggregate\"|plm:rsh: Warning: setpgid\()|"
    rb"\w+: (?:Forwarding signal \d+ to job|killing job\.\.\.|abort is already in progress\.\.\.)")
_VERDICT = re.compile(rb"lockstep: the job ends with exit code (\d+) \((\w+)(?:: rank (\d+)(?: on ([^\s)]+))?)?")
# With --enable-recovery: all that mpirun says where a rank has ended without MPI_Finalize.
_ENDED = re.compile(rb"\[[^\]]+:\d+\] PMIX ERROR: BAD-PARAM in file \S*pmix_event_notification")
_TOLD_TO_END = b"lockstep: was told to end (SIGTERM)"
_CONNECTED = b"lockstep: all processes are connected\n"
_OPTION = re.compile(rb"\w+: Error: unknown option \"(.*)\"")


class Failure(NamedTuple):
    """Why a job ended, as mpirun tells it."""
    kind: str                    # "signal", "code", "host" (it is gone), "setup" (nothing began)
    code: int                    # of lockstep-run
    text: str
    host: Optional[str] = None
    signal: int = 0
    rank: Optional[int] = None


class Decision(NamedTuple):
    """Why a job ended, as lockstep tells it."""
    code: int
    reason: str                  # lost, silent, stuck, deadlock, failed; done: in order, with whatever code
    rank: Optional[int]
    host: Optional[str]


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown to this system"


def _killed(match):
    rank, pid, host, number = match[1], int(match[2]), match[3], int(match[4])
    process = f" (process {pid})" if pid else ""     # mpirun knows it of other hosts alone
    return Failure("signal", PEER_LOST,
                   f"rank {rank} on host {host}{process} was killed by signal {number} ({signal_name(number)})", host, number,
                   int(rank))


def _exited(match):
    return Failure("code", int(match[2]), f"rank {match[1]} ended first, with exit code {match[2]}", rank=int(match[1]))


def _improper(match):
    return Failure("code", INTERNAL, f"rank {match[1]} on host {match[2]} ended before the job was done", match[2],
                   rank=int(match[1]))


def _host_lost(match):
    return Failure("host", PEER_LOST, f"the connection to host {match[1]} was lost", match[1])


def _setup(code, text):
    return lambda match: Failure("setup", code, text.format(*match.groups()))


# A block that names the rank follows, but not always where ranks end as soon as they are started.
_ENDED_UNNAMED = re.compile(r"Primary job +terminated normally, but \d+ process")
# Patterns are searched in a block's text, its lines joined by spaces. None: says nothing that is not known otherwise.
_BLOCKS = [(re.compile(pattern), meaning) for pattern, meaning in (
    (_ENDED_UNNAMED, None),
    (r"\w+ noticed that process rank (\d+) with PID (\d+) on node (\S+) exited on signal (\d+)", _killed),
    (r"\w+ detected that one or more processes exited with non-zero status.*"
     r"Process name: \[\[\d+,\d+\],(\d+)\] +Exit code: +(\d+)", _exited),
    (r"MPI_ABORT was invoked on rank (\d+) in communicator.*with errorcode (\d+)", _exited),
    (r"\w+ has exited due to process rank (\d+) with PID \d+ on node (\S+) exiting improperly", _improper),
    (r"ORTE has lost communication with a remote daemon.*Remote daemon: \S+ on node (\S+)", _host_lost),
    (r"not enough slots available in the system to satisfy the (\d+) slots",
     _setup(USAGE, "the hosts have fewer slots than {} processes need: give them more slots (slots=N in the hostfile, "
                   "--host NAME:N), or start fewer processes (-n)")),
    (r"attempt to run as root",
     _setup(USAGE, "mpirun refuses to run as root: set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")),
    (r"unable to launch the specified application as it could not access or execute an executable: +"
     r"Executable: (\S+) +Node: (\S+)",
     _setup(UNAVAILABLE, "there is no program {} on host {}, or it cannot be executed: it must have the same path on every "
                         "host (--program)")),
    (r"ORTE was unable to reliably start one or more daemons",
     _setup(UNAVAILABLE, "not every host could be reached: `ssh HOST true` must work for each host without a password, and "
                         "Open MPI must be installed there")),
    (r"None of the TCP networks specified.*Value given: (\S+)",
     _setup(USAGE, "there is no network interface {} on this host: `ip -brief address` lists them (--interface)")),
    (r"No network interfaces were found for out-of-band",
     _setup(UNAVAILABLE, "mpirun finds no network interface that it may use (--interface)")),
    (r"invalid value was given for btl_tcp_if_include.*Local host: (\S+) +Value: +(\S+)",
     _setup(USAGE, "there is no network interface {1} on host {0}: `ip -brief address` lists them (--interface)")),
    (r"At least one pair of MPI processes are unable to reach each other.*is on host: (\S+) .*is on host: (\S+) ",
     _setup(UNAVAILABLE, "ranks on {} and {} cannot reach each other: name the network that the hosts share (--interface), and "
                         "allow connections on all of its ports")),
    (r"unable to open the hostfile: +(\S+)", _setup(USAGE, "cannot read the hostfile {}")),
    (r"bad parameter in the hostfile: +(\S+) +(.*)", _setup(USAGE, "{}: {}")),
    (r"parse error in the hostfile: +(\S+) +It occured on line number (\d+)",
     _setup(USAGE, "{}:{}: mpirun cannot read this line: write 'HOST slots=N'")),
    (r'"plm_rsh_agent" was set to a path that could not be found: +plm_rsh_agent: (.+) Please either',
     _setup(UNAVAILABLE, "mpirun cannot find the program that reaches other hosts ({}): install it (Debian: apt-get install "
                         "openssh-client), put it on the PATH, or name another (--rsh-agent)")),
    (r"An internal error has occurred in ORTE", None),
    # ssh's own message stands above it.
    (r"A daemon \(pid \d+\) died unexpectedly",
     _setup(UNAVAILABLE, "not every host could be reached: `ssh HOST true` must work for each host without a password")),
)]


class Listener:
    """Reads mpirun's stderr. `write(bytes)` gets what is to be shown; `say(text)` a message of lockstep-run's own; `draw(bytes)`
    the line that moves, where there is a terminal."""

    def __init__(self, write, say, draw=None):
        self._write, self._say, self.draw = write, say, draw
        self._drawings = Drawings()
        self._connected = False      # from then on lockstep tells of losses
        self._rest = b""             # behind the last end of a line
        self._shown = 0              # of _rest
        self._block = None           # lines since a line of dashes
        self.failure = None          # the first
        self.decision = None
        self._line_open = False      # what was shown last lacks its end
        self.told_to_end = False     # a rank was, before it had saved
        self._explained = False      # lockstep said itself what is wrong
        self._ended_unnamed = False  # a rank, by mpirun's word

    def feed(self, data):
        if not self.draw:
            self._feed(data)
            return
        for drawn, text in self._drawings.feed(data):
            (self.draw if drawn else self._feed)(text)

    def _feed(self, data):
        *lines, self._rest = re.split(rb"(?<=[\r\n])", self._rest + data)
        for line in lines:
            shown, self._shown = self._shown, 0
            self._line(line, shown)
        # A line without an end yet is shown as far as it cannot become one of mpirun's.
        if self._block is None and not self._rest[self._shown:].startswith((b"-", b"[", b"m")):
            self._show(self._rest[self._shown:])
            self._shown = len(self._rest)

    def overhear(self, line):
        """A whole line that is not shown, of whatever rank; whether it is one that is never shown."""
        self._note(line)
        return bool(self._known(line))

    def retell(self, whose, line):
        """The same, shown behind `whose` it is, on a line of its own."""
        if not self.overhear(line):
            self._show((b"\n" if self._line_open else b"") + whose + line.rstrip(b"\r\n") + b"\n")

    def _show(self, data):
        if data:
            self._write(data)
            self._line_open = not data.endswith(b"\n")

    def flush(self):
        """Shows what was held back for its end, which does not come."""
        self._feed(self._drawings.end())
        block, self._block = self._block or [], None
        self._show(b"".join(block) + self._rest[self._shown:])
        self._rest, self._shown = b"", 0

    @property
    def waiting(self):
        return bool(self._drawings.held) or self._block is not None or len(self._rest) > self._shown

    def unnamed_end(self, code):
        """What is to be said at the end of a job that ended with `code`, where mpirun told of a rank without naming it; None
        where all is said."""
        if not self._ended_unnamed or code <= 0 or self.failure or self.decision or self._explained:
            return None
        return f"a rank ended first, with exit code {code}; mpirun does not say which"

    def loss(self):
        """What is to be said of a lost rank at the end of the job; None where all is said, or none was lost."""
        decision, failure = self.decision, self.failure
        if not decision or decision.reason != "lost" or decision.rank is None or failure and failure.kind != "code":
            return None
        if failure and failure.rank == decision.rank:
            return failure.text
        host = f" on host {decision.host}" if decision.host else ""
        return (f"rank {decision.rank}{host} was lost; mpirun does not say by which signal. If nobody sent one, that host usually "
                "ran out of memory: see its dmesg")

    def _line(self, line, shown):
        self._note(line)             # also between lines of dashes, which a rank may have written
        rule = line.find(_RULE)
        if rule >= 0 and (self._block is None or rule == 0):
            if self._block is None:
                # Behind a rank's line that has no end yet.
                self._show(line[shown:rule])
                self._block = [line[rule:]]
            else:
                block, self._block = self._block + [line], None
                self._end_of_block(block)
        elif self._block is not None:
            self._block.append(line)
            if len(self._block) > _LONGEST_BLOCK:
                self.flush()
        elif not self._known(line):
            self._show(line[shown:])

    def _known(self, line):
        option = _OPTION.match(line)
        if option:
            self._fail(Failure("setup", USAGE, f"mpirun has no option {option[1].decode(errors='replace')} (--mpi-args)"))
        if _ENDED.match(line):
            if not self._connected:
                self._fail(Failure("code", PEER_LOST, "a rank ended before all were connected"))
            return True
        if line == _CONNECTED:
            self._connected = True
            return True
        done = _VERDICT.match(line)
        return option or _NOISE.match(line) or (done and done[2] == b"done")

    def _note(self, line):
        match = _VERDICT.search(line)
        if match and not self.decision:
            code, reason, rank, host = (part.decode(errors="replace") if part else None for part in match.groups())
            self.decision = Decision(int(code), reason, int(rank) if rank else None, host)
        self.told_to_end = self.told_to_end or _TOLD_TO_END in line
        self._explained = self._explained or bool(match) or b"lockstep: error:" in line or b"stopped by request" in line

    def _end_of_block(self, block):
        text = " ".join(b" ".join(block[1:-1]).decode(errors="replace").split())
        for pattern, meaning in _BLOCKS:
            match = pattern.search(text)
            if match:
                if any(line.startswith(b"lockstep: ") for line in block):
                    self._show(b"".join(block))
                if meaning:
                    self._fail(meaning(match))
                self._ended_unnamed = self._ended_unnamed or pattern is _ENDED_UNNAMED
                return
        self._show(b"".join(block))

    def _fail(self, failure):
        # Of hosts that are lost later, mpirun says that it could not start there.
        if self.failure or (failure.kind == "setup" and self.decision):
            return
        self.failure = failure
        # A rank that ended by itself has mostly said why.
        if not (failure.kind == "code" and self._explained):
            self._show(b"\n" if self._line_open else b"")
            self._say(("error: " if failure.kind == "setup" else "") + failure.text)
