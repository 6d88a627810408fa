"""The line that shows how far a training is, on lockstep-run's own terminal.

Ranks write into pipes of mpirun's. LOCKSTEP_TERMINAL tells them of the terminal behind these, and rank 0 then sends its line as
drawings, told apart from all other text, where it would have written a line every five seconds:

    "\\r" ERASE text ERASE      draws; ERASE erases to the end of the line; without text the line goes

Only lockstep-run knows what else is shown meanwhile, and how wide the window is now, so that it draws (output.py).
"""

import os
import re
import time

ERASE = b"\x1b[K"
_BEGIN = b"\r" + ERASE
# Text and changes of colour.
_TEXT = rb"(?:[^\r\n\x1b]|\x1b\[\d*m)*"
_DRAWING = re.compile(rb"\r\x1b\[K(" + _TEXT + rb")\x1b\[K")
_BEGUN = re.compile(rb"\r(?:\x1b(?:\[(?:K" + _TEXT + rb"(?:\x1b(?:\[\d*)?)?)?)?)?\Z")
_COLOR = re.compile(rb"\x1b\[\d*m")
_LOG_EVERY_S = 5.0               # as ranks do without a terminal
VARIABLE = "LOCKSTEP_TERMINAL"


def columns(file):
    try:
        return os.get_terminal_size(file).columns or 80
    except OSError:
        return 80


def described(environment, file=2):
    """What LOCKSTEP_TERMINAL says of `file`: "80,color,unicode". None: it is no terminal, or one that cannot erase."""
    if not os.isatty(file) or environment.get("TERM", "") in ("", "dumb"):
        return None
    locale = next(filter(None, map(environment.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "").lower()
    return ",".join([str(columns(file))] + ["color"] * (not environment.get("NO_COLOR")) +
                    ["unicode"] * ("utf-8" in locale or "utf8" in locale))


def is_shared(first=1, second=2):
    """Whether both are the same terminal."""
    try:
        return os.ttyname(first) == os.ttyname(second)
    except OSError:
        return False


def plain(text):
    return _COLOR.sub(b"", text)


def fitted(text, width):
    """The beginning of `text` that takes at most `width` columns."""
    if len(text) <= width:
        return text
    taken, colored = 0, False
    for match in re.finditer(rb"(\x1b\[\d*m)|[^\x80-\xbf][\x80-\xbf]*", text):
        if match[1]:
            colored = match[1] not in (b"\x1b[m", b"\x1b[0m")
        elif taken == width:
            return text[:match.start()] + (b"\x1b[0m" if colored else b"")
        else:
            taken += 1
    return text


class Drawings:
    """Tells drawings from all else in what one writes."""

    def __init__(self):
        self.held = b""              # may become a drawing

    def feed(self, data):
        """Pairs (is a drawing, text)."""
        data, pieces, at = self.held + data, [], 0
        for match in _DRAWING.finditer(data):
            pieces += [(False, data[at:match.start()]), (True, match[1])]
            at = match.end()
        begun = _BEGUN.search(data, at)
        end = begun.start() if begun else len(data)
        pieces.append((False, data[at:end]))
        self.held = data[end:]
        return [(drawn, text) for drawn, text in pieces if drawn or text]

    def end(self):
        held, self.held = self.held, b""
        return held


class LoggedDrawings:
    """What a rank's log gets of its drawings: a line now and then."""

    def __init__(self, now=time.monotonic):
        self._now, self._at = now, now()

    def line(self, text):
        """b"": none yet."""
        now = self._now()
        if not text or now - self._at < _LOG_EVERY_S:
            return b""
        self._at = now
        return plain(text) + b"\n"
