"""What Open MPI's mpirun wants of the host and the environment, and crashes without."""

import os
import pwd
import re
import signal
import socket

# Of a host's name before the first digit or dot: Open MPI 4.1 copies them to a place of a fixed size.
_MOST_LETTERS = 56


def mend(environment):
    """Sets what is missing of it."""
    if "PATH" not in environment:
        environment["PATH"] = os.pathsep.join(("/usr/local/bin", "/usr/bin", "/bin"))
    # It looks for files of settings there, and takes any folder. None that others may write to.
    if "HOME" not in environment and not _is_known(os.geteuid()):
        environment["HOME"] = "/nonexistent"


def why_crashed(number, hosts):
    """Why a signal of this number may have ended mpirun before ranks said anything, with what helps; None where that is not
    known."""
    if number != signal.SIGABRT:
        return None
    for name in (socket.gethostname(), *hosts):
        letters = len(re.match("[A-Za-z-]*", name)[0])
        if letters > _MOST_LETTERS:
            return (f"mpirun crashes if a host's name begins with more than {_MOST_LETTERS} letters and hyphens, but {name} "
                    f"begins with {letters}: give that host a shorter one (hostname NAME; of a container: --hostname NAME)")
    return None


def _is_known(user):
    try:
        return bool(pwd.getpwuid(user))
    except KeyError:
        return False
