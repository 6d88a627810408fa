#!/usr/bin/env python3
"""`metrics.prometheus_port`: what `lockstep train` serves, to good clients and to bad ones; promtool reads it if there is one.

    tests/cli/prometheus_test.py LOCKSTEP
"""

import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

CONFIG = """
model { mlp { image: [4, 4, 1] hidden: [8] classes: 3 dropout: 0.1 } }
data { synthetic { samples: 240 eval_samples: 50 classes: 3 } }
trainer { global_batch: 24 virtual_replicas: 4 steps: 100000000 seed: 1 eval_every_steps: 100 }
optimizer { learning_rate: 0.05 sgd { momentum: 0.9 } }
metrics { prometheus_port: %d progress: false }
"""
LOCKSTEP = ""


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Prometheus(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.port = free_port()
        self.config = self.folder / "config.textproto"
        self.config.write_text(CONFIG % self.port)

    def start(self, *more):
        run = subprocess.Popen([LOCKSTEP, "train", str(self.config), "--quiet", *more], stderr=subprocess.PIPE, text=True)
        self.addCleanup(run.stderr.close)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        return run

    def page(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            self.assertEqual(answer.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
            return answer.read().decode()

    def await_page(self, text):
        """The page, once it has `text`."""
        deadline = time.monotonic() + 100
        while True:
            try:
                page = self.page()
                if text in page:
                    return page
            except OSError:
                pass
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def send(self, data):
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as client:
            answer = b""
            try:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
                while piece := client.recv(4096):
                    answer += piece
            except OSError:
                pass  # it does not wait for all of what is too long
            return answer.decode()

    def test_the_page(self):
        self.start()
        page = self.await_page("lockstep_eval_loss ")
        self.assertTrue(page.endswith("\n"))
        names = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
        self.assertEqual(len(names), len(set(names)))
        for name in ("lockstep_steps_total", "lockstep_train_loss", "lockstep_step_seconds", "lockstep_run_info"):
            self.assertIn(name, names)
        self.assertIn('layout="dp=1"', page)
        promtool = shutil.which("promtool")
        if promtool is None:
            self.skipTest("no promtool")
        checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False)
        self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, "", ""))

    def test_only_get_is_answered(self):
        self.start()
        self.await_page("lockstep_steps_total")
        for request, answer in ((b"POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "), (b"GET /other HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "),
                                (b"GET / HTTP/1.0\r\n\r\n", "HTTP/1.1 200 "), (b"garbage\r\n\r\n", "HTTP/1.1 400 "),
                                (b"GET /metrics?a=b HTTP/1.1\r\nA: b\r\n\r\n", "HTTP/1.1 200 ")):
            self.assertTrue(self.send(request).startswith(answer), request)
        for nothing in (b"", b"\0" * 100, b"A" * 100000):
            self.assertEqual(self.send(nothing), "")

    def test_clients_that_say_nothing_keep_nobody_out(self):
        run = self.start()
        self.await_page("lockstep_steps_total")
        silent = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(40)]
        self.page()
        for client in silent:
            client.close()
        self.assertIsNone(run.poll())

    def test_a_port_that_is_taken(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", self.port))
            other.listen()
            refused = self.start("--set", "metrics.on_failure=STOP")
            self.assertEqual(refused.wait(100), 74)
            self.assertIn(f"metrics.prometheus_port: cannot listen at port {self.port}", refused.stderr.read())
            gone_on = self.start()
            while f"cannot listen at port {self.port}" not in (line := gone_on.stderr.readline()):
                self.assertNotEqual(line, "", "the run has ended")
        # As soon as it is free.
        self.await_page("lockstep_train_loss")


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop(1)
    unittest.main()
