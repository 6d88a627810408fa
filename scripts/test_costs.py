#!/usr/bin/env python3
"""Measures each test alone and writes tests/costs/costs.cmake, by which ctest orders tests and runs them side by side.

    scripts/test_costs.py [--build build/release] [--tests REGEX]

Needs a quiet machine with at least two cores, and a build folder with all tests. With --tests only matching tests are
measured, and the other lines stay.

Each test of a second or more has a line: its seconds, by which ctest starts the longest first, even in a new folder, and the
thirds of a core that it keeps busy. scripts/test.sh gives ctest as many slots as the machine has thirds of cores, so tests
that wait run beside others, and tests that compute have their cores.
"""

import argparse
import pathlib
import re
import resource
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COSTS = ROOT / "tests" / "costs" / "costs.cmake"
HEAD = """# Written by scripts/test_costs.py: seconds and thirds of a core of each test, alone on a quiet machine.
"""
# Their limits are of fractions of a second: beside at most one other that computes a little.
LEAST_THIRDS = {"cli_chaos_test": 4}
LINE = re.compile(r"set_tests_properties\((\S+) PROPERTIES COST (\d+) PROCESSORS (\d+)\)")


def names_of(build, pattern):
    listed = subprocess.run(["ctest", "--test-dir", build, "-N", "-R", pattern], stdout=subprocess.PIPE, text=True, check=True).stdout
    return re.findall(r"^ *Test *#\d+: (\S+)", listed, re.M)


def measure(build, name):
    """Seconds, and seconds of processors, of the test and all that it started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    ran = subprocess.run(["ctest", "--test-dir", build, "-j", "1000", "-R", f"^{re.escape(name)}$"], stdout=subprocess.PIPE, text=True)
    seconds = time.monotonic() - began
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ran.returncode != 0 or "Not Run" in ran.stdout:
        sys.exit(f"test_costs.py: {name} fails or is not built; nothing was written:\n{ran.stdout[-2000:]}")
    return seconds, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime, "Skipped" in ran.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--tests", default=".")
    arguments = parser.parse_args()
    costs = {}
    if COSTS.exists():
        costs = {name: (int(seconds), int(thirds)) for name, seconds, thirds in LINE.findall(COSTS.read_text())}
    every = set(names_of(arguments.build, "."))
    for name in names_of(arguments.build, arguments.tests):
        seconds, processor, skipped = measure(arguments.build, name)
        if skipped:   # what it takes elsewhere is not known here
            continue
        thirds = max(LEAST_THIRDS.get(name, 1), min(6, round(3 * processor / seconds)))
        print(f"{name}: {seconds:.1f} s, {processor / seconds:.2f} cores", flush=True)
        costs.pop(name, None)
        if seconds >= 1:
            costs[name] = (round(seconds), thirds)
    lines = [f"set_tests_properties({name} PROPERTIES COST {seconds} PROCESSORS {thirds})"
             for name, (seconds, thirds) in sorted(costs.items(), key=lambda item: (-item[1][0], item[0])) if name in every]
    COSTS.write_text(HEAD + "".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
