"""What lockstep-run writes: messages of its own, and what the ranks say."""

import os
import select

from .backlog import Backlog


class Output(Backlog):
    """Writes by a thread of its own: a terminal that stands still (Ctrl-S), or a pipe that nobody reads, must not keep a
    signal from the ranks. What cannot be written because the reader is gone is dropped: that is no reason to end a
    training, nor is a text that nobody takes, of which at most about `limit` bytes are kept."""

    def __init__(self, file=2, limit=16 << 20, say=None):
        """`say`: is told what is missing, where `file` holds what programs read; otherwise it stands in the file."""
        self._file, self._limit, self._say = file, limit, say
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

    def _take(self):
        data = bytes(self._waiting)
        if data:
            self._waiting.clear()
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
