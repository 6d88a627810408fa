#!/usr/bin/env python3
"""Lists the tests of a build folder that need a GPU, one per line: name, time limit in seconds, ranks, program.

    scripts/list_gpu_tests.py build/release

These tests have the label `gpu`. If mpirun starts a test, its program is the command's first word that is a path in the
build folder.
"""

import json
import os
import subprocess
import sys


def describe(test, build):
    properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
    # Without a command, if the program is not built yet, which has the test's name.
    command = test.get("command") or [os.path.join(build, "bin", test["name"])]
    program = next((word for word in command if os.path.realpath(word).startswith(build + os.sep)), None)
    if program is None:
        return None
    ranks = command[command.index("-n") + 1] if "-n" in command[:command.index(program)] else "1"
    return f"{test['name']} {properties.get('TIMEOUT', 300):.0f} {ranks} {program}"


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    build = os.path.realpath(sys.argv[1])
    listed = subprocess.run(["ctest", "--test-dir", build, "-L", "^gpu$", "--show-only=json-v1"], stdout=subprocess.PIPE, check=True)
    for test in json.loads(listed.stdout)["tests"]:
        line = describe(test, build)
        if line:
            print(line)


if __name__ == "__main__":
    main()
