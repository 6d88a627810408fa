"""A file for each rank, with all that it wrote, over all starts of its job."""

import os
import threading
import time

_LIMIT_BYTES = 16 << 20
# After a stop request nobody waits longer for a file system that does not answer.
_HASTE_S = 3.0


class RankLogs:
    """Writes by a thread of its own: a file system that stands still must not keep a signal from the ranks. Where one file
    cannot be written, that is said once, the others go on, and nothing ends because of it. What nobody takes in time, beyond
    `limit` bytes, is dropped, and the file says so."""

    def __init__(self, folder, say, limit=_LIMIT_BYTES):
        self._folder, self._say, self._limit = folder, say, limit
        self._waiting, self._size = [], 0
        self._dropped = {}           # bytes by rank
        self._writing = False
        self._changed = threading.Condition()
        # Of the thread alone: by rank its file, None where it failed; and those whose last line has no end.
        self._files, self._open_lines = {}, set()
        threading.Thread(target=self._run, daemon=True).start()

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

    def finish(self, stop_requested):
        """Until all is written; soon after stop_requested() anyway."""
        give_up = None
        with self._changed:
            while self._waiting or self._dropped or self._writing:
                if stop_requested():
                    give_up = give_up or time.monotonic() + _HASTE_S
                    if time.monotonic() >= give_up:
                        return
                self._changed.wait(0.1)

    def _run(self):
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._dropped)
                parts, self._waiting, self._size = self._waiting, [], 0
                dropped, self._dropped = self._dropped, {}
                self._writing = True
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
