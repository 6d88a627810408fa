"""What lockstep-run writes: messages of its own, and what the ranks say."""

import os
import select

from . import terminal
from .backlog import Backlog


class Output(Backlog):
    """Writes by a thread of its own: a terminal that stands still (Ctrl-S), or a pipe that nobody reads, must not keep a
    signal from the ranks. What cannot be written because the reader is gone is dropped: that is no reason to end a
    training, nor is a text that nobody takes, of which at most about `limit` bytes are kept."""

    def __init__(self, file=2, limit=16 << 20, say=None):
        """`say`: is told what is missing, where `file` holds what programs read; otherwise it stands in the file."""
        self._file, self._limit, self._say = file, limit, say
        # The line that moves, below all that is written; whether it differs from what is on the terminal; whether there is
        # anything of it there; and whether what was written last lacks its end, behind which nothing is drawn.
        self._progress, self._stale, self._drawn, self._line_open = b"", False, False, False
        # dropped: bytes, since `_waiting` became full; all of them until it is empty again
        super().__init__(waiting=bytearray(), dropped=0)

    def say(self, text):
        self.write(f"lockstep-run: {text}\n".encode(errors="surrogateescape"))

    def write(self, data):
        """Never blocks and never fails."""
        with self._changed:
            if self._dropped or len(self._waiting) >= self._limit:
                self._dropped += len(data)
            else:
                self._waiting += data
            self._changed.notify_all()

    def draw(self, text):
        """The line that moves, on a terminal: erased before all else that is written, and drawn again below it. Empty: none.
        What nobody has taken yet is replaced."""
        with self._changed:
            self._stale = self._stale or text != self._progress
            self._progress = text
            self._changed.notify_all()

    def leave_progress(self):
        """The line that moves stays where it is, as any other."""
        with self._changed:
            text, self._progress = self._progress, b""
            if text:
                self._waiting += self._fitted(text) + b"\n"
                self._changed.notify_all()

    def _fitted(self, text):
        return terminal.fitted(text, terminal.columns(self._file) - 1)     # some terminals wrap behind the last

    def _has_work(self):
        return super()._has_work() or self._stale

    def _take(self):
        data = self._take_text()
        if data:
            self._line_open = not data.endswith(b"\n")
        self._stale = False
        line = b"" if self._line_open else self._fitted(self._progress)
        # A line that replaces itself is erased behind its end alone, so that it does not flicker.
        erased = b"\r" + terminal.ERASE if self._drawn and (data or not line) else b""
        self._drawn = bool(line)
        return erased + data + (b"\r" + line + terminal.ERASE if line else b"")

    def _take_text(self):
        data = bytes(self._waiting)
        if data:
            self._waiting.clear()
        if data or not self._dropped:
            return data
        dropped, self._dropped = self._dropped, 0
        if not self._say:
            return f"\nlockstep-run: {dropped} bytes are missing here: nobody read them in time\n".encode()
        self._say(f"{dropped} bytes of stdout are missing: nobody read them in time")
        return b""

    def _put(self, data):
        data = memoryview(data)
        while data:
            try:
                data = data[os.write(self._file, data):]
            except BlockingIOError:                                 # another program's doing, with whom it is shared
                select.select([], [self._file], [])
            except OSError:
                return
