#!/usr/bin/env python3
"""The command line of lockstep-run, and the mpirun command that it becomes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from support import ROOT, TRAIN, ScriptedCase, main, transcript
from lockstep_run import near_gpu, surroundings  # found by support


class NearGpu(unittest.TestCase):
    GPUS = [("0", "GPU-aaaa", "0000:17:00.0"), ("1", "GPU-bbbb", "0000:98:00.0")]

    def test_the_gpu_of_a_rank_is_the_one_that_lockstep_takes(self):
        bus = near_gpu.bus_of_rank
        self.assertEqual(bus(self.GPUS, None, 1), "0000:98:00.0")
        self.assertEqual(bus(self.GPUS, "1", 1), "0000:98:00.0")      # the only one that it sees
        self.assertEqual(bus(self.GPUS, "1,0", 1), "0000:17:00.0")
        self.assertEqual(bus(self.GPUS, "GPU-bb", 0), "0000:98:00.0")
        # More ranks than GPUs (--allow-shared-gpu): one after the other, again.
        self.assertEqual([bus(self.GPUS, None, rank) for rank in (2, 3)], ["0000:17:00.0", "0000:98:00.0"])
        # What CUDA sees ends before the first entry that it does not know.
        self.assertEqual([bus(self.GPUS, "1,7,0", rank) for rank in (0, 1)], ["0000:98:00.0"] * 2)
        for visible in ("", "7", "-1,0", ",0", "GPU-c"):
            self.assertIsNone(bus(self.GPUS, visible, 0))
        self.assertIsNone(bus([], None, 0))

    def test_cores_are_those_that_the_system_names(self):
        with tempfile.TemporaryDirectory() as devices:
            os.mkdir(f"{devices}/0000:17:00.0")
            with open(f"{devices}/0000:17:00.0/local_cpulist", "w", encoding="ascii") as file:
                file.write("0-3,8,10-11\n")
            self.assertEqual(near_gpu.cores_near("0000:17:00.0", devices), {0, 1, 2, 3, 8, 10, 11})
            self.assertEqual(near_gpu.cores_near("0000:98:00.0", devices), set())

    def run_near(self, command, text="0, GPU-a, 00000000:17:00.0", **environment):
        """Runs `command` by near_gpu with an nvidia-smi that says `text`, where the GPU at 17:00 is near core `self.core`."""
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/nvidia-smi", "w", encoding="ascii") as file:
                file.write(f"#!/bin/sh\necho '{text}'\n")
            os.chmod(f"{folder}/nvidia-smi", 0o755)
            self.core = max(os.sched_getaffinity(0))
            os.mkdir(f"{folder}/0000:17:00.0")
            with open(f"{folder}/0000:17:00.0/local_cpulist", "w", encoding="ascii") as file:
                file.write(f"{self.core}\n")
            inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "OMPI_", "SLURM_"))}
            script = f"import sys; sys.path.insert(0, {os.path.dirname(near_gpu.__file__)!r}); import near_gpu; " \
                     f"near_gpu.main({command!r}, {folder!r})"
            return subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                                  env={**inherited, "PATH": f"{folder}:{os.environ['PATH']}", **environment})

    ALLOWED = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)), os.environ['CUDA_DEVICE_ORDER'])"]

    def test_a_rank_runs_on_the_cores_that_are_near(self):
        for rank in ("0", "5"):
            ran = self.run_near(self.ALLOWED, OMPI_COMM_WORLD_LOCAL_RANK=rank)
            self.assertEqual((ran.stdout, ran.returncode), (f"[{self.core}] PCI_BUS_ID\n", 0), ran.stderr)

    def test_where_the_gpu_cannot_be_told_nothing_changes(self):
        every = sorted(os.sched_getaffinity(0))
        for text, environment in (("No devices were found", {}), ("0, GPU-a, 00000000:99:00.0", {}),
                                  ("0, GPU-a, 00000000:17:00.0", {"CUDA_VISIBLE_DEVICES": "3"}),
                                  ("0, GPU-a, 00000000:17:00.0", {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})):
            ran = self.run_near(self.ALLOWED, text, **environment)
            order = environment.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            self.assertEqual((ran.stdout, ran.returncode), (f"{every} {order}\n", 0), ran.stderr)

    def test_a_program_that_is_not_there_is_named(self):
        ran = self.run_near(["/nope/lockstep"])
        self.assertEqual((ran.returncode, ran.stderr),
                         (69, "lockstep-run: error: cannot start /nope/lockstep: No such file or directory\n"))


class Command(ScriptedCase):
    def command(self, *arguments, environment=None):
        ran = self.run_scripts([], "--dry-run", *arguments, environment=environment)
        self.assertEqual((ran.code, ran.err), (0, ""))
        return ran.out

    def test_dry_run_prints_and_starts_nothing(self):
        root = "--allow-run-as-root " if os.geteuid() == 0 else ""
        self.assertEqual(self.command("-n", "1", "--", "train", "c.textproto", "--out", "a b"),
                         f"# hosts: this host only\n# processes: 1\n# program: {self.bin}/lockstep\n"
                         f"{self.bin}/mpirun {root}-n 1 --bind-to none {self.bin}/lockstep train c.textproto --out 'a b'\n")
        more = self.command("--host", "a:2,b", "--bind", "gpu", "--log-dir", "logs", "--tail", "1", "--max-restarts", "2", *TRAIN,
                            "--out", "o")
        for line in ("# hosts: a (2 slots), b (1 slot)\n", "# processes: as many as the hosts have slots\n",
                     "# cores: those that are nearest to each rank's GPU\n", "# logs: logs/rank-N.log\n", "# shown: rank 1\n",
                     "# restarts: up to 2, after 2 s and more, with the same processes, from its first start: there is no "
                     "checkpoint in o yet\n",
                     f" --tag-output python3 {ROOT}/launcher/lockstep_run/near_gpu.py {self.bin}/lockstep train"):
            self.assertIn(line, more)
        self.assertFalse((self.folder / "logs").exists())
        self.assertEqual(self.calls(), 0)

    def test_oversubscribes_this_host_alone(self):
        many = "100000"
        self.assertIn("--oversubscribe --mca mpi_yield_when_idle 1", self.command("-n", many, *TRAIN))
        self.assertNotIn("--oversubscribe", self.command("-n", "1", *TRAIN))
        self.assertNotIn("--oversubscribe", self.command("-n", many, "--host", "a,b", *TRAIN))
        self.assertNotIn("--oversubscribe", self.command("-n", many, *TRAIN, environment={"SLURM_JOB_ID": "1"}))

    def test_finds_an_allocation_of_slurm(self):
        (self.bin / "scontrol").write_text('#!/bin/sh\n[ "$3" = "node[1-3]" ] && printf "node1\\nnode2\\nnode3\\n"\n')
        (self.bin / "scontrol").chmod(0o755)
        inside = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_TASKS_PER_NODE": "4(x2),3", "SLURM_NTASKS": "11"}
        found = self.command(*TRAIN, environment=inside)
        self.assertIn("# hosts: Slurm's job 12: node1 (4 slots), node2 (4 slots), node3 (3 slots)\n# processes: 11\n", found)
        self.assertIn(" -n 11 --bind-to none ", found)      # its mpirun asks Slurm for the hosts
        self.assertIn("# processes: 2\n", self.command("-n", "2", *TRAIN, environment=inside))
        self.assertIn("# hosts: a (2 slots)\n", self.command("--host", "a:2", *TRAIN, environment=inside))
        ran = self.run_scripts([[["exit", 0]]], *TRAIN, environment=inside)
        self.assertEqual((ran.code, ran.err), (0, "lockstep-run: runs in Slurm's job 12: node1 (4 slots), node2 (4 slots), node3 (3 slots)\n"))
        (self.bin / "call-0.json").unlink()
        self.refused("scontrol does not say which", *TRAIN, environment={**inside, "SLURM_JOB_NODELIST": "other"}, code=69)

    def test_does_without_scontrol(self):
        # As in a container within an allocation.
        inside = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_NTASKS": "11", "PATH": str(self.bin)}
        found = self.command(*TRAIN, environment=inside)
        self.assertIn("# hosts: Slurm's job 12 on node[1-3]\n# processes: 11\n", found)
        self.assertNotIn("--oversubscribe", found)

    def test_finds_a_job_of_kubernetes(self):
        hostfile = self.folder / "hostfile"
        hostfile.write_text("worker-0.job slots=2\nworker-1.job slots=2\n")
        inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "OMPI_MCA_orte_default_hostfile": str(hostfile)}
        found = self.command(*TRAIN, environment=inside)
        self.assertIn("# hosts: a job of Kubernetes' MPI Operator: worker-0.job (2 slots), worker-1.job (2 slots)\n# processes: 4\n",
                      found)
        self.assertNotIn("Kubernetes", self.command(*TRAIN, environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}))
        # The workers run elsewhere: what this host has says nothing of them, and connections are watched.
        hostfile.write_text("worker-0.job slots=100000\n")
        found = self.command(*TRAIN, environment={**inside, "LD_LIBRARY_PATH": "/x"})
        self.assertNotIn("--oversubscribe", found)
        for part in (" -n 100000 ", " --mca oob_tcp_keepalive_time 60 ", " -x LD_LIBRARY_PATH "):
            self.assertIn(part, found)

    def test_doctor_looks_at_this_host_and_at_the_job(self):
        lockstep = self.bin / "lockstep"
        for host, job, code in ((0, 0, 0), (1, 0, 1), (0, 69, 69), (69, 1, 69)):
            lockstep.write_text(f'#!/bin/sh\necho "host: $*"\nexit {host}\n')
            ran = self.run_scripts([[["print", "job\n"], ["exit", job]]], "-n", "2", "doctor", "--data-dir", "d")
            self.assertEqual((ran.code, ran.out), (code, "host: doctor --data-dir d\njob\n"))
            self.assertEqual(self.call(0)[-5:], [str(lockstep), "doctor", "--job", "--data-dir", "d"])
            (self.bin / "call-0.json").unlink()

    def doctor(self, host, job, *arguments):
        """Of a lockstep that does `host` in a shell, and a job that plays `job`."""
        (self.bin / "lockstep").write_text(f"#!/bin/sh\n{host}\n")
        return self.start([job], "-n", "2", "doctor", *arguments)

    def test_doctor_says_its_last_words(self):
        for _ in range(20):
            running = self.doctor("exit 0", [["say", transcript("killed")], ["exit", 137]])
            self.assertEqual(running.finish(), 200)
            self.assertEqual(running.err, "lockstep-run: rank 3 on host host-b (process 29427) was killed by signal 9 (SIGKILL)\n")
            (self.bin / "call-0.json").unlink()

    def test_doctor_ends_with_the_host_where_the_job_would_end_alike(self):
        for host, arguments, code in (("echo no such option >&2; exit 2", ("--nonsense",), 2), ("echo help; exit 0", ("--help",), 0),
                                      ("kill -SEGV $$", (), 139), ("exit 70", (), 70)):
            running = self.doctor(host, [["exit", 0]], *arguments)
            self.assertEqual((running.finish(), self.calls()), (code, 0), running.err)
        self.assertEqual(self.doctor("kill -9 $$", [["exit", 0]]).finish(), 137)

    def test_doctor_prints_one_object(self):
        def said(result, check):
            return json.dumps({"result": result, "checks": [{"check": check, "result": result}]})

        for first, second, worst in (("ok", "warn", "warn"), ("fail", "ok", "fail"), ("skip", "ok", "skip")):
            for options in ((), ("--log-dir", "logs")):
                (self.bin / "lockstep").write_text(f"#!/bin/sh\necho '{said(first, 'memory')}'\n")
                tag = "[1,0]<stdout>:" if options else ""
                ran = self.run_scripts([[["print", tag + said(second, "ranks") + "\n"], ["exit", 0]]], "-n", "2", *options, "doctor",
                                       "--json")
                self.assertEqual(ran.code, 0, ran.err)
                found = json.loads(ran.out)
                self.assertEqual((found["result"], [each["check"] for each in found["checks"]]), (worst, ["memory", "ranks"]))
                (self.bin / "call-0.json").unlink()
        running = self.doctor("echo '{}'", [["exit", 70]], "--json")
        self.assertEqual((running.finish(), running.out), (70, "{}\n"))

    def test_doctor_stops_at_once(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                running = self.doctor(f"sleep 1000 & echo $! > {self.bin}/child; echo ready >&2; wait", [["exit", 0]])
                running.wait_for("ready")
                running.signal(number)
                self.assertEqual((running.finish(), running.err), (code, "ready\nlockstep-run: stopping\n"))
                self.assertEqual(self.calls(), 0)
                self.assertTrue(self.gone((self.bin / "child").read_text().strip()))
                running = self.doctor("exit 0", [["say", "ready\n"], ["wait", "SIGTERM"], ["exit", 1]])
                running.wait_for("ready")
                running.signal(number)
                self.assertEqual((running.finish(), running.err), (code, "ready\nlockstep-run: stopping\n"))
                (self.bin / "call-0.json").unlink()

    def test_nothing_is_taken_from_a_loop_s_list(self):
        # As in: while read layout; do lockstep-run ...; done < list. A bare mpirun takes it all.
        (self.folder / "list").write_text("dp=1\ndp=2\n")
        with open(self.folder / "list", encoding="ascii") as layouts:
            running = self.start([[["repeat", ""], ["exit", 0]]], *TRAIN, stdin=layouts)
            self.assertEqual((running.finish(), running.out), (0, ""), running.err)
            self.assertEqual(layouts.read(), "dp=1\ndp=2\n")

    def test_what_mpirun_needs_is_set(self):
        for given, expected in (({}, "/usr/local/bin:/usr/bin:/bin"), ({"PATH": "/sbin"}, "/sbin")):
            environment = dict(given)
            surroundings.mend(environment)
            self.assertEqual(environment, {"PATH": expected})
        with mock.patch("pwd.getpwuid", side_effect=KeyError):
            for given, expected in (({}, "/nonexistent"), ({"HOME": ""}, "")):
                environment = dict(given)
                surroundings.mend(environment)
                self.assertEqual(environment["HOME"], expected)

    def test_a_program_of_ones_own_may_want_no_arguments(self):
        ran = self.run_scripts([[["exit", 0]]], "-n", "2", "--")
        self.assertEqual((ran.code, self.call(0)[-1]), (0, str(self.bin / "lockstep")))

    def test_environment_of_the_ranks(self):
        self.assertIn(" -x LOCKSTEP_CONTROL_PORT -x NCCL_DEBUG -x OMP_NUM_THREADS -x MINE -x OTHER=1 ", self.command(
            "-x", "MINE", "-x", "OTHER=1", *TRAIN,
            environment={"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO", "LOCKSTEP_CONTROL_PORT": "7000", "MINE": "x"}))

    def test_interface(self):
        command = self.command("--host", "a:2,b:2", "--interface", "eth0", "--rsh-agent", "ssh -q", *TRAIN,
                               environment={"LD_LIBRARY_PATH": "/x"})
        for part in (" --host a:2,b:2 ", " --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 ",
                     " -x LOCKSTEP_CONTROL_INTERFACE=eth0 -x NCCL_SOCKET_IFNAME==eth0 ", " -x LD_LIBRARY_PATH ",
                     " --mca plm_rsh_agent 'ssh -q' ", " --mca oob_tcp_keepalive_time 60 "):
            self.assertIn(part, command)

    def test_further_options_of_mpirun(self):
        self.assertIn(f" --map-by 'a b' {self.bin}/lockstep train", self.command("--mpi-args", "--map-by 'a b'", *TRAIN))

    def refused(self, said, *arguments, code=2, environment=None):
        ran = self.run_scripts([], *arguments, environment=environment)
        self.assertEqual(ran.code, code, ran.err)
        self.assertIn(said, ran.err)
        self.assertEqual(self.calls(), 0)

    def test_refusals(self):
        hosts = self.folder / "hosts"
        out = (*TRAIN, "--out", "o")
        self.refused("lockstep-run -n 4 -- train CONFIG", "-n", "2")
        self.refused("at least 1 process", "-n", "0", *TRAIN)
        self.refused("unrecognized arguments: --nonsense", "--nonsense", *TRAIN)
        self.refused("no such environment variable", "-x", "NOT_THERE", *TRAIN)
        self.refused("No closing quotation", "--mpi-args", "'", *TRAIN)
        self.refused("needs train with --out DIR", "--max-restarts", "1", *TRAIN)
        self.refused("needs train with --out DIR", "--max-restarts", "1", "--", "eval", "c", "--out", "o")
        self.refused("--restart-processes has no effect", "--restart-processes", "same", *out)
        self.refused("expected same, surviving", "--max-restarts", "1", "--restart-processes", "some", *out)
        for layout in ("dp=2", "pp=2, dp = 1"):
            self.refused("leave dp out", "--max-restarts", "1", "--restart-processes", "1", "-n", "2", *out, "--layout", layout)
        self.refused("needs -n", "--max-restarts", "1", "--restart-processes", "surviving", *out)
        self.refused("cannot read the hostfile", "--hostfile", str(hosts), *TRAIN)
        hosts.write_text("# nothing\n")
        self.refused("names no host", "--hostfile", str(hosts), *TRAIN)
        hosts.write_text("a slots=2\nb slots=-1\n")
        self.refused(f"{hosts}:2: expected 'HOST slots=N', found 'b slots=-1'", "--hostfile", str(hosts), *TRAIN)
        for text, said in (("a slots=2\r\nb\r\n", f"{hosts}:1: ends in a carriage return"),
                           ("a slots=2\n\r\n", f"{hosts}:2: ends in a carriage return"),
                           ("\ufeffa slots=2\n", f"{hosts}:1: begins with a byte-order mark"),
                           ("a\nb:2\n", f"{hosts}:2: expected 'HOST slots=N', found 'b:2'; write 'b slots=2'")):
            hosts.write_bytes(text.encode())
            self.refused(said, "--hostfile", str(hosts), *TRAIN)
        hosts.write_text("a slots=2\nb\n")
        self.refused("needs slots=N for every host", "--max-restarts", "1", "--restart-processes", "surviving", "--hostfile",
                     str(hosts), *out)
        self.refused("expected names or NAME:SLOTS", "--host", "a:0", *TRAIN)
        self.refused("the ranks of 2 processes are 0 to 1", "-n", "2", "--tail", "2", *TRAIN)
        self.refused("expected the number of a rank", "--tail", "-1", *TRAIN)
        self.refused("lockstep-run -n 4 -- train CONFIG", "--tail", "1")
        self.refused("invalid choice", "--bind", "core", *TRAIN)
        hosts.write_text("")
        self.refused("cannot be made", "--log-dir", str(hosts), *TRAIN)
        self.refused("there is no", "--log-dir", str(self.folder), "--tail", "1")
        self.refused("--dry-run has no effect", "--log-dir", str(self.folder), "--tail", "1", "--dry-run")
        self.refused("-n, --max-restarts has no effect", "--log-dir", "l", "--tail", "1", "-n", "2", "--max-restarts", "1")

    def test_missing_programs(self):
        self.refused("there is no such program", "--program", "/nope", *TRAIN, code=69)
        python = shutil.which("python3")
        self.assertTrue(python)
        with tempfile.TemporaryDirectory() as empty:
            self.refused("there is no mpirun on the PATH", *TRAIN, code=69, environment={"PATH": empty})


if __name__ == "__main__":
    main()
