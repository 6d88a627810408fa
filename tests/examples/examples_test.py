#!/usr/bin/env python3
"""An example, as a user starts it: its last line, and that nothing is written elsewhere.

    tests/examples/examples_test.py NAME
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"
# Of the table in examples/README.md: "..." stands for anything.
LINES = dict(re.findall(r"^\| \[(\w+)\]\(\w+\) \| .* \| `(.*)` \|$", (EXAMPLES / "README.md").read_text(), re.M))


def check_table():
    folders = sorted(path.parent.name for path in EXAMPLES.glob("*/run.sh"))
    assert folders == sorted(LINES), f"examples/README.md has {sorted(LINES)}, and there are {folders}"
    for name in folders:
        text = (EXAMPLES / name / "README.md").read_text()
        assert text.count("\n") <= 30, f"{name}/README.md is longer than 30 lines"


def main():
    check_table()
    name = sys.argv[1]
    with tempfile.TemporaryDirectory() as out:
        environment = {**os.environ, "OUT": f"{out}/out", "MINUTES": "0", "EPOCHS": "3"}
        ran = subprocess.run([EXAMPLES / name / "run.sh"], cwd=out, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, timeout=280)
        if ran.returncode == 77:
            print(f"skipped: {ran.stderr}")
            sys.exit(77)
        assert ran.returncode == 0, f"ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}"
        last = ran.stdout.strip().split("\n")[-1]
        expected = ".*".join(re.escape(part) for part in LINES[name].split("..."))
        assert re.fullmatch(expected, last), f"expected {LINES[name]!r}, found {last!r}\n{ran.stderr}"
        assert os.listdir(out) == ["out"], os.listdir(out)
        again = subprocess.run([EXAMPLES / name / "run.sh"], cwd=out, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, timeout=60)
        assert again.returncode == 2 and "is not empty" in again.stderr, "a folder in use is replaced"
        print(last)


if __name__ == "__main__":
    main()
