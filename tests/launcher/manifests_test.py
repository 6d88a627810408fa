#!/usr/bin/env python3
"""launcher/kubernetes: manifests say only what their kinds know, what they name exists, and exit codes mean what docs/cli.md says.

What an MPIJob (v2beta1) and a Job may say stands below, as far as the manifests go, in the words of their references. Where
LOCKSTEP_MPIJOB_CRD names the operator's own definition (manifests/base/kubeflow.org_mpijobs.yaml), the MPIJob is checked against
that, too; a Job, where Python's kubernetes_validate is there, against Kubernetes' own schema.
"""

import copy
import os
import re
import sys
import unittest

from support import ROOT, main

try:
    import jsonschema
    import yaml
except ImportError:
    if sys.executable != "/usr/bin/python3" and os.path.exists("/usr/bin/python3"):
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
    print("Python's yaml and jsonschema are missing (python3-yaml, python3-jsonschema)")
    sys.exit(77)

STRING, COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
QUANTITY = {"type": "string", "pattern": r"^\d+(m|Ki|Mi|Gi)?$"}


def record(required=(), **fields):
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


def one_of(*words):
    return {"enum": list(words)}


def list_of(items):
    return {"type": "array", "items": items, "minItems": 1}


AMOUNTS = record(cpu=QUANTITY, memory=QUANTITY, **{"nvidia.com/gpu": COUNT})
CONTAINER = record(
    ("name", "image", "command", "resources"), name=STRING, image=STRING, command=list_of(STRING), args=list_of(STRING),
    resources=record(("requests", "limits"), requests=AMOUNTS, limits=AMOUNTS),
    readinessProbe=record(("tcpSocket",), tcpSocket=record(("port",), port=COUNT), periodSeconds=COUNT),
    lifecycle=record(preStop=record(("exec",), exec=record(("command",), command=list_of(STRING)))),
    volumeMounts=list_of(record(("name", "mountPath"), name=STRING, mountPath=STRING, readOnly={"type": "boolean"})))
POD = record(
    ("containers",), containers=list_of(CONTAINER), restartPolicy=one_of("Never", "OnFailure"), terminationGracePeriodSeconds=COUNT,
    securityContext=record(runAsNonRoot={"type": "boolean"}, runAsUser=COUNT, fsGroup=COUNT),
    volumes=list_of(record(("name",), name=STRING, persistentVolumeClaim=record(("claimName",), claimName=STRING),
                           emptyDir=record(medium=one_of("Memory"), sizeLimit=QUANTITY))))
TEMPLATE = record(("spec",), spec=POD)
METADATA = record(("name",), name={"type": "string", "pattern": "^[a-z0-9-]{1,63}$"})
REPLICAS = record(("replicas", "template"), replicas=COUNT, restartPolicy=one_of("Always", "OnFailure", "Never", "ExitCode"),
                  template=TEMPLATE)
MPIJOB = record(
    ("apiVersion", "kind", "metadata", "spec"), apiVersion=one_of("kubeflow.org/v2beta1"), kind=one_of("MPIJob"), metadata=METADATA,
    spec=record(
        ("mpiReplicaSpecs",), slotsPerWorker=COUNT, sshAuthMountPath=STRING,
        launcherCreationPolicy=one_of("AtStartup", "WaitForWorkersReady"), mpiImplementation=one_of("OpenMPI", "Intel", "MPICH"),
        runPolicy=record(cleanPodPolicy=one_of("None", "Running", "All"), ttlSecondsAfterFinished=COUNT, backoffLimit=COUNT,
                         activeDeadlineSeconds=COUNT, suspend={"type": "boolean"}),
        mpiReplicaSpecs=record(("Launcher", "Worker"), Launcher=REPLICAS, Worker=REPLICAS)))
JOB = record(
    ("apiVersion", "kind", "metadata", "spec"), apiVersion=one_of("batch/v1"), kind=one_of("Job"), metadata=METADATA,
    spec=record(
        ("template",), completionMode=one_of("Indexed"), completions=COUNT, parallelism=COUNT, backoffLimit=COUNT,
        ttlSecondsAfterFinished=COUNT, template=TEMPLATE,
        podFailurePolicy=record(("rules",), rules=list_of(record(
            ("action",), action=one_of("FailJob", "Ignore", "Count"),
            onExitCodes=record(("operator", "values"), containerName=STRING, operator=one_of("In", "NotIn"), values=list_of(COUNT)),
            onPodConditions=list_of(record(("type", "status"), type=STRING, status=one_of("True", "False"))))))))


def manifest(name):
    return yaml.safe_load((ROOT / "launcher" / "kubernetes" / name).read_text())


def strict(schema):
    """What the API server would drop without a word is a mistake here."""
    if isinstance(schema, dict):
        if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        if schema.get("x-kubernetes-int-or-string"):
            schema.pop("type", None)
        for value in schema.values():
            strict(value)
    elif isinstance(schema, list):
        for value in schema:
            strict(value)
    return schema


class Manifests(unittest.TestCase):
    def pods(self):
        """(manifest, role, pod, slots)"""
        job, one = manifest("mpijob.yaml"), manifest("one_host.yaml")
        for role, replicas in job["spec"]["mpiReplicaSpecs"].items():
            yield "mpijob.yaml", role, replicas["template"]["spec"]
        yield "one_host.yaml", "Worker", one["spec"]["template"]["spec"]

    def test_they_say_only_what_their_kinds_know(self):
        jsonschema.validate(manifest("mpijob.yaml"), MPIJOB)
        jsonschema.validate(manifest("one_host.yaml"), JOB)
        wrong = copy.deepcopy(manifest("mpijob.yaml"))
        wrong["spec"]["cleanPodPolicy"] = "Running"          # where version 1 had it
        with self.assertRaises(jsonschema.ValidationError):
            jsonschema.validate(wrong, MPIJOB)

    @unittest.skipUnless(os.environ.get("LOCKSTEP_MPIJOB_CRD"), "LOCKSTEP_MPIJOB_CRD does not name the operator's definition")
    def test_the_operators_own_definition_knows_all_of_it(self):
        with open(os.environ["LOCKSTEP_MPIJOB_CRD"], encoding="utf-8") as file:
            definition = yaml.safe_load(file)
        versions = {version["name"]: version["schema"]["openAPIV3Schema"] for version in definition["spec"]["versions"]}
        schema = strict(versions["v2beta1"])
        schema["properties"]["metadata"] = METADATA
        jsonschema.validate(manifest("mpijob.yaml"), schema)
        wrong = manifest("mpijob.yaml")
        wrong["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["comand"] = ["x"]
        with self.assertRaises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)

    def test_kubernetes_knows_all_of_the_job(self):
        try:
            import kubernetes_validate
        except ImportError:
            self.skipTest("Python's kubernetes_validate is missing")
        kubernetes_validate.validate(manifest("one_host.yaml"), "1.30", strict=True)
        as_job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
        for role in ("Launcher", "Worker"):                  # the pods of the MPIJob, too
            template = manifest("mpijob.yaml")["spec"]["mpiReplicaSpecs"][role]["template"]
            template["spec"]["restartPolicy"] = "Never"
            kubernetes_validate.validate({**as_job, "spec": {"template": template}}, "1.30", strict=True)

    def test_volumes_and_files_that_they_name_are_there(self):
        for name, role, pod in self.pods():
            with self.subTest((name, role)):
                volumes = {volume["name"] for volume in pod["volumes"]}
                mounts = {mount["name"]: mount["mountPath"] for container in pod["containers"] for mount in container["volumeMounts"]}
                self.assertEqual(set(mounts), volumes)
                if role == "Worker":
                    self.assertEqual(mounts["shm"], "/dev/shm")
                self.assertTrue(pod["securityContext"]["runAsNonRoot"])
                self.assertGreater(pod["terminationGracePeriodSeconds"], 100)
                for container in pod["containers"]:
                    words = container["command"] + container.get("args", [])
                    words += container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
                    for word in words:
                        if word.startswith("/usr/share/lockstep/"):
                            self.assertTrue(os.access(ROOT / word[len("/usr/share/lockstep/"):], os.X_OK), word)
                        if word.startswith("configs/"):
                            self.assertTrue((ROOT / word).is_file(), word)

    def test_the_image_has_the_user_and_the_files_of_the_manifests(self):
        dockerfile = (ROOT / "launcher" / "container" / "Dockerfile").read_text()
        user = re.search(r"useradd .*--uid (\d+)", dockerfile)[1]
        self.assertIn(f"USER {user}\n", dockerfile)
        for name, role, pod in self.pods():
            self.assertEqual(str(pod["securityContext"]["runAsUser"]), user, (name, role))
        for copied in re.findall(r"^COPY (?:--chown=\S+ )?(launcher/\S+)", dockerfile, re.M):
            self.assertTrue((ROOT / copied).is_file(), copied)
        home = manifest("mpijob.yaml")["spec"]["sshAuthMountPath"]
        sshd = (ROOT / "launcher" / "container" / "sshd_config").read_text()
        self.assertIn(f"HostKey {home}/id_rsa\n", sshd)
        port = re.search(r"^Port (\d+)$", sshd, re.M)[1]
        self.assertIn(f"Port {port}\n", (ROOT / "launcher" / "container" / "ssh_config").read_text())
        worker = manifest("mpijob.yaml")["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
        self.assertEqual(str(worker["readinessProbe"]["tcpSocket"]["port"]), port)

    def test_codes_that_would_come_again_end_the_job(self):
        rule = manifest("one_host.yaml")["spec"]["podFailurePolicy"]["rules"][0]
        codes = {int(code) for code in re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "cli.md").read_text().split("## Exit codes")[1], re.M)}
        self.assertEqual(set(rule["onExitCodes"]["values"]), {code for code in codes if 1 < code < 128})

    def test_workers_are_as_many_as_cores(self):
        job, one = manifest("mpijob.yaml"), manifest("one_host.yaml")
        worker = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
        self.assertEqual(worker["resources"]["limits"]["cpu"], str(job["spec"]["slotsPerWorker"]))
        alone = one["spec"]["template"]["spec"]["containers"][0]
        self.assertEqual(alone["command"][alone["command"].index("-n") + 1], alone["resources"]["limits"]["cpu"])


if __name__ == "__main__":
    main()
