"""Who said what: mpirun marks what its ranks write (--tag-output), and here it is told apart again."""

import re

from .terminal import Drawings, LoggedDrawings, plain

_TAG = re.compile(rb"\[\d+,(\d+)\]<std(?:out|err|diag)>:")
_LONGEST_TAG = 40
# What somebody must see, whoever says it; the lines behind it that are indented belong to it.
_IMPORTANT = re.compile(rb"(?:lockstep: )?(?:\[rank \d+\] )?(?:error|warning): |lockstep: (?:the job ends with|was told to end)")


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


class RankStreams:
    """stdout and stderr of a job whose ranks are told apart. What ranks write goes to their logs (may be None) and, line by
    line, to `listener`, which shows it. Where `shown` is a rank, of the others' stderr only errors, warnings and how the job ends
    are shown, behind the rank's number. `write_out` takes stdout."""

    def __init__(self, listener, write_out, logs, shown):
        self._listener, self._write_out, self._logs, self._shown = listener, write_out, logs, shown
        self._out, self._err = Untagged(), Untagged()
        self._lines = {}             # of each rank, what has no end yet
        self._telling = set()        # ranks that are not shown, whose last line was
        self._drawings = {}          # by rank, where there is a terminal: (Drawings, LoggedDrawings)

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
            if self._listener.draw:
                part = self._without_drawings(rank, part)
            self._take_text(rank, part)
        if not data:
            for rank, (drawings, _) in self._drawings.items():
                self._take_text(rank, drawings.end())
            for rank, rest in self._lines.items():
                self._pass_on(rank, rest)
            self._lines = {}

    def _take_text(self, rank, text):
        if not text:
            return
        if self._logs:
            self._logs.write(rank, plain(text) if self._listener.draw else text)
        lines = self._lines.get(rank, b"") + text
        end = max(lines.rfind(b"\n"), lines.rfind(b"\r")) + 1
        self._lines[rank] = lines[end:]
        self._pass_on(rank, lines[:end])

    def _without_drawings(self, rank, data):
        drawings, logged = self._drawings.setdefault(rank, (Drawings(), LoggedDrawings()))
        rest = b""
        for drawn, text in drawings.feed(data):
            if not drawn:
                rest += text
                continue
            if self._shown is None or rank == self._shown:
                self._listener.draw(text)
            if self._logs:
                self._logs.write(rank, logged.line(text))
        return rest

    def _pass_on(self, rank, lines):
        if not lines:
            return
        if self._shown is None or rank == self._shown:
            self._listener.feed(lines)
            return
        for line in re.split(rb"(?<=[\r\n])", lines):
            if not line:
                continue
            if _IMPORTANT.match(line) or (rank in self._telling and line.startswith(b" ")):
                self._telling.add(rank)
                self._listener.retell(f"rank {rank}: ".encode(), line)
            else:
                self._telling.discard(rank)
                self._listener.overhear(line)
