"""What is written by a thread of its own, so that nothing that stands still keeps a signal from the ranks."""

import threading
import time

# After a stop request nobody waits longer for a terminal or file system that does not answer.
_HASTE_S = 3.0


class Backlog:
    """Of those that derive from it: `_waiting` and `_dropped` are guarded by `_changed`, and tell whether there is anything to
    write, unless `_has_work()` does; `_take()`, called with it, takes some of that away, and `_put()` writes what was taken."""

    def __init__(self, waiting, dropped):
        self._waiting, self._dropped = waiting, dropped
        self._writing = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def _has_work(self):
        return bool(self._waiting or self._dropped)

    def finish(self, stop_requested):
        """Until all is written; soon after stop_requested() anyway."""
        give_up = None
        with self._changed:
            while self._has_work() or self._writing:
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
                self._changed.wait_for(self._has_work)
                taken = self._take()
                self._writing = True
            self._put(taken)
