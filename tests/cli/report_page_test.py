#!/usr/bin/env python3
"""The pages of `lockstep compare` and of runs, looked at in a browser: wide and narrow, on light and dark ground, and
on paper.

    tests/cli/report_page_test.py LOCKSTEP [FOLDER]

Exits with 77 where there is no chromium. FOLDER keeps the pictures.
"""

import html
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import urllib.parse
import zlib

CONFIG = """
model { mlp { image: [4, 4, 1] hidden: [8] classes: 3 dropout: 0.1 } }
data { synthetic { samples: 240 eval_samples: 50 classes: 3 } }
trainer { global_batch: 24 virtual_replicas: 4 steps: 60 seed: 1 }
optimizer { learning_rate: 0.05 sgd { momentum: 0.9 } }
"""
# Long enough to meet every way to break a line.
LAYOUTS = "sync=all_reduce; shard=optimizer; sync=ps,servers=1,placement=colocated; sync=ps,servers=1,mode=stale,bound=2"
# What the browser knows of the page once it is drawn. It lies in a frame, since windows have a least width.
PROBE = """<script>
for (const element of document.querySelectorAll('details')) element.open = true;
const cells = [...document.querySelectorAll('th, td')].filter(element => element.innerText.trim() && element.getClientRects().length);
const cut = cells.filter(element => { const box = element.getBoundingClientRect();
  return box.left < -1 || box.right > innerWidth + 1 || element.scrollWidth > element.clientWidth + 1; });
const scrolls = element => getComputedStyle(element).overflowX == 'auto';
const within = element => { for (let at = element; at; at = at.parentElement) if (scrolls(at)) return true; return false; };
const wide = [...document.querySelectorAll('body *')].filter(
  element => !within(element) && element.getBoundingClientRect().right > innerWidth + 1).map(element => element.outerHTML.slice(0, 80));
parent.document.documentElement.dataset.probe = encodeURIComponent(JSON.stringify({inner: innerWidth,
  scroll: document.documentElement.scrollWidth, wide: wide,
  cut: cut.map(element => element.outerHTML), numbers: cells.filter(element => element.tagName == 'TD' && /\\d/.test(element.innerText)).length, charts: document.querySelectorAll('svg').length,
  background: getComputedStyle(document.body).backgroundColor,
  resources: performance.getEntriesByType('resource').map(entry => entry.name)}));
</script></body>"""


def pixels(path):
    """Width, height and the bytes of each row of a picture without transparency or of one with it."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"\x89PNG\r\n\x1a\n", path
    at, packed, width, height, channels = 8, b"", 0, 0, 0
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, color = struct.unpack(">IIBB", body[:10])
            assert depth == 8, depth
            channels = {2: 3, 6: 4}[color]
        elif kind == b"IDAT":
            packed += body
        at += size + 12
    return width, height, channels, zlib.decompress(packed)


class Looks:
    """What all pages have in common. `charts` is how many one has, `least_numbers` how many of those in tables."""

    @classmethod
    def setUpClass(cls):
        cls.folder = KEPT or tempfile.mkdtemp(prefix="lockstep-page-")
        config = os.path.join(cls.folder, "small.textproto")
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG)
        cls.report = cls.make(config)
        with open(cls.report, encoding="utf-8") as file:
            cls.text = file.read()

    @classmethod
    def lockstep(cls, *arguments):
        ran = subprocess.run([LOCKSTEP, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                             env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
        assert ran.returncode == 0, ran.stderr

    @classmethod
    def tearDownClass(cls):
        if not KEPT:
            shutil.rmtree(cls.folder, ignore_errors=True)

    def browse(self, page, *arguments, width=1280, dark=False):
        """What the browser prints, once it is sure that it wanted nothing from elsewhere and complained of nothing."""
        profile = tempfile.mkdtemp(dir=self.folder)
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                   "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", f"--user-data-dir={profile}",
                   f"--window-size={width},1600", f"--blink-settings=preferredColorScheme={0 if dark else 1}", *arguments, "file://" + page]
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", timeout=120, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertNotIn("CONSOLE", ran.stderr)
        return ran.stdout

    def probe(self, width, dark):
        page = os.path.join(self.folder, f"probe-{type(self).__name__}-{width}-{dark}.html")
        with open(page, "w", encoding="utf-8") as file:
            framed = html.escape(self.text.replace("</body>", PROBE))
            file.write(f'<!DOCTYPE html><meta charset="utf-8"><iframe width="{width}" height="1200" frameborder="0" srcdoc="{framed}"></iframe>')
        dom = self.browse(page, "--dump-dom", width=max(width + 100, 600), dark=dark)
        found = re.search(r'data-probe="([^"]*)"', dom)
        self.assertIsNotNone(found, dom[:2000])
        return json.loads(urllib.parse.unquote(found.group(1)))

    def test_fits_on_screens_of_any_width(self):
        numbers = len(re.findall(r"<td[^>]*>[^<]*\d", self.text))
        self.assertGreater(numbers, self.least_numbers)
        for width in (1280, 1024, 768, 390, 360):
            for dark in (False, True):
                with self.subTest(width=width, dark=dark):
                    seen = self.probe(width, dark)
                    self.assertEqual(seen["inner"], width)
                    self.assertEqual(seen["wide"], [])
                    self.assertEqual(seen["cut"], [])
                    self.assertEqual(seen["numbers"], numbers)
                    self.assertLessEqual(seen["scroll"], width)
                    self.assertEqual(seen["charts"], self.charts)
                    self.assertEqual(seen["resources"], [])
                    self.assertEqual(seen["background"], "rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")

    def test_is_drawn(self):
        for width in (1280, 390):
            for dark in (False, True):
                with self.subTest(width=width, dark=dark):
                    picture = os.path.join(self.folder, f"page-{type(self).__name__}-{width}-{'dark' if dark else 'light'}.png")
                    self.browse(self.report, f"--screenshot={picture}", width=width, dark=dark)
                    seen_width, height, channels, rows = pixels(picture)
                    self.assertEqual((seen_width, height), (width, 1600))
                    # Rows that are not all of one color: text and lines are everywhere but at the end.
                    stride = width * channels + 1
                    drawn = sum(1 for y in range(height) if len(set(rows[y * stride + 1 : (y + 1) * stride])) > 2)
                    self.assertGreater(drawn, 400)

    def test_prints(self):
        paper = os.path.join(self.folder, "page.pdf")
        self.browse(self.report, f"--print-to-pdf={paper}", "--no-pdf-header-footer")
        with open(paper, "rb") as file:
            self.assertTrue(file.read(5) == b"%PDF-")
        self.assertGreater(os.path.getsize(paper), 5000)

    def test_is_small_and_alone(self):
        self.assertLess(len(self.text.encode()), 300_000)
        self.assertNotRegex(self.text, r"<script|<img|<link|src=|href=|@import")


class ComparePage(Looks, unittest.TestCase):
    least_numbers = 100
    charts = 7  # throughput, efficiency, steps, staleness, loss twice, predictions

    @classmethod
    def make(cls, config):
        out = os.path.join(cls.folder, "comparison")
        shutil.rmtree(out, ignore_errors=True)
        cls.lockstep("compare", config, "--workers", "1,2", "--layouts", LAYOUTS, "--steps", "12", "--minutes", "0",
                     "--straggler", "0:2", "--out", out, "--quiet")
        return os.path.join(out, "report.html")


class RunsPage(Looks, unittest.TestCase):
    least_numbers = 60
    # Loss, loss and accuracy of evaluations, learning rate, gradient norm, speed, time, layout twice.
    charts = 9

    @classmethod
    def make(cls, config):
        for name, rate in (("a_run_with_a_rather_long_name", "0.05"), ("b", "0.1")):
            out = os.path.join(cls.folder, name)
            shutil.rmtree(out, ignore_errors=True)
            cls.lockstep("train", config, "--out", out, "--set", "trainer.eval_every_steps=10", "--set",
                         f"optimizer.learning_rate={rate}", "--set", "metrics.machine_every_seconds=0", "--quiet")
        page = os.path.join(cls.folder, "runs.html")
        cls.lockstep("report", os.path.join(cls.folder, "a_run_with_a_rather_long_name"), os.path.join(cls.folder, "b"),
                     "--out", page)
        return page


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    LOCKSTEP = os.path.abspath(sys.argv[1])
    KEPT = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else None
    if KEPT:
        os.makedirs(KEPT, exist_ok=True)
    BROWSER = shutil.which("chromium")
    if not BROWSER:
        print("there is no chromium (Debian's package of that name): the page was not looked at")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
