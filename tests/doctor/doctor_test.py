#!/usr/bin/env python3
"""lockstep doctor on hosts and in jobs that are broken on purpose: the right line must say so, and its fix must mend it."""

import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "launcher"))
from support import LAUNCHER, PATIENCE_S, PROGRAM, ROOT, TWO_HOSTS, Case, Running, main, need_mpirun  # noqa: E402

PAIR = f"doc{os.getpid()}"
# Jobs of one user make and remove the same folder for Open MPI's files, and get in each other's way there.
SESSIONS = tempfile.TemporaryDirectory()
EXIT_CODES = {"ok": 0, "warn": 1, "fail": 69}
MPIRUN = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
          "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": "1"}


def environment(**more):
    own = {name: value for name, value in os.environ.items() if not name.startswith(("LOCKSTEP_CONTROL", "LOCKSTEP_INSTRUCTION_SET"))}
    return {**own, **MPIRUN, "TMPDIR": SESSIONS.name, **more}


class Report:
    """What doctor said, as lines or as JSON."""

    def __init__(self, ran):
        self.code, self.out, self.err = ran.returncode, ran.stdout.decode(), ran.stderr.decode()
        self.lines = self.out.splitlines()

    def of(self, check):
        found = [line for line in self.lines if line[6:].startswith(check + ": ")]
        if not found:
            raise AssertionError(f"no line of {check} in:\n{self.out}{self.err}")
        return found[0]


def run(command, **options):
    options.setdefault("env", environment())
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE_S,
                          check=False, **options)


def doctor(*arguments, before=(), **options):
    return Report(run([*before, PROGRAM, "doctor", *arguments], **options))


def shell(script, namespaces=("--mount", "--net")):
    """In namespaces of its own, of which `script` makes something; $1 is the program."""
    return Report(run(["unshare", *namespaces, "sh", "-ec", script, "sh", PROGRAM]))


def need_namespaces():
    if not shutil.which("unshare") or not shutil.which("ip"):
        raise unittest.SkipTest("unshare or ip is missing")
    tried = run(["unshare", "--mount", "--net", "sh", "-ec", "mount -t tmpfs tmpfs /mnt"])
    if tried.returncode != 0:
        raise unittest.SkipTest(f"no namespaces or mounts may be made here: {tried.stderr.decode().strip()}")


class Doctor(Case):
    @classmethod
    def setUpClass(cls):
        need_mpirun()

    def expect(self, report, check, level, *words):
        line = report.of(check)
        self.assertTrue(line.startswith(level), line)
        for word in words:
            self.assertIn(word, line)
        self.assertEqual("; fix: " in line, level in ("warn", "fail"), line)
        if level == "fail":
            self.assertEqual(report.code, 69, report.out)
        if level == "warn":
            self.assertIn(report.code, (1, 69), report.out)

    def script(self, name, text):
        """A program of this name; the folder that it is in."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("#!/bin/sh\n" + text)
        (folder / name).chmod(0o755)
        return str(folder)


class Hosts(Doctor):
    def test_json_says_what_lines_say_and_the_exit_code_follows_from_it(self):
        lines, report = doctor(), doctor("--json")
        result = json.loads(report.out)
        self.assertEqual([line[6:].split(":")[0] for line in lines.lines[:-1]], [each["check"] for each in result["checks"]])
        self.assertEqual(report.code, EXIT_CODES[result["result"]])
        self.assertEqual(report.err + lines.err, "")
        for each in result["checks"]:
            self.assertEqual(each["fix"] == "", each["result"] in ("ok", "skip"), each)

    def test_the_documentation_lists_every_check(self):
        text = (ROOT / "docs" / "doctor.md").read_text()
        checks = {each["check"] for each in json.loads(doctor("--json").out)["checks"]}
        ranks = json.loads(doctor("--job", "--json").out)["checks"]
        for check in checks | {each["check"] for each in ranks}:
            self.assertIn(f"| `{check}` |", text)

    def test_few_open_files(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, 2000))
        report = doctor(preexec_fn=limit)
        self.expect(report, "open_files", "warn", "at most 200 ", "ulimit -n 2000")
        fix = report.of("open_files").rpartition("; fix: ")[2]
        mended = Report(run(["sh", "-c", f"{fix} && exec {PROGRAM} doctor"], preexec_fn=limit))
        self.expect(mended, "open_files", "ok", "at most 2000 ")

    def test_few_addresses(self):
        limited = doctor(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)))
        self.expect(limited, "memory", "warn", "4.00 GiB", "ulimit -v unlimited")

    def test_a_core_that_the_shell_is_bound_to(self):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            self.skipTest("one core cannot be taken away")
        self.expect(doctor(preexec_fn=lambda: os.sched_setaffinity(0, cores[:1])), "cores", "warn", "taskset -p -c 0-")

    def test_small_shared_memory(self):
        need_namespaces()
        report = shell('mount -t tmpfs -o size=4m tmpfs /dev/shm; exec "$1" doctor')
        self.expect(report, "shared_memory", "warn", "4.00 MiB of 4.00 MiB", "mount -o remount,size=1g /dev/shm")
        mended = shell('mount -t tmpfs -o size=4m tmpfs /dev/shm; mount -o remount,size=1g /dev/shm; exec "$1" doctor')
        self.expect(mended, "shared_memory", "ok", "1.00 GiB of 1.00 GiB")

    def test_the_loopback_is_down(self):
        need_namespaces()
        report = shell('exec "$1" doctor')
        self.expect(report, "loopback", "fail", "ip link set lo up")
        self.expect(report, "mpirun", "fail", "ends with")
        mended = shell('ip link set lo up; exec "$1" doctor')
        self.expect(mended, "loopback", "ok")
        self.expect(mended, "interfaces", "ok", "only lo")
        self.expect(mended, "mpirun", "ok", "starts two processes")
        own = environment()
        for flag in ("OMPI_MCA_hwloc_base_binding_policy", "OMPI_MCA_rmaps_base_oversubscribe"):
            del own[flag]
        self.expect(doctor(env=own), "mpirun", "ok", "trainings want --bind-to none, --oversubscribe for more than ")

    def test_a_name_that_mpirun_does_not_take(self):
        need_namespaces()
        def of_host(name):
            return shell(f'hostname {name}; exec "$1" doctor', ("--uts",))
        self.expect(of_host("h" * 57 + "1"), "mpirun", "fail", "ends with ", "begins with 57", "--hostname NAME")
        self.expect(of_host("h" * 56 + "1"), "mpirun", "ok")

    def test_a_user_without_a_home_and_an_environment_without_a_path(self):
        own = {name: value for name, value in environment().items() if name not in ("HOME", "PATH")}
        report = doctor(env=own)
        self.expect(report, "mpirun", "fail", "it needs PATH", "export PATH=/usr/local/bin:/usr/bin:/bin")
        if os.geteuid() != 0:
            self.skipTest("only root can be a user whom nobody knows")

        def become_unknown():
            os.setgroups([])
            os.setgid(54321)
            os.setuid(54321)
        self.folder.chmod(0o777)
        own.update(TMPDIR=str(self.folder), PATH=os.environ["PATH"])
        report = doctor(env=own, cwd=self.folder, preexec_fn=become_unknown)
        self.expect(report, "mpirun", "fail", "it needs HOME", "export HOME=/nonexistent")
        mended = doctor(env={**own, "HOME": "/nonexistent"}, cwd=self.folder, preexec_fn=become_unknown)
        self.expect(mended, "mpirun", "ok")

    def test_an_interface_and_a_port_that_cannot_be_had(self):
        with socket.socket() as taken:
            taken.bind(("0.0.0.0", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            report = doctor(env=environment(LOCKSTEP_CONTROL_INTERFACE="eth99", LOCKSTEP_CONTROL_PORT=port))
        self.expect(report, "interfaces", "fail", "'eth99'")
        self.expect(report, "ports", "fail", f"LOCKSTEP_CONTROL_PORT is {port}: Address already in use", f"ss -ltnp 'sport = :{port}'")
        for wrong in ("0", "x", "65536", "-1"):
            self.expect(doctor(env=environment(LOCKSTEP_CONTROL_PORT=wrong)), "ports", "fail", "from 1 to 65535")

    def test_root_without_its_confirmation(self):
        if os.geteuid() != 0:
            self.skipTest("not root")
        self.expect(doctor(env=environment(OMPI_ALLOW_RUN_AS_ROOT="")), "root", "warn", "export OMPI_ALLOW_RUN_AS_ROOT=1")

    def test_no_mpirun_or_one_of_another_kind(self):
        self.expect(doctor(env=environment(PATH=str(self.folder))), "mpi", "fail", "no mpirun on PATH", "openmpi-bin")
        older = self.script("mpirun", 'echo "mpirun (Open MPI) 9.8.7"; echo "no slots" >&2; exit 3\n')
        report = doctor(env=environment(PATH=f"{older}:{os.environ['PATH']}"))
        self.expect(report, "mpi", "fail", "Open MPI 9.8.7")
        self.expect(report, "mpirun", "fail", "ends with 3:", "no slots")
        other = self.script("mpirun", 'echo "HYDRA build details:"\n')
        self.expect(doctor(env=environment(PATH=f"{other}:{os.environ['PATH']}")), "mpi", "fail", "not Open MPI's")

    def test_an_mpirun_that_hangs_fails_and_is_ended(self):
        stuck = self.script("mpirun", f"echo $$ >>{self.folder}/pids; exec sleep 1000\n")
        report = doctor(env=environment(PATH=f"{stuck}:{os.environ['PATH']}"))
        self.expect(report, "mpirun", "fail", "took longer than 12 s")
        self.expect(report, "mpi", "fail", "took longer than 8 s")
        pids = (self.folder / "pids").read_text().split()
        self.assertEqual(len(pids), 2)
        for pid in pids:
            self.assertTrue(self.gone(int(pid)), pid)

    def test_ending_the_command_ends_what_it_has_started(self):
        stuck = self.script("mpirun", f"echo $$ >{self.folder}/$$.pid; exec sleep 1000\n")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            running = Running([PROGRAM, "doctor"], environment(PATH=f"{stuck}:{os.environ['PATH']}"))
            self.addCleanup(running.end)
            waiting = 0
            while len(list(self.folder.glob("*.pid"))) < 2 and waiting < 1000:
                waiting += 1
                try:
                    running.process.wait(0.02)
                except subprocess.TimeoutExpired:
                    pass
            running.signal(number)
            running.finish()
            pids = [path.stem for path in self.folder.glob("*.pid")]
            self.assertEqual(len(pids), 2)
            for pid in pids:
                self.assertTrue(self.gone(int(pid)), pid)
                (self.folder / f"{pid}.pid").unlink()

    def test_a_full_and_a_read_only_disk(self):
        need_namespaces()
        full = shell('mount -t tmpfs -o size=1m tmpfs /mnt; exec "$1" doctor --out /mnt/runs/a')
        self.expect(full, "storage", "fail", "/mnt (tmpfs) has only 1.00 MiB free", "df -h /mnt")
        little = shell('mount -t tmpfs -o size=300m tmpfs /mnt; "$1" doctor --out /mnt/runs || code=$?; ls -A /mnt; exit $code')
        self.expect(little, "storage", "warn", "little room")
        self.assertEqual(little.lines[-1].split()[1], "ok,", "something stayed in /mnt")
        closed = shell('mount -t tmpfs -o size=2g,ro tmpfs /mnt; exec "$1" doctor --out /mnt/runs')
        self.expect(closed, "storage", "fail", "Read-only file system")

    def test_data_that_cannot_be_read(self):
        self.expect(doctor("--data-dir", str(self.folder / "none")), "data", "fail", "No such file", "ls -la ")
        self.expect(doctor("--data-dir", str(self.folder)), "data", "warn", "holds no files")
        digits = self.folder / "digits"
        subprocess.run([PROGRAM, "data", "digits", "--out", digits, "--train", "60", "--eval", "20"], stdout=subprocess.PIPE, check=True)
        config = str(ROOT / "configs" / "digits_quickstart.textproto")
        self.expect(doctor("--data-dir", str(digits)), "data", "ok", "4 files read")
        self.expect(doctor(config, "--data-dir", str(digits)), "data", "ok", "60 ")
        labels = next(digits.glob("train-labels*"))
        labels.write_bytes(labels.read_bytes()[:-7])
        self.expect(doctor(config, "--data-dir", str(digits)), "data", "fail", labels.name)
        labels.unlink()
        self.expect(doctor(config, "--data-dir", str(digits)), "data", "fail", labels.name)
        self.expect(doctor(str(self.folder / "no.textproto")), "data", "fail", "no.textproto")

    def test_overrides_of_no_config_are_refused(self):
        report = doctor("--set", "trainer.steps=1")
        self.assertEqual(report.code, 2)
        self.assertIn("--set replaces a field of CONFIG, which is missing", report.err)

    def test_help_lists_the_checks(self):
        text = doctor("--help").out
        for each in json.loads(doctor("--json").out)["checks"]:
            self.assertIn(f"\n  {each['check']} ", text)

    def test_under_mpirun_it_wants_job(self):
        report = Report(run(["mpirun", "-n", "1", PROGRAM, "doctor"]))
        self.assertEqual(report.code, 2)
        self.assertIn("lockstep doctor --job", report.err)


class Jobs(Doctor):
    def job(self, *ranks):
        """Each of `ranks` is the program and arguments of one."""
        command = ["mpirun"]
        for rank in ranks:
            command += [*([":"] if len(command) > 1 else []), "-n", "1", *rank]
        return Report(run(command))

    def test_ranks_that_are_alike(self):
        folder = self.folder / "runs" / "a"
        rank = (PROGRAM, "doctor", "--job", "--out", str(folder))
        report = self.job(rank, rank, rank)
        self.expect(report, "ranks", "ok", "3: 3 on ")
        for check in ("programs", "mpi_libraries", "arithmetic", "clocks"):
            self.expect(report, check, "ok")
        self.expect(report, "shared_folder", "ok", str(folder))
        self.assertFalse(folder.parent.exists())
        self.assertRegex(report.of("pairs"), "3 connected: median latency .* between rank [0-2] on .* and rank [0-2]")
        self.assertRegex(report.of("links"), r"within .*bit/s \(rank [01] to [01]\); the slowest link")
        self.assertRegex(report.of("all_reduce"), r"MiB in .* over (shared memory|MPI): .*bit/s by rank")

    def test_json_is_one_object(self):
        report = self.job(*[(PROGRAM, "doctor", "--job", "--json")] * 2)
        result = json.loads(report.out)
        self.assertEqual(report.code, EXIT_CODES[result["result"]])

    def test_unequal_programs(self):
        other = self.folder / "lockstep"
        shutil.copy(PROGRAM, other)
        with open(other, "ab") as file:
            file.write(b"x")
        report = self.job((PROGRAM, "doctor", "--job"), (str(other), "doctor", "--job"))
        self.expect(report, "programs", "fail", "rank 1 on ", str(other), f"cp {os.path.realpath(PROGRAM)} {other}")

    def test_a_folder_that_is_not_shared(self):
        folders = [self.folder / name for name in ("a", "b")]
        for folder in folders:
            folder.mkdir()
        report = self.job(*[(PROGRAM, "doctor", "--job", "--out", str(folder)) for folder in folders])
        self.expect(report, "shared_folder", "fail", "rank 1 on host", "does not see what rank 0")
        for folder in folders:
            self.assertEqual(list(folder.iterdir()), [])

    def test_a_folder_that_cannot_be_made(self):
        (self.folder / "file").write_text("")
        report = self.job(*[(PROGRAM, "doctor", "--job", "--out", str(self.folder / "file" / "runs"))] * 2)
        self.expect(report, "shared_folder", "fail", "cannot make the folder")

    def test_a_host_whose_ranks_cannot_share_memory(self):
        need_namespaces()
        report = shell('mount -t tmpfs -o size=256k tmpfs /dev/shm; exec mpirun -n 2 "$1" doctor --job', ("--mount",))
        if "MPI_INIT has failed" in report.err + report.out:
            self.skipTest("without shared memory Open MPI finds no way between processes of this host")
        self.expect(report, "all_reduce", "warn", "over MPI", "the ranks cannot share memory", "/dev/shm")
        self.assertIn("warn  shared_memory: on ", report.out)

    def test_what_is_in_the_folder_stays(self):
        folder = self.folder / "runs"
        folder.mkdir()
        (folder / "mine").write_text("x")
        rank = (PROGRAM, "doctor", "--job", "--out", str(folder))
        self.expect(self.job(rank, rank), "shared_folder", "ok")
        self.assertEqual([path.name for path in folder.iterdir()], ["mine"])

    def test_what_is_wrong_on_a_host_is_said_with_its_name(self):
        report = Report(run(["mpirun", "-n", "2", PROGRAM, "doctor", "--job"],
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))))
        line = next(line for line in report.lines if " open_files: " in line)
        self.assertTrue(line.startswith("warn  open_files: on "), line)
        self.assertEqual(sum(" open_files: " in line for line in report.lines), 1)

    def test_ranks_that_were_asked_for_different_things(self):
        report = self.job((PROGRAM, "doctor", "--job"), (PROGRAM, "doctor", "--job", "--out", str(self.folder)))
        self.assertEqual(report.code, 2)
        self.assertIn("--out: rank 1 has a folder", report.err)

    def test_a_single_process(self):
        report = doctor("--job", "--out", str(self.folder))
        self.expect(report, "ranks", "ok", "1: 1 on ")
        self.expect(report, "pairs", "skip")
        self.expect(report, "shared_folder", "ok")

    def test_lockstep_run_starts_it(self):
        report = Report(run([sys.executable, LAUNCHER, "--program", PROGRAM, "-n", "2", "--", "doctor", "--job"]))
        self.expect(report, "ranks", "ok", "2: 2 on ")


class TwoHosts(Doctor):
    @classmethod
    def setUpClass(cls):
        need_mpirun()
        up = cls.two_hosts("up")
        if up.returncode == 77:
            raise unittest.SkipTest(up.stderr.decode())
        cls.addClassCleanup(cls.two_hosts, "down")
        if up.returncode != 0:
            raise AssertionError(up.stderr.decode())

    @staticmethod
    def two_hosts(*arguments):
        return run([TWO_HOSTS, "--id", PAIR, *arguments])

    def job(self, ranks, *arguments):
        return Report(self.two_hosts("run", "-n", str(ranks), "--", PROGRAM, "doctor", "--job", *arguments))

    def test_each_link_stands_beside_what_its_interface_says(self):
        report = self.job(4)
        self.expect(report, "ranks", "ok", "4: 2 on host-a, 2 on host-b")
        self.assertIn("6 connected", report.of("pairs"))
        links = [line for line in report.lines if " links: " in line]
        self.assertEqual(len(links), 6)
        self.assertIn("by net0, which says 10 Gbit/s", links[0])
        self.assertIn("; the slowest link", links[0])
        self.assertEqual(sum("within host-" in line for line in links), 4)

    def test_a_throttled_link(self):
        self.addCleanup(self.two_hosts, "unthrottle")
        self.assertEqual(self.two_hosts("throttle", "200mbit").returncode, 0)
        report = self.job(2)
        self.expect(report, "links", "warn", "by net0, which says 10 Gbit/s", "ethtool net0")
        rate = float(report.of("links").split(" Mbit/s")[0].split()[-1])
        self.assertLess(rate, 200 * 1.2)
        self.assertGreater(rate, 20)

    def test_a_host_that_is_not_there(self):
        report = Report(self.two_hosts("on", "host-a", "--", sys.executable, LAUNCHER, "--program", PROGRAM, "-n", "2",
                                       "--host", "host-a,host-c", "--", "doctor", "--job"))
        self.assertEqual(report.code, 69, report.out + report.err)
        self.assertIn("not every host could be reached", report.err)


if __name__ == "__main__":
    main()
