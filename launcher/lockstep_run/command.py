"""The mpirun command line of a job."""

import glob
import os
import re
import shlex
import shutil
import subprocess

from .errors import LaunchError, UNAVAILABLE

# An orted that a cut link left behind ends two minutes later, in place of eight.
_KEEPALIVE = {"oob_tcp_keepalive_time": "60", "oob_tcp_keepalive_intvl": "10", "oob_tcp_keepalive_probes": "6"}
_EXPORTED = ("LOCKSTEP_", "NCCL_", "OMP_")
# Options of train whose value is the next word.
_WITH_VALUE = ("--set", "--layout", "--out", "--data-dir", "--resume", "--device", "--trace", "--stop-after", "--failpoint")
_CHANGE_TAGS = ("tag-output", "timestamp-output", "xml", "xml-file", "output-filename")
_RESOURCE_MANAGERS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "LSB_MCPU_HOSTS")


def find_mpirun(path):
    found = shutil.which("mpirun", path=path)
    if not found:
        raise LaunchError("there is no mpirun on the PATH: install Open MPI (Debian: apt-get install openmpi-bin), or add its bin "
                          "folder to the PATH", UNAVAILABLE)
    # An mpirun with a path takes the folder above it for its own installation: that of /bin/mpirun would be /.
    return os.path.join(os.path.realpath(os.path.dirname(found)), os.path.basename(found))


def find_program(asked, checkout, path):
    """The lockstep program, as an absolute path: mpirun starts it by that path on every host."""
    if asked:
        found = shutil.which(asked, path=path)
        if not found:
            raise LaunchError(f"--program {asked}: there is no such program", UNAVAILABLE)
        return os.path.abspath(found)
    built = os.path.join(checkout, "build", "release", "bin", "lockstep")
    found = shutil.which(built) or shutil.which("lockstep", path=path)
    if not found:
        raise LaunchError(f"there is no lockstep program at {built} or on the PATH: build it (cmake --preset release && cmake "
                          "--build --preset release), or name it (--program)", UNAVAILABLE)
    return os.path.abspath(found)


def core_count():
    """Cores that this process may use; mpirun counts cores, not their hardware threads."""
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        name = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            with open(name, encoding="ascii") as file:
                cores.add(file.read())
        except OSError:
            return len(allowed)
    return len(cores)


def spares_workers(program, arguments):
    """Whether the others go on where a worker is lost: training with mode=async. What is wrong with the config is for the
    training to say."""
    if arguments[:1] != ["train"]:
        return False
    layout = option_value(arguments, "--layout")
    if layout is not None:
        return "mode=async" in layout.replace(" ", "")
    settings = [f"--set={value}" for value in option_values(arguments, "--set")]
    taken = {i + 1 for i, word in enumerate(arguments) if word in _WITH_VALUE}
    config = next((word for i, word in enumerate(arguments) if i > 0 and i not in taken and os.path.isfile(word)), None)
    if config is None:
        return False
    try:
        with open(config, encoding="utf-8", errors="replace") as file:
            if not any("ASYNC" in text for text in (file.read(), *settings)):
                return False
        printed = subprocess.run([program, "config", "print", config, *settings], capture_output=True, text=True, check=False)
    except OSError:
        return False             # on this host: what the ranks can read, they say
    return re.search(r"\bmode: ASYNC\b", printed.stdout) is not None


def tells_ranks_apart(options):
    return bool(options.log_dir) or options.tail is not None


def build(options, program, mpirun, workers, hosts, place, arguments, environment, cores, is_root):
    """`hosts`: None for those that the options or the `place` name, otherwise those that are left of them. `place`: None where
    nothing but the options says where ranks run."""
    command = [mpirun]
    if is_root:
        command.append("--allow-run-as-root")
    if workers is not None:
        command += ["-n", str(workers)]
    if hosts is not None:
        command += ["--host", ",".join(f"{host.name}:{host.slots}" for host in hosts)]
    elif options.hostfile:
        command += ["--hostfile", options.hostfile]
    elif options.host:
        command += ["--host", options.host]
    # The cores of this host say nothing about others.
    elif (workers or 0) > cores and place is None and not any(name in environment for name in _RESOURCE_MANAGERS):
        command += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    # The default binds a rank and all its threads to one core; the watchdog and prefetching need others.
    command += ["--bind-to", "none"]
    if spares_workers(program, arguments):
        command.append("--enable-recovery")
    exported = {name: None for name in sorted(environment) if name.startswith(_EXPORTED)}
    if options.hostfile or options.host or place is not None:
        for name, value in _KEEPALIVE.items():
            if f"OMPI_MCA_{name}" not in environment:
                command += ["--mca", name, value]
        if "LD_LIBRARY_PATH" in environment:
            exported["LD_LIBRARY_PATH"] = None
    if options.rsh_agent:
        command += ["--mca", "plm_rsh_agent", options.rsh_agent]
    if options.interface:
        command += ["--mca", "btl_tcp_if_include", options.interface, "--mca", "oob_tcp_if_include", options.interface]
        exported["LOCKSTEP_CONTROL_INTERFACE"] = options.interface
        if "NCCL_SOCKET_IFNAME" not in exported:
            exported["NCCL_SOCKET_IFNAME"] = "=" + options.interface
    for variable in options.x:
        name, equals, value = variable.partition("=")
        if not equals and name not in environment:
            raise LaunchError(f"-x {name}: there is no such environment variable; set it, or write -x {name}=VALUE")
        exported[name] = value if equals else None
    for name, value in exported.items():
        command += ["-x", name if value is None else f"{name}={value}"]
    try:
        command += shlex.split(options.mpi_args)
    except ValueError as error:
        raise LaunchError(f"--mpi-args {options.mpi_args}: {error}") from None
    if tells_ranks_apart(options):
        if any(word.lstrip("-") in _CHANGE_TAGS for word in shlex.split(options.mpi_args)):
            raise LaunchError(f"--mpi-args {options.mpi_args}: it changes the marks by which --log-dir and --tail tell ranks "
                              "apart; remove one of them")
        command.append("--tag-output")
    # The wrapper lies beside this file, at the same path on every host as lockstep itself.
    near = ["python3", os.path.join(os.path.dirname(os.path.realpath(__file__)), "near_gpu.py")] if options.bind == "gpu" else []
    return command + near + [program] + arguments


def option_values(arguments, name):
    """Of `--name VALUE` and `--name=VALUE` among lockstep's arguments."""
    values = []
    for i, word in enumerate(arguments):
        if word == name and i + 1 < len(arguments):
            values.append(arguments[i + 1])
        elif word.startswith(name + "="):
            values.append(word[len(name) + 1:])
    return values


def option_value(arguments, name):
    """The last of option_values, or None."""
    return next(reversed(option_values(arguments, name)), None)


def resuming(arguments):
    """The same arguments with --resume auto, which goes on from the newest checkpoint of --out. Where there is none, it
    begins where the config says, and so the config must say what another --resume said."""
    asked = option_value(arguments, "--resume")
    kept, skip = [], False
    for word in arguments:
        if not skip and word != "--resume" and not word.startswith("--resume="):
            kept.append(word)
        skip = not skip and word == "--resume"
    if asked == "never":
        kept += ["--set", "checkpoint.resume_automatic=false"]
    elif asked not in (None, "auto"):
        kept += ["--set", "checkpoint.resume_path=" + asked]
    return kept + ["--resume", "auto"]


def newest_checkpoint(run):
    """A folder under its final name is complete. None where there is none, or none can be seen from this host."""
    steps = {}
    for folder in glob.glob(os.path.join(glob.escape(run), "checkpoints", "step-*")):
        number = os.path.basename(folder)[len("step-"):]
        if number.isdigit():
            steps[int(number)] = folder
    return steps[max(steps)] if steps else None
