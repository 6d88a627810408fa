#!/usr/bin/env python3
"""How jobs of lockstep-run end, stop and restart, with a scripted mpirun, which writes what a real one wrote."""

import json
import os
import signal
import time

from support import LATER_S, LOST, TRAIN, ScriptedCase, main, transcript
from lockstep_run import surroundings  # found by support

NO_SIGNAL = ("lockstep-run: rank 1 on host host-b was lost; mpirun does not say by which signal. If nobody sent one, that host "
             "usually ran out of memory: see its dmesg\n")


class ExitCodes(ScriptedCase):
    def ends(self, script, code, said, *arguments):
        """Whether the job ends with `code` and lockstep-run says exactly `said`."""
        ran = self.run_scripts([script], *(arguments or ("-n", "2", *TRAIN)))
        self.assertEqual((ran.code, ran.err), (code, said))

    def test_success_is_silent(self):
        ran = self.run_scripts([[["print", '{"steps":1}\n'], ["exit", 0]]], *TRAIN)
        self.assertEqual((ran.code, ran.out, ran.err), (0, '{"steps":1}\n', ""))

    def test_codes_of_lockstep_pass(self):
        for code in (2, 65, 69, 70, 74, 200, 201):
            self.ends([["say", "lockstep: error: it is broken\n" + transcript("exited").replace("200", str(code))],
                       ["exit", code]], code, "lockstep: error: it is broken\n")
            (self.bin / "call-0.json").unlink()

    def test_the_decision_counts_more_than_mpiruns_code(self):
        self.ends([["say", LOST + transcript("killed")], ["exit", 137]], 200, LOST +
                  "lockstep-run: rank 3 on host host-b (process 29427) was killed by signal 9 (SIGKILL)\n")
        (self.bin / "call-0.json").unlink()
        hang = "lockstep: the job ends with exit code 201 (deadlock: rank 0 on host-a)\n"
        self.ends([["say", hang], ["exit", 1]], 201, hang)

    def test_a_killed_rank_is_named(self):
        self.ends([["say", transcript("killed")], ["exit", 137]], 200,
                  "lockstep-run: rank 3 on host host-b (process 29427) was killed by signal 9 (SIGKILL)\n")

    def test_a_lost_rank_that_mpirun_does_not_name_is_named(self):
        other = transcript("exited").replace(",1],1]", ",1],0]")
        self.ends([["say", LOST + other], ["exit", 200]], 200, LOST + NO_SIGNAL)

    def test_a_lost_rank_that_ended_by_itself_is_named(self):
        self.ends([["say", LOST + transcript("exited").replace("200", "3")], ["exit", 3]], 200,
                  LOST + "lockstep-run: rank 1 ended first, with exit code 3\n")

    def test_a_crash_keeps_its_backtrace(self):
        ran = self.run_scripts([[["say", transcript("killed_here")], ["exit", 139]]], *TRAIN)
        self.assertEqual(ran.code, 200)
        self.assertIn("[vm:30487] Failing at address: (nil)\n", ran.err)
        self.assertTrue(ran.err.endswith(
            "*** End of error message ***\nlockstep-run: rank 1 on host vm was killed by signal 11 (SIGSEGV)\n"))

    def test_a_rank_that_says_nothing_is_named(self):
        self.ends([["say", transcript("exited")], ["exit", 200]], 200, "lockstep-run: rank 1 ended first, with exit code 200\n")

    def test_a_rank_that_mpirun_does_not_name_is_told_of(self):
        # As where ranks end as soon as they are started.
        rule = "-" * 74 + "\n"
        unnamed = rule + transcript("exited").split(rule)[1] + rule
        self.assertIn("Primary job", unnamed)
        self.ends([["say", unnamed], ["exit", 2]], 2, "lockstep-run: a rank ended first, with exit code 2; mpirun does not say which\n")

    def test_abort_is_summarised(self):
        self.ends([["say", transcript("aborted")], ["exit", 75]], 75, "lockstep-run: rank 1 ended first, with exit code 75\n")

    def test_a_rank_that_leaves_early_is_an_internal_error(self):
        self.ends([["say", transcript("left_early")], ["exit", 1]], 70,
                  "lockstep-run: rank 0 on host vm ended before the job was done\n")

    def test_a_lost_host_is_named(self):
        self.ends([["say", transcript("host_lost")], ["exit", 205]], 200, "lockstep-run: the connection to host host-b was lost\n")

    def test_what_cannot_begin(self):
        for name, exit_code, code, said in (
                ("few_slots", 1, 2, "5 processes"),
                ("refused_root", 1, 2, "set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"),
                ("no_program", 132, 69, "there is no program /nope/lockstep on host host-a"),
                ("no_interface", 1, 2, "there is no network interface eth9 on this host"),
                ("no_interface_of_mpi", 200, 2, "there is no network interface eth9 on host host-a"),
                ("bad_option", 1, 2, "mpirun has no option --nonsense (--mpi-args)"),
                ("bad_hostfile", 1, 2, "two.hosts: The slots parameter is less than 0: slots=-1"),
                ("no_hostfile", 1, 2, "cannot read the hostfile nope.hosts"),
                ("unreadable_hostfile", 1, 2, "two.hosts:1: mpirun cannot read this line"),
                ("no_rsh_agent", 243, 69, "(ssh : rsh)"),
                ("no_ssh", 255, 69, "`ssh HOST true`")):
            with self.subTest(name):
                ran = self.run_scripts([[["say", transcript(name)], ["exit", exit_code]]], *TRAIN)
                self.assertEqual(ran.code, code)
                ours = [line for line in ran.err.splitlines() if line.startswith("lockstep-run: ")]
                self.assertEqual(len(ours), 1, ran.err)
                self.assertIn("lockstep-run: error: ", ours[0])
                self.assertIn(said, ours[0])
                (self.bin / "call-0.json").unlink()

    def test_sshs_own_message_stays(self):
        ran = self.run_scripts([[["say", transcript("no_ssh")], ["exit", 255]]], *TRAIN)
        self.assertTrue(ran.err.startswith("ssh: connect to host 127.0.0.9 port 22: Connection refused\r\nlockstep-run: error:"))

    def test_ranks_that_cannot_reach_each_other(self):
        block = transcript("no_interface_of_mpi")
        block = block[block.index("-" * 74 + "\nAt least one pair"):]
        ran = self.run_scripts([[["say", block], ["exit", 200]]], *TRAIN)
        self.assertEqual(ran.code, 69)
        self.assertIn("ranks on host-b and host-a cannot reach each other", ran.err)

    def test_a_crash_by_a_long_name_is_explained(self):
        long = "h" * 57
        why = surroundings.why_crashed(signal.SIGABRT, [long + ".cluster"])
        self.ends([["die", signal.SIGABRT]], 69, f"lockstep-run: error: {why}\n", "--host", f"a,{long}.cluster", *TRAIN)
        (self.bin / "call-0.json").unlink()
        self.assertIn("57", surroundings.why_crashed(signal.SIGABRT, ["a", long]))
        for number, name in ((signal.SIGSEGV, long), (signal.SIGABRT, "h" * 56 + ".cluster"),
                             (signal.SIGABRT, "node1" + long)):
            self.assertIsNone(surroundings.why_crashed(number, [name]))

    def test_mpirun_killed_from_outside(self):
        ran = self.run_scripts([[["child", ""], ["die", int(signal.SIGKILL)]]], *TRAIN)
        self.assertEqual((ran.code, ran.err), (137, "lockstep-run: mpirun was killed by signal 9 (SIGKILL)\n"))
        self.assertTrue(self.gone((self.bin / "child").read_text()))


class Recovering(ScriptedCase):
    """Under --enable-recovery mpirun goes on after losses, says little of them, and passes on no exit code."""

    ASYNC = ("-n", "4", "--", "train", "c.textproto", "--layout", "dp=3,sync=ps,mode=async")
    ENDED = "[vm:1] PMIX ERROR: BAD-PARAM in file ../../../src/event/pmix_event_notification.c at line 1033\n"
    CONNECTED = "lockstep: all processes are connected\n"

    def ends(self, script, code, err):
        ran = self.run_scripts([script], *self.ASYNC)
        self.assertEqual((ran.code, ran.err), (code, err))
        self.assertIn("--enable-recovery", self.call(0))

    @staticmethod
    def done(code):
        return f"lockstep: the job ends with exit code {code} (done)\n"

    def test_the_code_is_lockstep_s_own(self):
        for code in (0, 70, 143):
            self.ends([["say", self.CONNECTED + "one\n" + self.done(code)], ["exit", 0]], code, "one\n")
            (self.bin / "call-0.json").unlink()

    def test_losses_go_by(self):
        self.ends([["say", self.CONNECTED + self.ENDED + "lockstep: warning: rank 2 was lost\n" + self.done(0)], ["exit", 0]], 0,
                  "lockstep: warning: rank 2 was lost\n")

    def test_a_job_that_ends_without_a_word_is_lost(self):
        self.ends([["say", self.CONNECTED], ["exit", 0]], 200,
                  "lockstep-run: the job ended without a message: it lost a rank that it needs\n")

    def test_a_loss_before_ranks_know_each_other_ends_the_job(self):
        self.ends([["child", ""], ["say", self.ENDED], ["wait", "SIGINT"]], 200,
                  "lockstep-run: a rank ended before all were connected\n")
        self.assertTrue(self.gone((self.bin / "child").read_text()))

    def test_a_host_that_is_lost_is_no_mistake_of_the_start(self):
        silent = "lockstep: the job ends with exit code 201 (silent: rank 1 on host-b)\n"
        ran = self.run_scripts([[["say", self.CONNECTED + silent + transcript("no_ssh")], ["exit", 1]]], *self.ASYNC)
        self.assertEqual(ran.code, 201)
        self.assertNotIn("lockstep-run: error", ran.err)

    def test_a_config_says_that_nobody_waits(self):
        config = self.folder / "async.textproto"
        for mode, recovers in (("ASYNC", True), ("SYNC", False)):
            config.write_text("# ASYNC\n")
            (self.bin / "lockstep").write_text(f"#!/bin/sh\necho 'parallel {{ mode: {mode} }}'\n")
            ran = self.run_scripts([], "--dry-run", "--", "train", "--out", str(self.folder / "c.textproto"), str(config))
            self.assertEqual((ran.code, "--enable-recovery" in ran.out), (0, recovers), mode)


class Stopping(ScriptedCase):
    def test_the_first_signal_becomes_sigusr1(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143), (signal.SIGUSR1, 143)):
            with self.subTest(number):
                running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["say", transcript("stopped")], ["exit", 143]]],
                                     *TRAIN)
                running.wait_for("ready")
                running.signal(number)
                self.assertEqual(running.finish(), code)
                self.assertIn("lockstep-run: stopping; the ranks finish their step and save", running.err)
                self.assertIn("saved o/checkpoints/step-00040174\n", running.err)
                self.assertTrue(running.err.endswith("--resume auto\n"), running.err)
                self.assertNotIn("Forwarding", running.err)
                (self.bin / "call-0.json").unlink()

    def test_a_run_that_was_done_anyway_succeeds(self):
        running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["exit", 0]]], *TRAIN)
        running.wait_for("ready")
        running.signal(signal.SIGTERM)
        self.assertEqual(running.finish(), 0)

    def test_a_second_signal_ends_the_job(self):
        running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["say", "again\n"], ["wait", "SIGINT"], ["exit", 1]]],
                             *TRAIN)
        running.wait_for("ready")
        running.signal(signal.SIGINT)
        running.wait_for("again")
        time.sleep(LATER_S)
        running.signal(signal.SIGINT)
        self.assertEqual(running.finish(), 202)
        self.assertIn("the job was ended at once", running.err)

    def test_signals_of_one_moment_are_one_request(self):
        # As `timeout` sends them.
        for numbers in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGHUP, signal.SIGTERM), (signal.SIGINT, signal.SIGINT)):
            with self.subTest(numbers):
                running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["say", "asked\n"], ["exit", 143]]], *TRAIN)
                running.wait_for("ready")
                for number in numbers:
                    running.signal(number)
                    time.sleep(0.002)
                self.assertEqual(running.finish(), 130 if numbers[0] == signal.SIGINT else 143, running.err)
                (self.bin / "call-0.json").unlink()

    def test_who_is_ended_before_all_is_saved_says_so(self):
        told = "lockstep: was told to end (SIGTERM); nothing was saved\n"
        for said, code in ((told, 143), ("", 1)):
            with self.subTest(code):
                running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["say", said], ["exit", code]]], *TRAIN)
                running.wait_for("ready")
                running.signal(signal.SIGTERM)
                self.assertEqual(running.finish(), 202, running.err)
                (self.bin / "call-0.json").unlink()

    def test_a_request_before_a_signal_is_the_same_request(self):
        running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["say", "asked\n"], ["wait", "SIGINT"], ["exit", 1]]], *TRAIN)
        running.wait_for("ready")
        running.signal(signal.SIGUSR1)
        running.wait_for("asked")
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1):
            running.signal(number)
            time.sleep(LATER_S)
        self.assertIsNone(running.process.poll())
        running.signal(signal.SIGINT)
        self.assertEqual(running.finish(), 202)
        self.assertEqual(running.err.count("a second signal ends them"), 2)

    def test_nothing_survives_an_mpirun_that_does_not_obey(self):
        running = self.start([[["child", ""], ["say", "ready\n"], ["wait", "SIGUSR1"], ["say", "again\n"], ["wait", "SIGINT"],
                               ["wait", "SIGHUP"]]], *TRAIN)
        running.wait_for("ready")
        running.signal(signal.SIGTERM)
        running.wait_for("again")
        time.sleep(LATER_S)
        running.signal(signal.SIGTERM)
        self.assertEqual(running.finish(), 202)
        self.assertTrue(self.gone((self.bin / "child").read_text()))

    def test_a_job_that_failed_is_ended_where_mpirun_hangs(self):
        running = self.run_scripts([[["child", ""], ["say", LOST], ["wait", "SIGINT"]]], *TRAIN)
        self.assertEqual((running.code, running.err), (200, LOST + NO_SIGNAL))
        self.assertTrue(self.gone((self.bin / "child").read_text()))

    def test_stops_in_order_where_stderr_is_gone(self):
        for name, make in (("pipe", os.pipe), ("terminal", os.openpty)):
            with self.subTest(name):
                try:
                    reader, writer = make()
                except OSError as error:
                    self.skipTest(f"this system gives no {name}: {error}")
                running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["say", "saved\n"], ["print", "stopped\n"],
                                       ["exit", 143]]], *TRAIN, stderr=writer)
                os.close(writer)
                while b"ready" not in os.read(reader, 100):
                    pass
                os.close(reader)
                running.signal(signal.SIGTERM)
                self.assertEqual((running.finish(), running.out), (143, "stopped\n"))
                (self.bin / "call-0.json").unlink()

    def test_a_refusal_keeps_its_code_where_stderr_is_gone(self):
        reader, writer = os.pipe()
        os.close(reader)
        running = self.start([], "-n", "0", *TRAIN, stderr=writer)
        os.close(writer)
        self.assertEqual(running.finish(), 2)

    def test_stops_in_order_where_nobody_reads_stderr(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        # More than all pipes on the way hold: the scripted mpirun waits for the signal only once lockstep-run has read it.
        running = self.start([[["say", "x" * 1000000], ["wait", "SIGUSR1"], ["print", "stopped\n"], ["exit", 143]]], *TRAIN,
                             stderr=writer)
        os.close(writer)
        self.wait_for_file(self.bin / "call-0.json")
        running.signal(signal.SIGTERM)
        self.assertEqual((running.finish(), running.out), (143, "stopped\n"))

    def test_ranks_that_sigusr1_kills_had_not_begun(self):
        killed = transcript("killed").replace("signal 9 (Killed)", "signal 10 (User defined signal 1)")
        running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["say", killed], ["exit", 138]]], *TRAIN)
        running.wait_for("ready")
        running.signal(signal.SIGTERM)
        self.assertEqual(running.finish(), 143)
        self.assertIn("stopped before the training began", running.err)

    def test_mpirun_ends_with_its_launcher(self):
        running = self.start([[["child", ""], ["say", "ready\n"], ["wait", "SIGINT"], ["exit", 1]]], *TRAIN)
        running.wait_for("ready")
        pid = json.loads((self.bin / "call-0.json").read_text())["pid"]
        self.addCleanup(lambda: os.kill(int((self.bin / "child").read_text()), signal.SIGKILL))
        running.signal(signal.SIGKILL)
        running.process.wait()
        self.assertTrue(self.gone(pid))


class Restarting(ScriptedCase):
    KILLED = [["say", LOST + transcript("killed")], ["exit", 137]]
    DONE = [["exit", 0]]

    def restart(self, scripts, *options, out="runs/a", train=()):
        return self.run_scripts(scripts, "-n", "4", "--restart-delay", "0", *options, *TRAIN, "--out", out, *train)

    def checkpoint(self, step):
        folder = self.folder / "runs" / "a" / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)

    def test_goes_on_from_the_newest_checkpoint(self):
        for step in (5, 20, 100000000):
            self.checkpoint(step)
        (self.folder / "runs/a/checkpoints/step-00000030.tmp").mkdir()
        ran = self.restart([self.KILLED, self.DONE], "--max-restarts", "3", train=("--quiet",))
        self.assertEqual(ran.code, 0)
        self.assertIn("lockstep-run: restart 1 of 3 in 0 s, with 4 processes, from runs/a/checkpoints/step-100000000\n", ran.err)
        self.assertEqual(self.call(0)[-5:], ["train", "c.textproto", "--out", "runs/a", "--quiet"])
        self.assertEqual(self.call(1)[-7:], ["train", "c.textproto", "--out", "runs/a", "--quiet", "--resume", "auto"])

    def test_replaces_another_resume(self):
        self.checkpoint(5)
        self.restart([self.KILLED, self.DONE], "--max-restarts", "1", train=("--resume", "other/run", "--quiet"))
        self.assertEqual(self.call(1)[-7:], ["--out", "runs/a", "--quiet", "--set", "checkpoint.resume_path=other/run",
                                             "--resume", "auto"])

    def test_begins_where_it_first_began_while_nothing_was_saved(self):
        for asked, config in ((("--resume=other/run",), ["--set", "checkpoint.resume_path=other/run"]),
                              (("--resume", "never"), ["--set", "checkpoint.resume_automatic=false"]),
                              (("--resume", "auto"), []), ((), [])):
            with self.subTest(asked):
                ran = self.restart([self.KILLED, self.KILLED, self.DONE], "--max-restarts", "2", train=asked)
                for call in (1, 2):
                    arguments = self.call(call)
                    self.assertEqual(arguments[arguments.index("runs/a") + 1:], [*config, "--resume", "auto"])
                self.assertIn("no checkpoint in runs/a yet\n", ran.err)
                for call in range(3):
                    (self.bin / f"call-{call}.json").unlink()

    def test_gives_up_with_the_last_code(self):
        hang = [["say", "lockstep: the job ends with exit code 201 (stuck: rank 0 on host-a)\n"], ["exit", 201]]
        ran = self.restart([self.KILLED, self.KILLED, hang], "--max-restarts", "2")
        self.assertEqual(ran.code, 201)
        self.assertIn("restart 1 of 2", ran.err)
        self.assertIn("restart 2 of 2", ran.err)
        self.assertTrue(ran.err.endswith("lockstep-run: gives up after 2 restarts\n"))
        self.assertEqual(self.calls(), 3)

    def test_what_would_fail_again_is_not_restarted(self):
        for code in (0, 1, 2, 65, 69, 70, 74, 130, 143):
            ran = self.restart([[["exit", code]]], "--max-restarts", "3")
            self.assertEqual((ran.code, self.calls(), ran.err), (code, 1, ""))
            (self.bin / "call-0.json").unlink()

    def test_nothing_is_restarted_after_a_stop(self):
        running = self.start([[["say", "ready\n"], ["wait", "SIGUSR1"], ["say", LOST], ["exit", 200]]], "--max-restarts", "3",
                             *TRAIN, "--out", "runs/a")
        running.wait_for("ready")
        running.signal(signal.SIGTERM)
        self.assertEqual(running.finish(), 200)
        self.assertEqual(self.calls(), 1)

    def test_a_stop_before_the_restart(self):
        running = self.start([self.KILLED], "--max-restarts", "3", "--restart-delay", "60", *TRAIN, "--out", "runs/a")
        running.wait_for("restart 1 of 3 in 60 s")
        running.signal(signal.SIGINT)
        self.assertEqual(running.finish(), 130)

    def workers(self, scripts, *options):
        """Those of each call, with the hosts that are named."""
        self.run_scripts(scripts, "--restart-delay", "0", "--max-restarts", "3", *options, *TRAIN, "--out", "runs/a")
        calls = []
        for number in range(self.calls()):
            call = self.call(number)
            calls.append((int(call[call.index("-n") + 1]), call[call.index("--host") + 1] if "--host" in call else None))
        return calls

    def test_a_number_of_workers(self):
        self.assertEqual(self.workers([self.KILLED, self.DONE], "-n", "4", "--restart-processes", "2"), [(4, None), (2, None)])

    def test_surviving_workers(self):
        self.assertEqual(self.workers([self.KILLED, self.KILLED, self.DONE], "-n", "4", "--restart-processes", "surviving"),
                         [(4, None), (3, None), (2, None)])

    def test_no_survivor_is_no_restart(self):
        ran = self.restart([self.KILLED], "--max-restarts", "3", "-n", "1", "--restart-processes", "surviving")
        self.assertEqual(ran.code, 200)
        self.assertTrue(ran.err.endswith("lockstep-run: gives up: no process is left\n"))

    def test_a_silent_host_loses_its_slots(self):
        silent = [["say", "lockstep: the job ends with exit code 201 (silent: rank 3 on host-b)\n"], ["exit", 201]]
        hostfile = self.folder / "hosts"
        hostfile.write_text("host-a slots=2  # first\n\nhost-b.example.org slots=3\nhost-c slots=2\n")
        self.assertEqual(self.workers([silent, self.DONE], "-n", "6", "--hostfile", str(hostfile), "--restart-processes",
                                      "surviving"), [(6, None), (3, "host-a:2,host-c:2")])

    def test_a_lost_host_loses_its_slots(self):
        gone = [["say", transcript("host_lost")], ["exit", 205]]
        self.assertEqual(self.workers([gone, self.DONE], "-n", "3", "--host", "host-b:2,host-a:2", "--restart-processes",
                                      "surviving"), [(3, "host-b:2,host-a:2"), (1, "host-a:2")])

    def test_hosts_that_are_addresses_are_told_apart(self):
        gone = [["say", transcript("host_lost").replace("host-b", "10.0.0.2")], ["exit", 205]]
        self.assertEqual(self.workers([gone, self.DONE], "-n", "6", "--host", "10.0.0.1:1,10.0.0.2:2,10.0.0.3:3", "--restart-processes",
                                      "surviving"), [(6, "10.0.0.1:1,10.0.0.2:2,10.0.0.3:3"), (4, "10.0.0.1:1,10.0.0.3:3")])

    def test_a_whole_name_counts_more_than_its_beginning(self):
        gone = [["say", transcript("host_lost").replace("host-b", "a.two")], ["exit", 205]]
        self.assertEqual(self.workers([gone, self.DONE], "-n", "3", "--host", "a.one:1,a.two:2", "--restart-processes",
                                      "surviving"), [(3, "a.one:1,a.two:2"), (1, "a.one:1")])

    def test_a_killed_rank_costs_its_host_nothing(self):
        self.assertEqual(self.workers([self.KILLED, self.DONE], "-n", "4", "--host", "host-a:2,host-b:2", "--restart-processes",
                                      "surviving"), [(4, "host-a:2,host-b:2"), (3, "host-a:2,host-b:2")])


if __name__ == "__main__":
    main()
