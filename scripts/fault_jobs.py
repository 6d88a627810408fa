"""Jobs that scripts/measure_faults.py disturbs: how they are started, found, watched and ended."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
       "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_mpi_yield_when_idle": "1"}
MARKER = "LOCKSTEP_MEASURED_JOB"
LAYOUT = "dp=2"
INTERVAL = 50              # steps between checkpoints
SILENT_S = 2.0
CONFIG = """
model {{ lenet {{ image: [28, 28, 1] classes: 10 }} }}
data {{ idx {{ train_images: "train-images-idx3-ubyte" train_labels: "train-labels-idx1-ubyte"
              eval_images: "eval-images-idx3-ubyte" eval_labels: "eval-labels-idx1-ubyte" }} directory: "{data}" }}
trainer {{ global_batch: 128 virtual_replicas: 4 steps: {steps} seed: 1 eval_at_end: false check_every_steps: {interval} }}
optimizer {{ learning_rate: 0.01 sgd {{ momentum: 0.9 }} }}
parallel {{ reduction: REPRODUCIBLE }}
checkpoint {{ every_steps: {interval} background: {background} }}
watchdog {{ heartbeat_seconds: 0.25 silent_seconds: {silent} }}
metrics {{ progress: false }}
"""


def processes():
    """pid -> (parent, environment), of what this user may look at."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="latin-1") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{name}/environ", "rb") as file:
                found[int(name)] = parent, file.read().split(b"\0")
        except OSError:
            pass                                             # it has ended, or is not ours
    return found


def ranks_of_job(marker, program="lockstep"):
    """rank -> pid of a job's processes, wherever on this machine they were started."""
    ranks = {}
    entry = f"{MARKER}={marker}".encode()
    for pid, (_, environment) in processes().items():
        if entry not in environment:
            continue
        try:
            if not os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith(program):
                continue
        except OSError:
            continue
        for name in environment:
            if name.startswith(b"OMPI_COMM_WORLD_RANK="):
                ranks[int(name.partition(b"=")[2])] = pid
    return ranks


def last_step(run):
    """The last complete step of metrics.jsonl; 0 where there is none yet."""
    try:
        with open(os.path.join(run, "metrics.jsonl"), "rb") as file:
            file.seek(max(0, os.path.getsize(file.name) - 65536))
            lines = file.read().rpartition(b"\n")[0].split(b"\n")
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if "loss" in row:
            return row["step"]
    return 0


def newest_checkpoint(run):
    """The step of the newest complete checkpoint; 0 where there is none."""
    folder = os.path.join(run, "checkpoints")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return max([int(name[5:]) for name in names if re.fullmatch(r"step-[0-9]{8,}", name)], default=0)


class Layout:
    """Of a job, with what `lockstep inspect` says of it."""

    def __init__(self, lockstep, config, text, assignments=()):
        self.text = text
        self.arguments = ["--layout", text]
        # Workers that do not wait have no bits that others could have.
        self.has_bits = not re.search(r"mode=(async|stale(?!.*bound=0\b))", text)
        if not self.has_bits:
            self.arguments += ["--set", "parallel.reduction=FAST"]
        told = json.loads(subprocess.run([lockstep, "inspect", config, "--json", *self.arguments, *assignments], check=True,
                                         stdout=subprocess.PIPE).stdout)
        self.ranks = told["world_size"]
        self.roles = [rank["role"] for rank in told["ranks"]]

    def ranks_of(self, role):
        return [rank for rank in range(self.ranks) if role is None or role in self.roles[rank]]


class TwoHosts:
    """A pair of its own, on whose first host jobs are started."""

    def __init__(self):
        self.id = f"faults{os.getpid()}"
        self.do("up")

    def do(self, action):
        subprocess.run([os.path.join(ROOT, "scripts", "two_hosts.sh"), "--id", self.id, action], check=True)

    def before(self):
        return [os.path.join(ROOT, "scripts", "two_hosts.sh"), "--id", self.id, "on", "host-a", "--"]

    @staticmethod
    def placed(ranks):
        """Options of lockstep-run: the first half of the ranks, or one more, on the first host."""
        return ["--host", f"host-a:{ranks - ranks // 2},host-b:{ranks // 2}", "--interface", "net0"]


class Job:
    """One start of a training."""

    def __init__(self, options, config, run, ranks, extra=()):
        self.marker = uuid.uuid4().hex
        train = ["train", config, "--json", *(["--out", run] if run else []), *extra]
        hosts = getattr(options, "hosts", None)
        command = ([*(hosts.before() if hosts else []), options.launcher, "-n", str(ranks), *(hosts.placed(ranks) if hosts else []),
                    "--program", options.lockstep, "--"] if options.launcher else ["mpirun", "-n", str(ranks), options.lockstep]) + train
        self.run = run
        self.stdout, self.stderr = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, env={**MPI, **os.environ, MARKER: self.marker}, stdin=subprocess.DEVNULL,
                                        stdout=self.stdout, stderr=self.stderr)
        self.seconds = None

    def wait(self, since=None, limit=300):
        """Until the job has ended, or the limit."""
        since = since or time.monotonic()
        try:
            self.code = self.process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            self.code = None
        self.seconds = time.monotonic() - since
        self.orphans = self._orphans()
        self.process.wait()
        self.out, self.err = self._text(self.stdout), self._text(self.stderr)
        return self

    def _orphans(self):
        """How many processes outlived the job; they are ended."""
        entry = f"{MARKER}={self.marker}".encode()
        left, count = [], 0
        give_up = time.monotonic() + (1 if self.code is not None else 0)
        while True:
            left = [pid for pid, (_, environment) in processes().items() if entry in environment]
            if not left or time.monotonic() > give_up:
                break
            time.sleep(0.02)
        count = len(left)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return count

    @staticmethod
    def _text(file):
        file.seek(0)
        return file.read().decode(errors="replace")

    def report(self):
        return json.loads(self.out)


class Bench:
    """A workplace with data and config."""

    def __init__(self, options, steps):
        self.options = options
        self.folder = tempfile.mkdtemp(prefix="lockstep-faults-")
        data = os.path.join(self.folder, "data")
        subprocess.run([options.lockstep, "data", "digits", "--out", data, "--train", "2000", "--eval", "200", "--seed", "1"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.config = os.path.join(self.folder, "lenet.textproto")
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(data=data, steps=steps, interval=INTERVAL, silent=SILENT_S,
                                     background="false" if options.foreground_saves else "true"))

        self.layout = Layout(options.lockstep, self.config, options.layout, options.train)
        self.resume_layout = Layout(options.lockstep, self.config, options.resume_layout, options.train) if options.resume_layout else self.layout

    def job(self, name, *extra, layout=None):
        layout = layout or self.layout
        return Job(self.options, self.config, os.path.join(self.folder, name) if name else None, layout.ranks,
                   (*layout.arguments, *self.options.train, *extra))

    def reference(self):
        """Report of an undisturbed run, and how many seconds its steps took."""
        job = self.job("reference")
        job.wait()
        if job.code != 0:
            sys.exit(f"the undisturbed run ended with {job.code}:\n{job.err}")
        report = job.report()
        return report, report["steps"] * report["step_ms"]["mean"] / 1000

    def remove(self, name=""):
        shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
