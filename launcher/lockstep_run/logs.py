"""A file for each rank, with all that it wrote, over all starts of its job."""

import os
import time

from .backlog import Backlog

_LIMIT_BYTES = 16 << 20


class RankLogs(Backlog):
    """Writes by a thread of its own: a file system that stands still must not keep a signal from the ranks. Where one file
    cannot be written, that is said once, the others go on, and nothing ends because of it. What nobody takes in time, beyond
    `limit` bytes, is dropped, and the file says so."""

    def __init__(self, folder, say, limit=_LIMIT_BYTES):
        self._folder, self._say, self._limit = folder, say, limit
        self._size = 0
        # Of the thread alone: by rank its file, None where it failed; and those whose last line has no end.
        self._files, self._open_lines = {}, set()
        super().__init__(waiting=[], dropped={})  # dropped: bytes by rank

    def path(self, rank):
        return os.path.join(self._folder, f"rank-{rank}.log")

    def write(self, rank, data):
        """Never blocks and never fails."""
        with self._changed:
            if self._size >= self._limit:
                self._dropped[rank] = self._dropped.get(rank, 0) + len(data)
            else:
                self._waiting.append((rank, data))
                self._size += len(data)
            self._changed.notify_all()

    def mark(self, text):
        """On a line of its own in all files there are."""
        with self._changed:
            self._waiting.append((None, text))
            self._changed.notify_all()

    def _take(self):
        taken = self._waiting, self._dropped
        self._waiting, self._size, self._dropped = [], 0, {}
        return taken

    def _put(self, taken):
        parts, dropped = taken
        for rank, data in parts:
            if rank is None:
                for known in list(self._files):
                    self._mark(known, data)
            else:
                self._write(rank, data)
        for rank, count in dropped.items():
            self._mark(rank, f"{count} bytes are missing here: they could not be written in time")

    def _mark(self, rank, text):
        begin = "\n" if rank in self._open_lines else ""
        self._write(rank, f"{begin}lockstep-run: {text}\n".encode())

    def _write(self, rank, data):
        if rank not in self._files:
            try:
                if _lacks_end(self.path(rank)):
                    self._open_lines.add(rank)
                file = open(self.path(rank), "ab", buffering=0)
            except OSError as error:
                file = None
                self._failed(rank, error)
            self._files[rank] = file
            self._mark(rank, time.strftime("begins %Y-%m-%d %H:%M:%S %z"))
        file = self._files[rank]
        if file is None or not data:
            return
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest):]
        except OSError as error:
            self._files[rank] = None
            self._failed(rank, error)
            file.close()
            return
        (self._open_lines.discard if data.endswith(b"\n") else self._open_lines.add)(rank)

    def _failed(self, rank, error):
        self._say(f"warning: cannot write {self.path(rank)}: {error.strerror}; this log ends here, and the job goes on")


def _lacks_end(path):
    """Whether the last line of a file that an earlier start wrote has no end."""
    if not os.path.isfile(path) or os.path.getsize(path) == 0:
        return False
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
