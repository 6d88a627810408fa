"""Exit codes as in docs/cli.md, and the one error that lockstep-run itself throws."""

USAGE = 2
UNAVAILABLE = 69
INTERNAL = 70
INTERRUPTED = 130
TERMINATED = 143
PEER_LOST = 200
HANG = 201
ENDED_AT_ONCE = 202


class LaunchError(Exception):
    """What is wrong and what to do, in one or two lines."""

    def __init__(self, message, code=USAGE):
        super().__init__(message)
        self.code = code
