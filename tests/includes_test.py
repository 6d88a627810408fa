#!/usr/bin/env python3
"""A module of src/ includes only modules above it in the list of docs/architecture.md, and public headers stay small:
no CUDA, NCCL, MPI or protobuf. Backend headers stay in their backend's folder."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ORDER = ["base", "device", "tensor", "pixels", "ops", "model", "optim", "control", "comm", "layout", "program", "proof", "run",
         "parallel", "compile", "tokenizer", "data", "checkpoint", "exchange", "infer", "observe", "plan", "config", "charts", "report", "train",
         "doctor", "jobs", "compare", "cli"]
# From a graph to proven programs.
BEFORE_RUNS = {"ops", "model", "optim", "layout", "program", "proof", "parallel", "compile"}
# What a module must not include although it stands above: the design's narrower rules.
NEVER = {
    "ops": {"comm", "control"},
    "control": BEFORE_RUNS | {"device"},
    "comm": {"control"},
    "layout": {"comm", "control", "optim", "device"},
    "program": {"comm", "control", "optim"},
    "proof": {"comm", "control", "optim", "device"},
    "run": {"proof"},
    "parallel": {"comm", "control", "optim", "proof", "run"},
    "compile": {"comm", "control", "optim", "run"},
    "tokenizer": BEFORE_RUNS | {"comm", "control", "run", "device", "tensor", "pixels"},
    "data": BEFORE_RUNS | {"comm", "control", "run"},
    "checkpoint": BEFORE_RUNS | {"comm", "control", "run", "data"},
    "exchange": (BEFORE_RUNS - {"model", "ops"}) | {"comm", "control", "run", "data", "device"},
    "infer": {"optim", "control", "comm", "layout", "program", "proof", "run", "parallel", "compile"},
    "observe": BEFORE_RUNS | {"comm", "control", "run", "data", "checkpoint"},
}
# External headers, and the only folders and files that may see them.
EXTERNAL = {
    r"<mpi\.h>": ["src/comm/mpi", "tests/comm/all_reduce_benchmark.cpp"],
    r"<(cuda|cublas|cudnn|nccl|nvtx).*>": ["src/device/cuda", "src/ops/cuda", "src/comm/nccl", "src/base/half.h", "tests/comm/fake_nccl.h", "tests/device/stream_priority_test.cpp", "tests/ops/probe"],
    r"<google/protobuf/.*>|\"config/schema\.h\"|\".*\.pb\.h\"": ["src/config"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"][^>"]+[>"])', re.MULTILINE)


def main() -> int:
    problems = []
    sources = [p for top in ("src", "include", "examples", "tests") for p in (ROOT / top).rglob("*")
               if p.suffix in (".h", ".cpp", ".cu", ".cuh")]
    for path in sources:
        where = path.relative_to(ROOT)
        module = where.parts[1] if where.parts[0] == "src" else None
        for included in INCLUDE.findall(path.read_text()):
            for pattern, folders in EXTERNAL.items():
                if re.fullmatch(pattern, included) and not any(str(where) == f or str(where).startswith(f + "/") for f in folders):
                    problems.append(f"{where}: {included} belongs to {', '.join(folders)} alone")
            target = included.strip('<>"').split("/")[0]
            if target not in ORDER or not included.startswith('"'):
                continue
            if where.parts[0] == "include":
                problems.append(f"{where}: a public header includes {included}")
            elif module is not None and ORDER.index(target) > ORDER.index(module):
                problems.append(f"{where}: {module} may not include {included}: {target} stands below it")
            elif module is not None and target in NEVER.get(module, set()):
                problems.append(f"{where}: {module} may not include {included}")
    for problem in problems:
        print(problem)
    print(f"{len(sources)} files, {len(problems)} problems")
    return 1 if problems or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
