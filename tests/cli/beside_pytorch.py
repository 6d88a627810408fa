"""What the tests of scripts/compare_*.py share. Each of these scripts has CASES, models that it trains in lockstep and PyTorch."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


def expect_losses(test, lockstep, script, losses):
    """That lockstep's losses are those that PyTorch had. Needs no package."""
    sys.path.insert(0, str(SCRIPTS))  # of what the script imports
    spec = importlib.util.spec_from_file_location(script, SCRIPTS / f"{script}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    test.assertEqual(module.CASES.keys(), losses.keys())
    for model, expected in losses.items():
        with test.subTest(model), tempfile.TemporaryDirectory() as place:
            folder, case = pathlib.Path(place), module.CASES[model]
            case.write_data(folder)
            ours, _ = case.train(lockstep, folder, model, len(expected), case.rate)
            test.assertEqual((len(ours), len(expected)), (20, 20))
            for step, (loss, peer) in enumerate(zip(ours, expected)):
                test.assertLess(abs(loss - peer), 1e-5, f"step {step}: {loss}, not {peer}")


def expect_same_training(test, lockstep, script, variable):
    """That the script, with the Python that an environment variable names, finds no difference. Skips without its packages."""
    done = subprocess.run([os.environ.get(variable, sys.executable), SCRIPTS / f"{script}.py", lockstep], capture_output=True,
                          text=True, check=False)
    if done.returncode == 77:
        test.skipTest(done.stdout.strip())
    test.assertEqual(done.returncode, 0, done.stdout + done.stderr)
