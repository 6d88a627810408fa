#!/usr/bin/env python3
"""Disturbs real trainings from outside, with real signals, and measures how they react.

    scripts/measure_faults.py kills --runs 300          SIGKILL to a random rank at a random time
    scripts/measure_faults.py stops --runs 100          SIGSTOP in the same way
    scripts/measure_faults.py cuts --runs 100           the link between two hosts (scripts/two_hosts.sh) is cut
    scripts/measure_faults.py losses --runs 100         SIGKILL to a worker, without which the others continue (mode=async)
    scripts/measure_faults.py preemptions --runs 100    a stop request, as from a scheduler that preempts the job
    scripts/measure_faults.py clean --steps 10000       no fault: no alarm may be raised
    scripts/measure_faults.py overhead                  cost of watching, comparing and saving per step

Two ranks train LeNet on rendered digits, reproducibly, in steps of a few milliseconds, started by launcher/lockstep-run
(--no-launcher: by mpirun), and save in the background (--foreground-saves: while training waits). Every disturbed run is
resumed to its end and compared with an undisturbed one; with workers that do not wait (mode=stale), only the numbers of steps
are. With `losses` there are three workers and a server, and nothing is resumed. Exit code 1: a criterion was missed.

To disturb other layouts, with dedicated servers:

    scripts/measure_faults.py kills --layout dp=2,sync=ps,servers=2 --role server --resume-layout dp=2,sync=ps
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import sys
import time

from fault_jobs import Bench, INTERVAL, LAYOUT, ROOT, SILENT_S, TwoHosts, last_step, newest_checkpoint, ranks_of_job

# What a run that nobody disturbs must not say.
ALARM = re.compile(r"warning|error|alarm|silent|stuck|lost", re.IGNORECASE)


def disturb(bench, name, chance, duration, steps, send):
    """Starts a training, and calls send(job, ranks) at a random time of it. The job, and when that was; None where the
    training was complete before."""
    job = bench.job(name)
    while last_step(job.run) == 0 and job.process.poll() is None:
        time.sleep(0.005)
    time.sleep(chance.uniform(0, 0.8 * duration))
    ranks = ranks_of_job(job.marker)
    if job.process.poll() is not None or len(ranks) != bench.layout.ranks or last_step(job.run) >= steps:
        job.wait()
        return None
    since = time.monotonic()
    send(job, ranks)
    return job.wait(since, limit=120)


def steps_lost(row):
    """What is wrong about where a run went on. Only a save that is under way in the background may cost more than the
    interval: at most as much again, since the next one waits for it."""
    missed = []
    if row["resumed"] < row["complete_before"] or row["resumed"] != row["complete"]:
        missed.append(f"went on from step {row['resumed']}, although the checkpoint of {row['complete']} was complete")
    if row["lost"] > (2 if row["while_saving"] and not row["foreground_saves"] else 1) * INTERVAL:
        missed.append(f"lost {row['lost']} steps")
    return missed


def resume(bench, name, job, reference, row):
    """Goes on to the end; adds what became of the bits."""
    reached = last_step(job.run)
    row["complete"] = newest_checkpoint(job.run)
    row["foreground_saves"] = bench.options.foreground_saves
    row["while_saving"] = row["complete"] < reached // INTERVAL * INTERVAL
    resumed = bench.job(name, "--resume", "auto", layout=bench.resume_layout).wait()
    found = re.search(r"resumed after step (\d+)", resumed.err)
    row["reached"] = reached
    row["resumed"] = int(found[1]) if found else 0
    row["lost"] = reached - row["resumed"]
    row["orphans"] = job.orphans + resumed.orphans
    compared = "params_hash" if bench.layout.has_bits and bench.resume_layout.has_bits else "steps"
    row["identical"] = resumed.code == 0 and resumed.report()[compared] == reference[compared]
    if resumed.code != 0:
        row["resume_error"] = f"exit code {resumed.code}: {resumed.err[-500:]}"


def measured_runs(options, steps, send, judge):
    """Runs that are disturbed by send(), as rows that judge() has completed."""
    bench = Bench(options, steps)
    chance = random.Random(options.seed)
    reference, duration = bench.reference()
    rows = []
    while len(rows) < options.runs:
        name = f"run-{len(rows) + 1:03}"
        row = {}
        job = disturb(bench, name, chance, duration, steps, lambda job, ranks: row.update(
            complete_before=newest_checkpoint(job.run), **send(bench, job, ranks, chance)))
        if job is None:
            bench.remove(name)                              # it was over too soon: once more
            continue
        row.update(run=len(rows) + 1, seconds=job.seconds, code=job.code)
        row["stderr"] = job.err
        if getattr(options, "hosts", None):
            options.hosts.do("restore")
        resume(bench, name, job, reference, row)
        row["missed"] = judge(row)
        rows.append(row)
        if not row["missed"] and not options.keep:
            bench.remove(name)
        if not options.quiet:
            print(f"{name}: ended after {row['seconds']:.2f} s with {row['code']}, lost {row['lost']} steps"
                  + (": MISSED " + ", ".join(row["missed"]) if row["missed"] else ""), file=sys.stderr, flush=True)
    if not any(row["missed"] for row in rows) and not options.keep:
        bench.remove()
    else:
        print(f"runs are kept in {bench.folder}", file=sys.stderr)
    return rows


def common_criteria(row):
    missed = []
    if not row["identical"]:
        missed.append("other bits" if "resume_error" not in row else row["resume_error"])
    if row["orphans"]:
        missed.append(f"{row['orphans']} orphans")
    return missed


def unnamed(row, patterns):
    """What stderr does not tell. Without lockstep-run it is mpirun that names the signal, in words of its own."""
    return [f"{what} not named" for what, pattern in patterns.items() if not re.search(pattern, row["stderr"])]


def summarize(what, rows, limit):
    seconds = sorted(row["seconds"] for row in rows)
    missed = [row for row in rows if row["missed"]]
    summary = {"what": what, "runs": len(rows), "missed": len(missed), "seconds_median": statistics.median(seconds),
               "seconds_p99": seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))], "seconds_max": seconds[-1],
               "seconds_limit": limit, "steps_lost_max": max(row["lost"] for row in rows),
               "while_saving": sum(row["while_saving"] for row in rows),
               "steps_lost_max_not_saving": max((row["lost"] for row in rows if not row["while_saving"]), default=0),
               "steps_lost_mean": statistics.mean(row["lost"] for row in rows),
               "named": sum(row.get("named", True) for row in rows), "identical": sum(row["identical"] for row in rows),
               "orphans": sum(row["orphans"] for row in rows), "exit_codes": sorted({str(row["code"]) for row in rows}),
               "failures": [{key: row[key] for key in ("run", "missed", "seconds", "code", "stderr")} for row in missed]}
    lines = [f"{what}: {len(rows)} runs, {len(missed)} missed a criterion",
             f"  seconds until the job had ended: median {summary['seconds_median']:.2f}, 99 % {summary['seconds_p99']:.2f}, "
             f"most {summary['seconds_max']:.2f}" + (f" (limit {limit:g})" if limit else ""),
             f"  named: {summary['named']}; same bits: {summary['identical']}; orphans: {summary['orphans']}; exit codes: "
             f"{', '.join(summary['exit_codes'])}",
             f"  steps lost: most {summary['steps_lost_max_not_saving']}, or {summary['steps_lost_max']} where a save was under way "
             f"({summary['while_saving']} runs); mean {summary['steps_lost_mean']:.1f}; interval {INTERVAL}"]
    lines += [f"  run {row['run']}: {', '.join(row['missed'])}" for row in missed]
    return summary, "\n".join(lines), not missed


def kills(options):
    def send(bench, job, ranks, chance):
        rank = chance.choice(bench.layout.ranks_of(options.role))
        os.kill(ranks[rank], signal.SIGKILL)
        return {"rank": rank}

    def judge(row):
        patterns = {"rank": rf"\brank {row['rank']}\b.*was lost", "signal": r"signal 9\b", "step": r"lost in step \d+"}
        # Where losses are survived, mpirun does not say by which signal.
        if "mode=async" in options.layout and options.launcher:
            del patterns["signal"]
        not_told = unnamed(row, patterns)
        row["named"] = not not_told
        missed = common_criteria(row) + not_told
        if row["code"] not in (200, 137):
            missed.append(f"exit code {row['code']}")
        if row["seconds"] > 5:
            missed.append(f"took {row['seconds']:.1f} s")
        return missed + steps_lost(row)

    return summarize("kills", measured_runs(options, 600, send, judge), 5)


def judge_silence(row, limit):
    """Of a rank that nobody hears any more."""
    not_told = unnamed(row, {"rank": rf"\brank {row['rank']}\b.*is silent", "step": r"silent in step \d+"})
    row["named"] = not not_told
    missed = common_criteria(row) + not_told
    if row["code"] != 201:
        missed.append(f"exit code {row['code']}")
    if row["seconds"] > limit:
        missed.append(f"took {row['seconds']:.1f} s")
    return missed + steps_lost(row)


def stops(options):
    limit = SILENT_S + 5

    def send(bench, job, ranks, chance):
        rank = chance.choice(bench.layout.ranks_of(options.role))
        os.kill(ranks[rank], signal.SIGSTOP)
        return {"rank": rank}

    def judge(row):
        return judge_silence(row, limit)

    return summarize("stops", measured_runs(options, 600, send, judge), limit)


def cuts(options):
    limit = SILENT_S + 5

    def send(bench, job, ranks, chance):
        options.hosts.do("cut")
        return {"rank": f"(?:{'|'.join(str(rank) for rank in range(bench.layout.ranks - bench.layout.ranks // 2, bench.layout.ranks))})"}

    def judge(row):
        return judge_silence(row, limit)

    if not options.launcher:
        sys.exit("cuts are of jobs that lockstep-run starts; leave out --no-launcher")
    options.hosts = TwoHosts()
    try:
        return summarize("cuts", measured_runs(options, 600, send, judge), limit)
    finally:
        options.hosts.do("down")


def step_times(run):
    """step -> milliseconds, as metrics.jsonl has them."""
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return {row["step"]: row["step_ms"] for row in rows if "loss" in row}


def losses(options):
    """Three workers and a server that wait for nobody."""
    steps = 600
    options.layout = "dp=3,sync=ps,mode=async"
    options.train = ("--set", "trainer.global_batch=126", "--set", "metrics.log_every_steps=1")
    limit = 2 / 3 - 0.05                                      # of the speed before, with one worker of three less
    bench, chance, rows = Bench(options, steps), random.Random(options.seed), []
    _, duration = bench.reference()
    while len(rows) < options.runs:
        name, row = f"run-{len(rows) + 1:03}", {"run": len(rows) + 1, "missed": []}

        def send(job, ranks):
            row["rank"] = chance.randrange(1, 3)
            row["reached"] = last_step(job.run)
            os.kill(ranks[row["rank"]], signal.SIGKILL)

        job = disturb(bench, name, chance, duration, steps, send)
        if job is None:
            bench.remove(name)
            continue
        row.update(seconds=job.seconds, code=job.code, stderr=job.err)
        # Only while all are in a session can one be spared: otherwise the job ends, as in other modes.
        row["spared"] = job.code == 0
        if row["spared"]:
            report, times = job.report(), step_times(job.run)
            before = [ms for step, ms in times.items() if 5 < step < row["reached"]]
            after = [ms for step, ms in times.items() if step > row["reached"] + INTERVAL]
            if len(before) > 20 and len(after) > 20:
                row["speed"] = statistics.median(before) / statistics.median(after)
                if row["speed"] < limit:
                    row["missed"].append(f"the others make {row['speed']:.2f} of the speed before")
            if (report["steps"], report.get("lost_workers")) != (steps, 1):
                row["missed"].append(f"{report['steps']} steps, {report.get('lost_workers')} lost workers")
        elif job.code != 200 or "was lost" not in job.err:
            row["missed"].append(f"exit code {job.code}")
        if not re.search(rf"\brank {row['rank']} of 4\b.*was lost", job.err):
            row["missed"].append("rank not named")
        if job.orphans:
            row["missed"].append(f"{job.orphans} orphans")
        rows.append(row)
        if not row["missed"] and not options.keep:
            bench.remove(name)
        if not options.quiet:
            speed = f", at {row['speed']:.2f} of the speed before" if "speed" in row else ""
            print(f"{name}: " + (f"went on{speed}" if row["spared"] else f"ended with {row['code']}")
                  + "".join(f": MISSED {what}" for what in row["missed"]), file=sys.stderr, flush=True)
    missed = [row for row in rows if row["missed"]]
    if not missed and not options.keep:
        bench.remove()
    speeds = [row["speed"] for row in rows if "speed" in row]
    summary = {"what": "losses", "runs": len(rows), "missed": len(missed), "spared": sum(row["spared"] for row in rows),
               "speeds": len(speeds), "speed_median": statistics.median(speeds), "speed_min": min(speeds), "speed_limit": limit,
               "failures": [{key: row[key] for key in ("run", "missed", "code", "stderr")} for row in missed]}
    lines = [f"losses: {len(rows)} runs, {len(missed)} missed a criterion",
             f"  {summary['spared']} went on to their end; the others ended, named, outside of sessions",
             f"  speed of those that are left, of what it was before: median {summary['speed_median']:.2f}, least "
             f"{summary['speed_min']:.2f} ({len(speeds)} runs; limit {limit:.2f})"]
    return summary, "\n".join(lines + [f"  run {row['run']}: {', '.join(row['missed'])}" for row in missed]), not missed


def preemptions(options):
    def send(bench, job, ranks, chance):
        # lockstep-run turns what schedulers send into mpirun's stop request.
        job.process.send_signal(signal.SIGTERM if options.launcher else signal.SIGUSR1)
        return {}

    def judge(row):
        missed = common_criteria(row)
        if row["code"] != 143:
            missed.append(f"exit code {row['code']}")
        if row["lost"] != 0:
            missed.append(f"lost {row['lost']} steps")
        return missed

    return summarize("preemptions", measured_runs(options, 600, send, judge), None)


def clean(options):
    bench = Bench(options, options.steps)
    job = bench.job("clean").wait(limit=86400)
    alarms = [line for line in job.err.splitlines() if ALARM.search(line)]
    passed = job.code == 0 and not alarms and job.orphans == 0
    summary = {"what": "clean", "steps": options.steps, "exit_code": job.code, "alarms": alarms, "orphans": job.orphans,
               "seconds": job.seconds}
    bench.remove()
    text = f"clean: {options.steps} steps in {job.seconds:.1f} s, exit code {job.code}, {len(alarms)} alarms"
    return summary, "\n".join([text] + ["  " + alarm for alarm in alarms]), passed


def overhead(options):
    bench = Bench(options, options.steps)
    off = ["--set=watchdog.enabled=false", "--set=trainer.check_every_steps=0", "--set=checkpoint.every_steps=0",
           "--set=checkpoint.at_end=false"]
    on = [f"--set=trainer.check_every_steps={options.every}", f"--set=checkpoint.every_steps={options.every}"]
    times = {"on": [], "off": []}
    for turn in range(options.rounds):
        # In turns, so that what else the machine does falls on both.
        for what in (("on", "off") if turn % 2 == 0 else ("off", "on")):
            name = f"{what}-{turn}"
            job = bench.job(name, *(on if what == "on" else off)).wait()
            if job.code != 0:
                sys.exit(f"{name} ended with {job.code}:\n{job.err}")
            times[what].append(job.report()["step_ms"]["mean"])
            bench.remove(name)
    bench.remove()
    medians = {what: statistics.median(values) for what, values in times.items()}
    ratio = medians["on"] / medians["off"]
    summary = {"what": "overhead", "rounds": options.rounds, "steps": options.steps, "step_ms": medians, "ratio": ratio,
               "all_step_ms": times}
    text = (f"overhead: a step takes {medians['on']:.4f} ms with, {medians['off']:.4f} ms without watchdog, comparison and "
            f"checkpoints (every {options.every} steps): {100 * (ratio - 1):+.2f} % (limit 1 %)")
    return summary, text, ratio <= 1.01


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    default_launcher = os.path.join(ROOT, "launcher", "lockstep-run")
    for name, function, runs in (("kills", kills, 300), ("stops", stops, 100), ("cuts", cuts, 100), ("losses", losses, 100),
                                 ("preemptions", preemptions, 100), ("clean", clean, None), ("overhead", overhead, None)):
        command = commands.add_parser(name)
        command.set_defaults(function=function, train=(), layout=LAYOUT, resume_layout=None, role=None)
        command.add_argument("--lockstep", default=os.path.join(ROOT, "build/release/bin/lockstep"))
        command.add_argument("--no-launcher", dest="launcher", action="store_const", const=None,
                             default=default_launcher if os.path.exists(default_launcher) else None,
                             help="start jobs by mpirun, without lockstep-run")
        command.add_argument("--foreground-saves", action="store_true",
                             help="checkpoint.background: false: training waits while a checkpoint is written")
        command.add_argument("--json", action="store_true", help="one JSON object on stdout")
        command.add_argument("--quiet", action="store_true", help="no line for each run")
        if name in ("kills", "stops", "cuts"):
            command.add_argument("--layout", default=LAYOUT, help=f"layout of the job (default: {LAYOUT})")
            command.add_argument("--resume-layout", help="layout in which it resumes; default: the same")
        if name in ("kills", "stops"):
            command.add_argument("--role", choices=("worker", "server"), help="role of the disturbed rank; default: any (with mode=async: server)")
        if runs:
            command.add_argument("--runs", type=int, default=runs)
            command.add_argument("--seed", type=int, default=1, help="seed of ranks and times")
            command.add_argument("--keep", action="store_true", help="keep the files of all runs")
        else:
            command.add_argument("--steps", type=int, default=10000 if name == "clean" else 3000)
        if name == "overhead":
            command.add_argument("--rounds", type=int, default=10)
            command.add_argument("--every", type=int, default=1000, help="steps between checkpoints, and between comparisons")
    options = parser.parse_args()
    if "mode=async" in options.layout and options.command in ("kills", "stops"):
        # A job goes on without its workers.
        if options.role == "worker":
            parser.error("with mode=async a job goes on without a worker: 'losses' measures that")
        options.role = "server"
    summary, text, passed = options.function(options)
    print(json.dumps({**summary, "passed": passed}) if options.json else text)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
