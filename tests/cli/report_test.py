#!/usr/bin/env python3
"""report.json and report.html of a run, and `lockstep report`.

    tests/cli/report_test.py LOCKSTEP
"""

import html.parser
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP = ""
CONFIG = """
model { mlp { image: [4, 4, 1] hidden: [8] classes: 3 } }
data { synthetic { samples: 240 eval_samples: 50 classes: 3 } }
trainer { global_batch: 24 steps: 40 seed: 1 eval_every_steps: 10 }
optimizer { learning_rate: 0.05 sgd { momentum: 0.9 } }
metrics { progress: false tensorboard: false machine_every_seconds: 0.02 }
"""
EMPTY = {"meta", "br", "line", "rect", "circle", "path", "polyline"}


class Page(html.parser.HTMLParser):
    """Checks that what is opened is closed, and collects headings and tables' texts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.headings, self.cells, self.wrong = [], [], [], []
        self.feed(text)
        self.wrong += self.open

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("src", "href") or "://" in (value or "").replace("http://www.w3.org/2000/svg", ""):
                self.wrong.append((tag, name, value))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


class Report(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "config.textproto").write_text(CONFIG)

    def lockstep(self, *arguments, code=0):
        run = subprocess.run([LOCKSTEP, *map(str, arguments)], text=True, capture_output=True, cwd=self.folder,
                             stdin=subprocess.DEVNULL)
        self.assertEqual(run.returncode, code, run.stderr)
        return run

    def train(self, out, *more):
        return self.lockstep("train", "config.textproto", "--out", out, "--json", *more)

    def page(self, path):
        page = Page((self.folder / path).read_text())
        self.assertEqual(page.wrong, [])
        return page

    def test_a_run_ends_with_its_report(self):
        printed = self.train("a").stdout
        self.assertEqual(json.loads((self.folder / "a/report.json").read_text()), json.loads(printed))
        page = self.page("a/report.html")
        for heading in ("Learning", "Results", "Speed", "Where the time went", "Layout", "Config"):
            self.assertIn(heading, page.headings)
        self.assertIn(json.loads(printed)["params_hash"], page.cells)

    def test_a_run_that_was_stopped_and_goes_on_has_the_last_report(self):
        self.train("a", "--stop-after", "10")
        first = json.loads((self.folder / "a/report.json").read_text())
        self.train("a", "--resume", "auto")
        last = json.loads((self.folder / "a/report.json").read_text())
        self.assertEqual((first["steps"], last["steps"]), (10, 40))

    def test_a_complete_run_keeps_its_report(self):
        self.train("a")
        files = ("report.json", "report.html", "explain.json")
        before = [(self.folder / "a" / name).read_text() for name in files]
        self.train("a", "--resume", "auto")
        self.assertEqual([(self.folder / "a" / name).read_text() for name in files], before)

    def test_what_is_not_of_the_run_is_kept(self):
        (self.folder / "a").mkdir()
        (self.folder / "a/report.html").write_text("mine")
        self.train("a")
        self.assertEqual((self.folder / "a/report.html.1").read_text(), "mine")

    def test_reports_of_other_versions(self):
        self.train("a")
        for text in ("[]", '{"layout": 3}', '{"ranks": [1]}', '{"machine": []}', '{"step_ms": 1}', '{"explanation": {"ranks": 3}}',
                     '{"explanation": {"ranks": [], "mean": 7}}'):
            (self.folder / "a/report.json").write_text(text)
            run = subprocess.run([LOCKSTEP, "report", "a"], text=True, capture_output=True, cwd=self.folder, check=False)
            self.assertIn(run.returncode, (0, 65), (text, run.stderr))

    def test_runs_beside_each_other(self):
        self.train("a")
        self.train("b", "--set", "optimizer.learning_rate=0.1")
        self.lockstep("report", "a", "b", "--out", "both.html")
        page = self.page("both.html")
        self.assertIn("optimizer.learning_rate", page.cells)
        self.assertNotIn("trainer.steps", page.cells)
        shutil.rmtree(self.folder / "a/checkpoints")
        (self.folder / "a/report.html").unlink()
        printed = self.lockstep("report", "a").stdout
        self.assertEqual(printed.strip(), "a/report.html")
        self.page("a/report.html")

    def test_what_cannot_be_done_is_said(self):
        for arguments, named in ((["none"], "none"), (["."], "metrics.jsonl"), ([".", "."], "--out")):
            self.assertIn(named, self.lockstep("report", *arguments, code=2).stderr)
        self.train("a")
        (self.folder / "a/report.json").write_text("{")
        self.assertIn("report.json", self.lockstep("report", "a", code=65).stderr)

    def test_a_page_that_cannot_be_written_does_not_fail_the_run(self):
        self.train("a", "--stop-after", "10")
        (self.folder / "a/report.html").unlink()
        (self.folder / "a/report.html.tmp").mkdir()
        self.assertIn("report", self.train("a", "--resume", "auto").stderr)
        self.assertTrue((self.folder / "a/report.json").exists())


if __name__ == "__main__":
    LOCKSTEP = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
