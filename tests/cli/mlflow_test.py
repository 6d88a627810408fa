#!/usr/bin/env python3
"""`metrics.mlflow`: what `lockstep train` sends, to a stand-in and to MLflow's own server, which go away and come back.

    tests/cli/mlflow_test.py LOCKSTEP

LOCKSTEP_MLFLOW_PYTHON is a Python that has the package `mlflow`; without it the real server is left out. Exits with 77 if this
build has no libcurl.
"""

import http.server
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse
import urllib.request

CONFIG = """
model { mlp { image: [4, 4, 1] hidden: [8] classes: 3 dropout: 0.1 } }
data { synthetic { samples: 240 eval_samples: 50 classes: 3 } }
trainer { global_batch: 24 virtual_replicas: 4 steps: %d seed: 1 eval_every_steps: 10 }
optimizer { learning_rate: 0.05 sgd { momentum: 0.9 } }
checkpoint { every_steps: 10 }
metrics { progress: false mlflow { uri: "http://127.0.0.1:%d" experiment: "small nets" } }
"""
LOCKSTEP = ""
PATIENCE = 100  # seconds, for what comes sooner
# As root, and on few cores that others use, too.
MPIRUN = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
          "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_mpi_yield_when_idle": "1"}


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def await_true(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


class Refusal(Exception):
    def __init__(self, status, code, message=""):
        super().__init__(message)
        self.status, self.code = status, code


class StandIn:
    """What of MLflow's server a run needs, with its limits. It can be stopped and started again."""

    def __init__(self, port, serves_artifacts=True):
        self.port, self.serves_artifacts = port, serves_artifacts
        self.experiments, self.runs, self.artifacts, self.batches = {}, {}, {}, []
        self.lock = threading.Lock()
        self.server = None
        self.hangs = threading.Event()

    def start(self):
        stand_in = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                while stand_in.hangs.is_set():
                    time.sleep(0.02)
                try:
                    with stand_in.lock:
                        status, reply = 200, stand_in.handle(self.command, self.path, body)
                except Refusal as refusal:
                    status, reply = refusal.status, {"error_code": refusal.code, "message": str(refusal)}
                data = json.dumps(reply).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass

            do_GET = do_POST = do_PUT = answer

            def log_message(self, *arguments):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

        self.server = Server(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self):
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    def handle(self, method, path, body):
        url = urllib.parse.urlparse(path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if method == "PUT":
            self.artifacts[urllib.parse.unquote(url.path)] = body.decode()
            return {}
        if len(body) > 1000000:
            raise Refusal(400, "INVALID_PARAMETER_VALUE", "too long")
        call = f"{method} {url.path.removeprefix('/api/2.0/mlflow/')}"
        return getattr(self, re.sub(r"\W", "_", call))(query if method == "GET" else json.loads(body))

    def experiment(self, name, key):
        return {"experiment": {"experiment_id": key, "name": name, "lifecycle_stage": "active"}}

    def GET_experiments_get_by_name(self, query):
        if query["experiment_name"] not in self.experiments:
            raise Refusal(404, "RESOURCE_DOES_NOT_EXIST")
        return self.experiment(query["experiment_name"], self.experiments[query["experiment_name"]])

    def POST_experiments_create(self, body):
        self.experiments[body["name"]] = str(len(self.experiments) + 1)
        return {"experiment_id": self.experiments[body["name"]]}

    def POST_runs_create(self, body):
        key = f"{len(self.runs):032x}"
        where = f"mlflow-artifacts:/{body['experiment_id']}/{key}/artifacts" if self.serves_artifacts else "s3://somewhere"
        self.runs[key] = {"info": {"run_id": key, "experiment_id": body["experiment_id"], "run_name": body["run_name"],
                                   "start_time": body["start_time"], "status": "RUNNING", "lifecycle_stage": "active",
                                   "artifact_uri": where},
                          "metrics": [], "known": set(), "params": {}, "tags": {tag["key"]: tag["value"] for tag in body["tags"]}}
        return {"run": self.described(key)}

    def described(self, key):
        run = self.runs[key]
        latest = {}
        for metric in run["metrics"]:
            if metric["step"] >= latest.get(metric["key"], metric)["step"]:
                latest[metric["key"]] = metric
        return {"info": run["info"], "data": {
            "metrics": list(latest.values()), "params": [{"key": k, "value": v} for k, v in run["params"].items()],
            "tags": [{"key": k, "value": v} for k, v in run["tags"].items()]}}

    def GET_runs_get(self, query):
        if query["run_id"] not in self.runs:
            raise Refusal(404, "RESOURCE_DOES_NOT_EXIST")
        return {"run": self.described(query["run_id"])}

    def POST_runs_search(self, body):
        name, value = re.fullmatch(r"tags\.`([^`]*)` = '([^']*)'", body["filter"]).groups()
        return {"runs": [self.described(key) for key, run in self.runs.items() if run["tags"].get(name) == value]}

    def POST_runs_update(self, body):
        self.runs[body["run_id"]]["info"].update({k: v for k, v in body.items() if k != "run_id"})
        return {}

    def POST_runs_log_batch(self, body):
        run = self.runs[body["run_id"]]
        metrics, params, tags = (body.get(kind, []) for kind in ("metrics", "params", "tags"))
        self.batches.append(len(metrics))
        if len(metrics) > 1000 or len(params) > 100 or len(tags) > 100:
            raise Refusal(400, "INVALID_PARAMETER_VALUE", "too many")
        for item in metrics + params + tags:
            if not re.fullmatch(r"[/\w.\- ]{1,250}", item["key"]):
                raise Refusal(400, "INVALID_PARAMETER_VALUE", item["key"])
        for param in params:
            if run["params"].setdefault(param["key"], param["value"]) != param["value"] or len(param["value"]) > 6000:
                raise Refusal(400, "INVALID_PARAMETER_VALUE", "changed: " + param["key"])
        run["tags"].update({tag["key"]: tag["value"] for tag in tags})
        # What is sent twice, because an answer was lost, is there once.
        for metric in metrics:
            known = (metric["key"], metric["timestamp"], metric["step"], str(metric["value"]))
            if known not in run["known"]:
                run["known"].add(known)
                run["metrics"].append(metric)
        return {}


class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.run_folder = self.folder / "first try"
        self.port = free_port()
        self.config = self.folder / "config.textproto"
        self.write_config(40)

    def write_config(self, steps):
        self.config.write_text(CONFIG % (steps, self.port))

    def command(self, *more):
        return [LOCKSTEP, "train", str(self.config), "--out", str(self.run_folder), *more]

    def train(self, *more):
        return subprocess.run(self.command("--quiet", *more), capture_output=True, text=True, check=False, timeout=PATIENCE)

    def start(self, *more):
        # A pipe that nobody reads would fill.
        with open(self.folder / "stderr", "w", encoding="utf-8") as said:
            run = subprocess.Popen(self.command(*more), stdout=subprocess.DEVNULL, stderr=said)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        return run

    def lines(self):
        return [json.loads(line) for line in (self.run_folder / "metrics.jsonl").read_text().splitlines(keepends=True) if line.endswith("\n")]

    def expected(self, field):
        return [(line["step"], line[field]) for line in self.lines() if field in line]


class WithStandIn(RunTest):
    def setUp(self):
        super().setUp()
        self.server = StandIn(self.port)
        self.server.start()
        self.addCleanup(self.server.stop)

    def found(self, key):
        (run,) = self.server.runs.values()
        return [(metric["step"], metric["value"]) for metric in run["metrics"] if metric["key"] == key]

    def check_equal_to_lines(self):
        for key, field in (("train/loss", "loss"), ("time/step_ms", "step_ms"), ("eval/accuracy", "eval_accuracy")):
            self.assertEqual(self.found(key), self.expected(field), key)

    def test_a_whole_run(self):
        done = self.train()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.check_equal_to_lines()
        self.assertEqual(len(self.found("train/loss")), 40)
        (run,) = self.server.runs.values()
        self.assertEqual(run["info"]["status"], "FINISHED")
        self.assertEqual(run["info"]["run_name"], "first try")
        self.assertGreaterEqual(run["info"]["end_time"], run["info"]["start_time"])
        self.assertEqual(run["params"]["trainer.global_batch"], "24")
        self.assertEqual(run["tags"]["lockstep.layout"], "dp=1")
        self.assertRegex(run["tags"]["lockstep.math_hash"], "^[0-9a-f]{16}$")
        self.assertIn("mlflow.source.git.commit", run["tags"])
        self.assertEqual(list(self.server.experiments), ["small nets"])
        artifacts = {path.rpartition("/")[2]: text for path, text in self.server.artifacts.items()}
        self.assertIn("global_batch: 24", artifacts["config.effective.textproto"])
        self.assertEqual(json.loads(artifacts["report.json"])["steps"], 40)

    def test_trials_of_other_commands_are_not_tracked(self):
        done = subprocess.run([LOCKSTEP, "verify", str(self.config), "--layouts", "dp=1; dp=2", "--steps", "3"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.server.runs, {})

    def test_a_run_that_is_stopped_is_killed_and_goes_on_under_its_id(self):
        self.assertEqual(self.train("--stop-after", "15").returncode, 0)
        (run,) = self.server.runs.values()
        self.assertEqual(run["info"]["status"], "KILLED")
        self.assertEqual(self.train("--resume", "auto").returncode, 0)
        self.assertEqual(run["info"]["status"], "FINISHED")
        self.check_equal_to_lines()

    def test_a_run_that_fails_is_failed(self):
        failed = self.train("--set", "optimizer.learning_rate=1e30")
        self.assertEqual(failed.returncode, 70)
        (run,) = self.server.runs.values()
        self.assertEqual(run["info"]["status"], "FAILED")

    def test_a_run_that_loses_a_worker_is_failed(self):
        ran = subprocess.run(["mpirun", "-n", "2", *self.command("--quiet", "--failpoint", "kill@1,15")], capture_output=True, text=True, check=False,
                             env={**os.environ, **MPIRUN})
        self.assertNotEqual(ran.returncode, 0)
        (run,) = self.server.runs.values()
        self.assertEqual(run["info"]["status"], "FAILED", ran.stderr)

    def test_a_run_that_was_lost_has_each_step_once(self):
        self.assertNotEqual(self.train("--failpoint", "kill@0,36", "--set", "checkpoint.background=false").returncode, 0)
        self.assertEqual(self.train("--resume", "auto").returncode, 0)
        self.assertEqual([step for step, _ in self.found("train/loss")], list(range(1, 41)))

    def test_what_a_server_misses_is_sent_when_it_is_back(self):
        self.write_config(100000000)
        run = self.start()
        await_true(lambda: self.server.runs and self.found("train/loss"))
        self.server.stop()
        before = len(self.lines())
        await_true(lambda: len(self.lines()) > before + 2000)
        self.server.start()
        have = len(self.found("train/loss"))
        await_true(lambda: len(self.found("train/loss")) > have)
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(PATIENCE), 143)
        said = (self.folder / "stderr").read_text()
        self.assertIn("what is missing is written once it can be", said)
        self.assertIn("metrics.mlflow: works again, and has everything", said)
        self.check_equal_to_lines()
        self.assertGreater(max(self.server.batches), 500)

    def test_steps_go_on_while_a_server_hangs(self):
        self.write_config(100000000)
        run = self.start()
        await_true(lambda: self.server.runs and self.found("train/loss"))
        self.server.hangs.set()
        self.addCleanup(self.server.hangs.clear)
        before = len(self.lines())
        await_true(lambda: len(self.lines()) > before + 2000)
        self.server.hangs.clear()
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(PATIENCE), 143)
        self.check_equal_to_lines()

    def test_what_was_missed_is_sent_when_the_run_is_resumed(self):
        self.assertEqual(self.train("--stop-after", "10").returncode, 0)
        self.server.stop()
        gone_on = self.train("--resume", "auto", "--stop-after", "20")
        self.assertEqual(gone_on.returncode, 0)
        self.assertRegex(gone_on.stderr, "records are lost, of steps 1[01] to 20")
        self.server.start()
        self.assertEqual(self.train("--resume", "auto").returncode, 0)
        self.check_equal_to_lines()

    def test_a_run_that_was_removed_there_begins_anew(self):
        self.assertEqual(self.train("--stop-after", "10").returncode, 0)
        self.server.runs.clear()
        done = self.train("--resume", "auto")
        self.assertEqual(done.returncode, 0)
        self.assertIn("is not there any more; a new one is made", done.stderr)
        self.check_equal_to_lines()

    def test_a_server_without_artifacts(self):
        self.server.serves_artifacts = False
        done = self.train()
        self.assertEqual(done.returncode, 0)
        self.assertIn("does not serve artifacts", done.stderr)
        self.check_equal_to_lines()

    def test_a_server_that_refuses_or_is_no_tracker(self):
        self.server.handle = lambda method, path, body: ["not an object"]
        done = self.train()
        self.assertEqual(done.returncode, 0)
        self.assertIn("the run continues without it", done.stderr)
        refused = self.train("--resume", "auto", "--set", "metrics.on_failure=STOP")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("not as a tracking server of MLflow does", refused.stderr)


class WithoutServer(RunTest):
    def test_is_refused_or_gone_on_without(self):
        refused = self.train("--set", "metrics.on_failure=STOP")
        self.assertEqual(refused.returncode, 74)
        self.assertIn(f"metrics.mlflow: http://127.0.0.1:{self.port}: ", refused.stderr)
        gone_on = self.train("--resume", "auto")
        self.assertEqual(gone_on.returncode, 0)
        self.assertIn("records are lost, of steps 1 to 40", gone_on.stderr)


class WithMlflow(RunTest):
    """The real one, killed and started again in the middle of a run."""

    python = os.environ.get("LOCKSTEP_MLFLOW_PYTHON", sys.executable)

    def setUp(self):
        if subprocess.run([self.python, "-c", "import mlflow"], capture_output=True, check=False).returncode != 0:
            self.skipTest(f"no MLflow in {self.python}")
        super().setUp()
        self.server = None
        self.start_server()
        self.addCleanup(self.kill_server)

    def start_server(self):
        log = open(self.folder / "server.log", "ab")
        self.addCleanup(log.close)
        self.server = subprocess.Popen(
            [self.python, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db",
             "--artifacts-destination", str(self.folder / "artifacts"), "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"],
            stdout=log, stderr=log, start_new_session=True, env={**os.environ, "PATH": os.path.dirname(self.python) + ":" + os.environ["PATH"]})

        def answers():
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).status == 200
            except OSError:
                return False

        await_true(answers)

    def kill_server(self):
        os.killpg(self.server.pid, signal.SIGKILL)
        self.server.wait()

    def call(self, path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/api/2.0/mlflow/{path}", method="POST" if body else "GET",
                                         data=json.dumps(body).encode() if body else None, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def history(self, run, key):
        answer = self.call(f"metrics/get-history?run_id={run}&metric_key={urllib.parse.quote(key, safe='')}")
        return sorted((int(metric.get("step", 0)), metric["value"]) for metric in answer.get("metrics", []))

    def test_goes_away_and_comes_back(self):
        self.write_config(100000000)
        # Some 500 metrics a second, which it takes.
        seldom = ("--set", "metrics.log_every_steps=500", "--set", "trainer.eval_every_steps=500")
        run = self.start(*seldom)
        await_true((self.run_folder / "mlflow.json").exists)
        key = json.loads((self.run_folder / "mlflow.json").read_text())["mlflow_run"]
        await_true(lambda: self.history(key, "train/loss"))
        self.kill_server()
        before = len(self.lines())
        await_true(lambda: len(self.lines()) > before + 50)
        self.start_server()
        have = len(self.history(key, "train/loss"))
        await_true(lambda: len(self.history(key, "train/loss")) > have)
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(PATIENCE), 143)
        self.assertEqual(self.history(key, "train/loss"), self.expected("loss"))
        found = self.call(f"runs/get?run_id={key}")["run"]
        self.assertEqual(found["info"]["status"], "KILLED")

        self.write_config(self.lines()[-1]["step"] + 5000)
        self.assertEqual(self.train("--resume", "auto", "--allow-config-change", *seldom).returncode, 0)
        for name, field in (("train/loss", "loss"), ("eval/accuracy", "eval_accuracy")):
            self.assertEqual(self.history(key, name), self.expected(field))
        found = self.call(f"runs/get?run_id={key}")["run"]
        self.assertEqual(found["info"]["status"], "FINISHED")
        params = {param["key"]: param["value"] for param in found["data"]["params"]}
        self.assertEqual(params["trainer.global_batch"], "24")
        listed = self.call(f"artifacts/list?run_id={key}")
        self.assertEqual(sorted(file["path"] for file in listed["files"]), ["config.effective.textproto", "report.json"])


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "config.textproto"
        config.write_text(CONFIG % (1, free_port()))
        tried = subprocess.run([LOCKSTEP, "train", str(config), "--quiet"], capture_output=True, text=True, check=False)
    if "libcurl" in tried.stderr:
        print("skipped:", tried.stderr)
        sys.exit(77)
    unittest.main()
