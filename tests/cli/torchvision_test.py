#!/usr/bin/env python3
"""The presets resnet, vgg and vit beside torchvision's models, from the same weights on the same images.

    tests/cli/torchvision_test.py LOCKSTEP

LOCKSTEP_TORCHVISION_PYTHON is a Python that has the packages torch and torchvision; default: this one. What needs them is
skipped if it has not; losses are compared with those that PyTorch had in any case.
"""

import sys
import unittest

import beside_pytorch

LOCKSTEP = ""
# What scripts/compare_torchvision.py prints of PyTorch 2.15's losses on a CPU.
LOSSES = {
    "resnet18": [2.4241056, 2.4227543, 2.4201939, 2.4165494, 2.411931, 2.406445, 2.4001765, 2.3932071, 2.3855982, 2.3774376,
                 2.3687809, 2.3596847, 2.3502324, 2.3404894, 2.3304472, 2.3201485, 2.3096423, 2.2989516, 2.2880878, 2.2770839],
    "vit": [2.3666315, 2.0296421, 1.7466118, 1.5745077, 1.3744444, 1.1826682, 1.0027092, 0.8491324, 0.7284918, 0.6241124,
            0.5414656, 0.4709089, 0.4001883, 0.3419178, 0.2936624, 0.2523074, 0.2188528, 0.1926263, 0.1706115, 0.1507493],
    "vgg11": [2.302659, 2.3013601, 2.2989206, 2.2955043, 2.2912729, 2.286381, 2.2809668, 2.2751632, 2.2690845, 2.262825,
              2.2564669, 2.2500837, 2.2437384, 2.2374759, 2.2313325, 2.2253401, 2.2195203, 2.2138884, 2.2084534, 2.2032216],
}


class Torchvision(unittest.TestCase):
    def test_losses_are_those_that_pytorch_had(self):
        beside_pytorch.expect_losses(self, LOCKSTEP, "compare_torchvision", LOSSES)

    def test_trains_as_torchvision_does(self):
        beside_pytorch.expect_same_training(self, LOCKSTEP, "compare_torchvision", "LOCKSTEP_TORCHVISION_PYTHON")


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop(1)
    unittest.main()
