"""Who said what: mpirun marks what its ranks write (--tag-output), and here it is told apart again."""

import os
import re

_TAG = re.compile(rb"\[\d+,(\d+)\]<std(?:out|err|diag)>:")
_LONGEST_TAG = 40


class Untagged:
    """One stream of mpirun's: what each rank wrote, and what mpirun wrote itself (rank None)."""

    def __init__(self):
        self._rest = b""             # might be the beginning of a tag
        self._rank = None

    def feed(self, data):
        """Pairs (rank, bytes), in the order in which they came."""
        data, self._rest = self._rest + data, b""
        # A tag has no other '[' in it: what may become one is held back.
        begin = data.rfind(b"[", max(0, len(data) - _LONGEST_TAG))
        if begin >= 0 and not _TAG.match(data, begin) and re.fullmatch(rb"\[[\d,]*(?:\](?:<(?:s(?:t(?:d[a-z]*>?)?)?)?)?)?",
                                                                       data[begin:]):
            data, self._rest = data[:begin], data[begin:]
        parts = []
        position = 0
        for match in _TAG.finditer(data):
            parts += self._pieces(data[position:match.start()])
            self._rank = int(match[1])
            position = match.end()
        return parts + self._pieces(data[position:])

    def end(self):
        """What is left."""
        rest, self._rest = self._rest, b""
        return self._pieces(rest)

    def _pieces(self, data):
        """Every line of a rank begins with a tag: without one it is mpirun's."""
        line, newline, others = data.partition(b"\n")
        pieces = [(self._rank, line + newline)] if line + newline else []
        if newline:
            self._rank = None
        return pieces + ([(None, others)] if others else [])


class RankLogs:
    """A file for each rank, with all that it wrote, over all restarts. Where one cannot be written, that is said once, and
    nothing ends because of it."""

    def __init__(self, folder, say):
        self._folder, self._say, self._files, self._failed = folder, say, {}, False

    def path(self, rank):
        return os.path.join(self._folder, f"rank-{rank}.log")

    def write(self, rank, data):
        if self._failed:
            return
        try:
            if rank not in self._files:
                self._files[rank] = open(self.path(rank), "ab", buffering=0)
            self._files[rank].write(data)
        except OSError as error:
            self._failed = True
            self._say(f"warning: cannot write {self.path(rank)}: {error.strerror}; logs end here, and the job goes on")

    def mark(self, text):
        """On a line of its own in all files there are."""
        for rank in self._files:
            self.write(rank, f"lockstep-run: {text}\n".encode())


class RankStreams:
    """stdout and stderr of a job whose ranks are told apart. What ranks write goes to their logs (may be None) and, line by
    line, to `listener`, which shows it; of stderr that of `shown` alone, where that is a rank. `write_out` takes stdout."""

    def __init__(self, listener, write_out, logs, shown):
        self._listener, self._write_out, self._logs, self._shown = listener, write_out, logs, shown
        self._out, self._err = Untagged(), Untagged()
        self._lines = {}             # of each rank, what has no end yet

    def feed_out(self, data):
        for rank, part in self._out.feed(data) if data else self._out.end():
            if self._logs and rank is not None:
                self._logs.write(rank, part)
            self._write_out(part)

    def feed_err(self, data):
        for rank, part in self._err.feed(data) if data else self._err.end():
            if rank is None:
                self._listener.feed(part)
                continue
            if self._logs:
                self._logs.write(rank, part)
            lines = self._lines.get(rank, b"") + part
            end = max(lines.rfind(b"\n"), lines.rfind(b"\r")) + 1
            self._lines[rank] = lines[end:]
            self._pass_on(rank, lines[:end])
        if not data:
            for rank, rest in self._lines.items():
                self._pass_on(rank, rest)
            self._lines = {}

    def _pass_on(self, rank, lines):
        if not lines:
            return
        if self._shown is None or rank == self._shown:
            self._listener.feed(lines)
        else:
            self._listener.overhear(lines)
