#!/usr/bin/env python3
"""The preset gpt beside transformers' GPT-2, from the same weights on the same text.

    tests/cli/transformers_test.py LOCKSTEP

LOCKSTEP_TRANSFORMERS_PYTHON is a Python that has the packages torch and transformers; default: this one. What needs them is
skipped if it has not; losses are compared with those that transformers had in any case.
"""

import sys
import unittest

import beside_pytorch

LOCKSTEP = ""
# What scripts/compare_transformers.py prints of the losses of transformers 5.24 on a CPU.
LOSSES = {
    "gpt": [
        1.9434, 1.8600389, 1.8161225, 1.7791752, 1.7544035, 1.7443804, 1.7342809, 1.7074069, 1.6698799, 1.642188,
        1.6227236, 1.6039091, 1.5930829, 1.5872711, 1.5805426, 1.5710295, 1.5577521, 1.5396911, 1.5179805, 1.4961122,
    ],
    "gpt_untied": [
        1.9315304, 1.8579215, 1.815437, 1.7706232, 1.7335137, 1.7018768, 1.6487576, 1.5763799, 1.5120305, 1.3725041,
        1.2975854, 1.2874073, 1.1575643, 1.0581868, 1.0256453, 0.9547605, 0.9060587, 0.8860614, 0.8485951, 0.8176038,
    ],
}


class Transformers(unittest.TestCase):
    def test_losses_are_those_that_transformers_had(self):
        beside_pytorch.expect_losses(self, LOCKSTEP, "compare_transformers", LOSSES)

    def test_trains_as_transformers_does(self):
        beside_pytorch.expect_same_training(self, LOCKSTEP, "compare_transformers", "LOCKSTEP_TRANSFORMERS_PYTHON")


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop(1)
    unittest.main()
