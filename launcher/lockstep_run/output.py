"""What lockstep-run writes: messages of its own, and what the ranks say."""

import os
import select
import threading
import time

# After a stop request nobody waits longer for a terminal that does not take its text.
_HASTE_S = 3.0


class Output:
    """Writes by a thread of its own: a terminal that stands still (Ctrl-S), or a pipe that nobody reads, must not keep a
    signal from the ranks. What cannot be written because the reader is gone is dropped: that is no reason to end a
    training, nor is a text that nobody takes, of which at most about `limit` bytes are kept."""

    def __init__(self, file=2, limit=16 << 20, say=None):
        """`say`: is told what is missing, where `file` holds what programs read; otherwise it stands in the file."""
        self._file, self._limit, self._say = file, limit, say
        self._waiting = bytearray()
        self._dropped = 0            # bytes, since `_waiting` became full; all of them until it is empty again
        self._writing = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

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
                data = bytes(self._waiting)
                if data:
                    self._waiting.clear()
                elif self._say:
                    self._say(f"{self._dropped} bytes of stdout are missing: nobody read them in time")
                    self._dropped = 0
                else:
                    data = f"\nlockstep-run: {self._dropped} bytes are missing here: nobody read them in time\n".encode()
                    self._dropped = 0
                self._writing = True
            self._write_all(memoryview(data))

    def _write_all(self, data):
        while data:
            try:
                data = data[os.write(self._file, data):]
            except BlockingIOError:                                 # another program's doing, with whom it is shared
                select.select([], [self._file], [])
            except OSError:
                return
