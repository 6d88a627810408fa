#!/usr/bin/env python3
"""scripts/kernel_times.py: every kernel of lockstep is known to it, and a step of GPT as ncu lists it adds up to its groups."""

import contextlib
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from support import PROGRAM, ROOT, Case, main

sys.path.insert(0, str(ROOT / "scripts"))
import kernel_times  # noqa: E402  (scripts are no package)

COLUMNS = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC",
           "Section Name", "Metric Name", "Metric Unit", "Metric Value")
# As ncu writes the names of kernels: NVIDIA's demangler has its own words for unnamed namespaces and template arguments.
TYPES = "lockstep::bfloat16, (int)8"
ATTENTION = "lockstep::ops::<unnamed>::{}_kernel<lockstep::bfloat16, (int)64, {}(bool)0>(lockstep::ops::AttentionCall<T1>, float)"
LOOK_UP = f"lockstep::ops::<unnamed>::look_up_kernel<{TYPES}>(T1 *, const T1 *, const int *, lockstep::ops::RowPacks, long)"
POSITIONS = "lockstep::ops::<unnamed>::add_table_kernel<lockstep::bfloat16>(T1 *, const T1 *, const T1 *, lockstep::ops::RowPacks)"
NORM = f"lockstep::ops::norm_forward_kernel<{TYPES}, (int)3, (bool)1, (bool)1>(lockstep::ops::NormForwardArguments<T1>)"
NORM_BACK = (f"lockstep::ops::norm_backward_kernel<{TYPES}, (int)3, (int)32>(lockstep::ops::NormBackwardArguments<T1>)",
             "lockstep::ops::fold_columns_kernel<lockstep::ops::SumPair<float>, lockstep::ops::<unnamed>::FinishParameters>(const T1 *, int, long, T2)")
GELU = ("lockstep::ops::map_kernel<(int)1, lockstep::bfloat16, lockstep::ops::Forward<lockstep::ops::GeluFormula, lockstep::ops::ApproximateMath>>"
        "(T2 *, const T2 *, const T2 *, long, T3)")
COLUMN_SUM = ("lockstep::ops::column_sum_kernel<(int)8, lockstep::ops::StoredColumns<lockstep::bfloat16, (int)8>>"
              "(T2, long, long, long, float *, bool)")
# GELUs and layer norms whose backward sums the gradient of a bias, and what finishes that.
GELU_BACK = ("lockstep::ops::column_sum_kernel<(int)8, lockstep::ops::<unnamed>::GradientColumns<lockstep::bfloat16, (int)8, lockstep::ops::Backward<"
             "lockstep::ops::GeluFormula, lockstep::ops::ApproximateMath>>>(T2, long, long, long, float *, bool)", COLUMN_SUM)
BIAS_OF_NORM = ("lockstep::ops::fold_columns_kernel<lockstep::ops::<unnamed>::ColumnTotal<float>, lockstep::ops::<unnamed>::FinishTotal>"
                "(const T1 *, int, long, T2)")
LOSS = (f"lockstep::ops::<unnamed>::forward_kernel<{TYPES}, (bool)0>(const T1 *, const int *, lockstep::ops::<unnamed>::Sizes, float *, "
        "lockstep::ops::<unnamed>::RowTerm *)",
        "lockstep::ops::<unnamed>::metrics_kernel(const lockstep::ops::<unnamed>::RowTerm *, long, bool, double *)")
LOSS_BACK = ("lockstep::ops::<unnamed>::backward_kernel<lockstep::bfloat16, (bool)0>(const T1 *, const int *, const float *, "
             "lockstep::ops::<unnamed>::Sizes, double, const lockstep::ops::StepConstants *, T1 *)")
CAST = "lockstep::run::<unnamed>::cast_kernel<lockstep::bfloat16, float>(T1 *, const T2 *, long)"
LIBRARY = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
SPLIT = "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float, __nv_bfloat16, float>(cublasLt::cublasSplitKParams<T5>, const T3 *)"


def forward_block():
    return [NORM, LIBRARY, ATTENTION.format("forward", ""), LIBRARY, NORM, LIBRARY, GELU, LIBRARY]


def backward_block():
    attention = [ATTENTION.format("dots", ""), ATTENTION.format("backward", "(bool)1, "), ATTENTION.format("backward", "(bool)0, ")]
    linear = [LIBRARY, LIBRARY]
    return [*linear, *GELU_BACK, *linear, *NORM_BACK, BIAS_OF_NORM, *linear, *attention, *linear, COLUMN_SUM, COLUMN_SUM, *NORM_BACK, BIAS_OF_NORM]


def step(layers):
    """The kernels of a step, in order."""
    embedding = [f"lockstep::ops::<unnamed>::{name}(lockstep::ops::<unnamed>::Keys, int *)" for name in ("count_kernel", "offsets_kernel", "move_kernel")]
    return [CAST, LOOK_UP, POSITIONS, *(kernel for _ in range(layers) for kernel in forward_block()), NORM, LIBRARY, *LOSS,
            "lockstep::run::<unnamed>::agree_kernel(const std::byte *, long, int, lockstep::program::Verdict *)", LOSS_BACK, LIBRARY, LIBRARY, SPLIT, *NORM_BACK, BIAS_OF_NORM,
            *(kernel for _ in range(layers) for kernel in backward_block()),
            "lockstep::ops::<unnamed>::sum_samples_kernel<lockstep::bfloat16>(float *, long, const T1 *, long, long, bool)", *embedding,
            f"lockstep::ops::<unnamed>::sum_segments_kernel<{TYPES}>(lockstep::ops::<unnamed>::TableGradient, const T1 *, long)",
            "lockstep::ops::<unnamed>::finish_rows_kernel<(int)4>(lockstep::ops::<unnamed>::TableGradient)",
            "lockstep::run::<unnamed>::add_kernel(float *, const float *, long, long)",
            "lockstep::run::<unnamed>::chunk_kernel(lockstep::run::<unnamed>::ChunkedPieces, double *)",
            "lockstep::run::<unnamed>::conclude_kernel(const double *, long, long, double, double, const lockstep::ops::StepConstants *, lockstep::program::Verdict *)",
            "lockstep::run::<unnamed>::update_kernel<lockstep::optim::AdamFormula, (int)2>(lockstep::run::<unnamed>::UpdatePieces)"]


def listed(kernels, unit="nsecond", value="1,000,000"):
    """What ncu --csv prints of them, among what the program prints."""
    quoted = [",".join(f'"{column}"' for column in COLUMNS)]
    for number, kernel in enumerate(kernels):
        cells = (number, 77, "lockstep", "127.0.0.1", kernel, 1, 7, "(256, 1, 1)", "(132, 1, 1)", 0, "9.0", "Command line profiler metrics",
                 kernel_times.METRIC, unit, value)
        quoted.append(",".join(f'"{cell}"' for cell in cells))
    return ["==PROF== Connected to process 77 (/opt/lockstep)", '==PROF== Profiling "forward_kernel" - 0: 0%....50%....100% - 1 pass',
            '{"steps":1,"first_step_ms":12.5}', "==PROF== Disconnected from process 77", *quoted]


def launches(kernels):
    sums, strangers = kernel_times.add_up([(kernel, 1.0) for kernel in kernels])
    return {group: count for group, (_, count) in sums.items()}, strangers


class Reading(unittest.TestCase):
    def test_times_in_the_order_of_launches_whatever_their_unit(self):
        for unit, value in (("nsecond", "1,500,000"), ("ns", "1500000"), ("usecond", "1,500.00"), ("us", "1500"), ("msecond", "1.5"), ("ms", "1.5")):
            with self.subTest(unit=unit):
                self.assertEqual(kernel_times.read_kernels(listed(["b", "a"], unit, value)), [("b", 1.5), ("a", 1.5)])

    def test_other_metrics_are_left_out(self):
        lines = [line.replace(kernel_times.METRIC, "sm__cycles_elapsed.max") for line in listed(["a"])]
        self.assertEqual(kernel_times.read_kernels(lines), [])
        self.assertEqual(kernel_times.read_kernels(["==ERROR== ERR_NVGPUCTRPERM"]), [])


class Grouping(unittest.TestCase):
    def test_a_step_of_gpt(self):
        groups, strangers = launches(step(12))
        self.assertEqual(strangers, {})
        self.assertEqual(groups, {
            kernel_times.FORWARD: 48, kernel_times.INPUTS: 48, kernel_times.WEIGHTS: 48, kernel_times.HEAD: 4, kernel_times.ATTENTION_FORWARD: 12,
            kernel_times.ATTENTION_BACKWARD: 24, kernel_times.ATTENTION_DOT: 12, kernel_times.LAYER_NORM: 25 + 50, kernel_times.GELU: 24,
            kernel_times.COLUMN_SUMS: 12 * 5 + 1, kernel_times.CROSS_ENTROPY: 3, kernel_times.EMBEDDINGS: 8, kernel_times.OPTIMIZER: 1,
            kernel_times.NORM: 3, kernel_times.CASTS: 1, kernel_times.TIED_ADD: 1})
        self.assertEqual(set(groups), set(kernel_times.works(kernel_times.GPT, 64)))
        self.assertEqual(kernel_times.unlike_the_model([(kernel, 1.0) for kernel in step(12)], kernel_times.GPT), "")

    def test_products_have_the_role_of_their_place(self):
        kernels = [(kernel, 1.0) for kernel in step(1)]
        roles = kernel_times.roles_of_products(kernels)
        self.assertEqual([roles[i] for i in sorted(roles)], [kernel_times.FORWARD] * 4 + [kernel_times.HEAD] * 4 +
                         [kernel_times.INPUTS, kernel_times.WEIGHTS] * 4)

    def test_parts_of_divided_sums_go_with_their_product(self):
        block = [LIBRARY, SPLIT, LIBRARY, SPLIT, COLUMN_SUM]
        groups, _ = launches([NORM, LIBRARY, SPLIT, NORM, LIBRARY, *LOSS, LOSS_BACK, LIBRARY, LIBRARY, *NORM_BACK, *block])
        self.assertEqual([groups[name] for name in (kernel_times.FORWARD, kernel_times.HEAD, kernel_times.INPUTS, kernel_times.WEIGHTS)], [2, 3, 2, 2])

    def test_a_gelu_in_its_products_changes_no_role(self):
        plain, _ = launches(step(12))
        fused, _ = launches([kernel for kernel in step(12) if "GeluFormula" not in kernel])
        self.assertEqual({**fused, kernel_times.GELU: 24}, plain)

    def test_the_outermost_namespace_may_be_left_out(self):
        shortened = [re.sub(r"lockstep::(?=(ops|run)::)", "", kernel) for kernel in step(12)]
        self.assertEqual(launches(shortened), launches(step(12)))

    def test_unnamed_namespaces_have_several_names(self):
        for unnamed in ("<unnamed>", "(anonymous namespace)", "_GLOBAL__N__1a23ab00_13_layer_norm_cu_dc5b563b"):
            name = "void " + LOSS[0].replace("<unnamed>", unnamed)
            self.assertEqual((kernel_times.own_name(name), kernel_times.group_of(name)), ("forward_kernel", kernel_times.CROSS_ENTROPY))

    def test_what_is_not_of_the_model_is_told(self):
        foreign = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>>(int, T2, T3)"
        relu = GELU.replace("GeluFormula", "ReluFormula")
        _, strangers = launches([*step(12), foreign, relu, "lockstep::ops::<unnamed>::forward_kernel<float>(lockstep::ops::<unnamed>::Unheard)"])
        self.assertEqual({name.partition("<")[0]: count for name, (_, count) in strangers.items()},
                         {"void at::native::vectorized_elementwise_kernel": 1, "lockstep::ops::map_kernel": 1, "lockstep::ops::": 1})
        doubt = kernel_times.unlike_the_model([(kernel, 1.0) for kernel in step(11)], kernel_times.GPT)
        self.assertIn("44 of block products forward, expected 48", doubt)
        # Without the loss's kernels there is no telling.
        _, strangers = launches([NORM, LIBRARY])
        self.assertEqual(list(strangers), [LIBRARY])


class Sources(unittest.TestCase):
    # By source: groups of its kernels.
    EXPECTED = {"activations": {kernel_times.GELU, kernel_times.ELSEWHERE}, "attention_forward": {kernel_times.ATTENTION_FORWARD},
                "attention_backward": {kernel_times.ATTENTION_BACKWARD}, "attention": {kernel_times.ATTENTION_DOT, kernel_times.ELSEWHERE},
                "attention_general": {kernel_times.ATTENTION_FORWARD, kernel_times.ATTENTION_BACKWARD},
                "softmax_cross_entropy": {kernel_times.CROSS_ENTROPY}, "embedding": {kernel_times.EMBEDDINGS},
                "token_order": {kernel_times.EMBEDDINGS}, "position_embedding": {kernel_times.EMBEDDINGS},
                "norm_column_sum": {kernel_times.COLUMN_SUMS},
                "step_kernels": {kernel_times.OPTIMIZER, kernel_times.NORM, kernel_times.CASTS, kernel_times.TIED_ADD,
                                 kernel_times.ELSEWHERE}}

    def kernels_of_sources(self):
        """{name: source}."""
        found = {}
        for path in sorted(ROOT.glob("src/**/cuda/*")):
            # What follows: the launch bounds, then the name.
            for declared in re.findall(r"__global__ void\s+(.*?)\s*\{", path.read_text(), re.DOTALL):
                name = re.search(r"(\w+_kernel)\(", declared)
                self.assertTrue(name, f"{path.name}: {declared}: a kernel's name ends with _kernel")
                found.setdefault(name.group(1), path.name)
        self.assertGreater(len(found), 30)
        return found

    def test_every_kernel_of_the_sources_is_known(self):
        known = {name for name, _, _ in kernel_times.KERNELS}
        found = self.kernels_of_sources()
        self.assertEqual({name: path for name, path in found.items() if name not in known}, {})
        self.assertEqual({name for name in known if name not in found}, set())

    def test_every_kernel_of_the_program_is_in_its_group(self):
        # As the host's compiler names what it registers with CUDA's runtime. Unnamed namespaces are named after their file.
        program = pathlib.Path(PROGRAM)
        if not PROGRAM or not shutil.which("c++filt"):
            self.skipTest("there is no program, or no c++filt")
        contents = program.read_bytes()
        if b"\0.nv_fatbin\0" not in contents:
            self.skipTest("the program has no kernels for GPUs")
        mangled = sorted(set(re.findall(rb"\0(_ZN8lockstep\w*_kernel\w*)(?=\0)", contents)))
        demangled = subprocess.run(["c++filt"], input=b"\n".join(mangled), stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()
        kernels, groups = self.kernels_of_sources(), {}
        for raw, name in zip(mangled, demangled):
            if kernel_times.own_name(name) not in kernels:
                continue    # a function of the host
            self.assertIsNotNone(kernel_times.group_of(name), name)
            place = re.search(rb"_GLOBAL__N__[0-9a-f]+_\d+_(\w+?)_cu_", raw)
            if place and kernel_times.own_name(name) != "fold_columns_kernel":
                groups.setdefault(place.group(1).decode(), set()).add(kernel_times.group_of(name))
        self.assertEqual({place: found for place, found in groups.items() if found != self.EXPECTED.get(place, {kernel_times.ELSEWHERE})}, {})
        self.assertLessEqual(set(self.EXPECTED), set(groups))


class Works(unittest.TestCase):
    def test_by_hand(self):
        works = kernel_times.works(kernel_times.GPT, 64)
        self.assertEqual(works[kernel_times.FORWARD].flops, 12 * 2 * 65536 * 768 * (3 * 768 + 768 + 4 * 768 + 4 * 768))
        self.assertEqual(works[kernel_times.HEAD].flops, 3 * 2 * 65536 * 768 * 50304)
        # 64 samples, 12 layers, 12 heads: two products of 1024 x 1024 x 64, half of which is masked.
        self.assertEqual(works[kernel_times.ATTENTION_FORWARD].flops, 64 * 12 * 12 * 2 * 2 * 1024 * 1024 * 64 / 2)
        self.assertEqual(works[kernel_times.CROSS_ENTROPY].size_bytes, 65536 * 50304 * 4)
        self.assertEqual(works[kernel_times.COLUMN_SUMS].size_bytes, 12 * 65536 * (2304 + 768 + 3072 + 768) * 2)
        self.assertEqual(works[kernel_times.OPTIMIZER].size_bytes, 124475904 * 28)
        # 4 TB in 1000 s.
        self.assertEqual(kernel_times.Work(1, size_bytes=4e12).rate(1e6), 4)
        self.assertEqual(kernel_times.Work(1, flops=1e15).rate(1e3), 1000)

    def test_predictions_are_those_of_the_documents(self):
        text = (ROOT / "docs" / "gpu-results.md").read_text()
        rows = [line.split("|") for line in text.partition("| Part of a step |")[2].partition("\n\n")[0].splitlines()[2:]]
        told = [row[3].strip().replace("–", "-") for row in rows][:-2]       # then gaps and the sum
        self.assertEqual([float(word) if "-" not in word else word for word in told],
                         [work.least_ms if work.least_ms == work.most_ms else f"{work.least_ms}-{work.most_ms}"
                          for work in kernel_times.works(kernel_times.GPT, 64).values()])

    def test_predictions_add_up_to_the_step(self):
        total = sum(work.predicted_ms for work in kernel_times.works(kernel_times.GPT, 64).values())
        self.assertAlmostEqual(total + kernel_times.GAPS_MS, kernel_times.H200.step_ms, delta=2.5)
        # Of other GPUs: what is bound by memory takes longer, and nothing else.
        for gpu in kernel_times.GPUS:
            total = sum(sum(gpu.predicted_ms(work)) / 2 for work in kernel_times.works(kernel_times.GPT, 64).values())
            self.assertAlmostEqual(total + kernel_times.GAPS_MS, gpu.step_ms, delta=4)

    def test_predictions_are_those_of_the_gpu_that_is_there(self):
        self.assertIs(kernel_times.gpu_named("NVIDIA H100 80GB HBM3", None), kernel_times.GPUS[1])
        self.assertIs(kernel_times.gpu_named("NVIDIA H200", None), kernel_times.H200)
        self.assertIs(kernel_times.gpu_named("", None), kernel_times.H200)
        with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
            log.write('{"device":"x","copy_bytes_per_second":2.15e+12,"product_flops":6e+14}\n')
            log.flush()
            other = kernel_times.gpu_named("NVIDIA A100", log.name)
            self.assertEqual((other.name, other.memory_factor), ("NVIDIA A100", 2))
            self.assertIs(kernel_times.gpu_named("NVIDIA H200", log.name), kernel_times.H200)
        works = kernel_times.works(kernel_times.GPT, 64)
        self.assertEqual(other.predicted_ms(works[kernel_times.GELU]), (12, 12))
        self.assertEqual(other.predicted_ms(works[kernel_times.HEAD]), (22, 22))
        self.assertGreater(other.step_ms, kernel_times.H200.step_ms + 15)


class Tables(Case):
    REPORT = {"tokens_per_second": 400000.0, "step_ms": {"p50": 160.0}, "data_wait_ms": 0.25, "peak_memory_bytes": 32 << 30,
              "first_step_ms": 5000.4, "startup_parts_ms": {"launch": 100.0, "kernels": 0.1, "parameters": 4900.0}}

    def run_script(self, *arguments):
        ran = subprocess.run([sys.executable, ROOT / "scripts" / "kernel_times.py", *arguments], stdout=subprocess.PIPE, text=True, check=False)
        return ran.returncode, ran.stdout

    def training(self):
        path = self.folder / "gpt.log"
        path.write_text("lockstep: a warning\n" + json.dumps(self.REPORT, separators=(",", ":")) + "\n")
        return path

    def test_a_training(self):
        code, said = self.run_script("training", self.training(), self.folder / "absent.log")
        self.assertEqual((code, said.splitlines()[1:]), (0, ["absent: no report"]))
        self.assertEqual(said.splitlines()[0], "gpt: 400,000 tokens/s (predicted 532,813, H200), 160.0 ms a step (123), MFU 32.3%, waits for data "
                         "0.25 ms, planned memory 32.0 GiB, first step after 5000 ms (4000): launch 100, parameters 4900")

    def test_a_step(self):
        path = self.folder / "log"
        path.write_text("\n".join(listed(step(12))) + "\n")
        code, said = self.run_script("step", path, "--training", self.training(), "--json-out", self.folder / "json")
        self.assertEqual(code, 0, said)
        # 48 ms, of 11.13 TFLOP predicted to take 17 ms: 232 TFLOP/s, and 655.
        self.assertRegex(said, r"(?m)^block products forward +48 +48\.000 +17 +2\.82 +232 +655 TFLOP/s$")
        self.assertRegex(said, r"(?m)^attention backward +24 +24\.000 +17-22 +1\.23 +180 +222 TFLOP/s$")
        self.assertRegex(said, r"(?m)^GELU +24 +24\.000 +6 +4\.00 +1007 +4027 GB/s$")
        count = len(step(12))
        self.assertRegex(said, rf"(?m)^words, waits and gaps +{160 - count}\.000 +0\.8 ")
        self.assertTrue(said.splitlines()[-1].startswith(f"{count} kernels, {count}.0 ms; most above the prediction, in ms: layer norm +69.5, "), said)
        self.assertLess(len(said), 2900)
        self.assertEqual(json.loads((self.folder / "json").read_text())["GELU"], {"ms": 24.0, "launches": 24})

    def test_a_step_without_kernels(self):
        path = self.folder / "log"
        path.write_text("==ERROR== ERR_NVGPUCTRPERM\n")
        code, said = self.run_script("step", path)
        self.assertEqual((code, "has no kernels" in said), (1, True))

    def test_what_is_in_no_group_is_shown(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            kernel_times.print_step([("void other(int)", 2.5)] * 2, kernel_times.GPT, None, kernel_times.H200)
        self.assertRegex(out.getvalue(), r"(?m)^in no group +2 +5\.000\n  in no group: 5\.000 ms, 2 x void other\(int\)$")


if __name__ == "__main__":
    main()
