#pragma once

#include "data/dataset.h"

namespace lockstep::data {

/// Learnable samples made from the seed, each in time proportional to its own size and to nothing else, with
/// the same bits on every machine. What samples share is made once and kept, where it fits into 16 MiB.
///
/// With `shape`: fields "image" float32 [shape] and "label" int32 []. Sample i is of class i mod classes: a
/// prototype of that class plus noise of deviation 1, both nearly Gaussian (sums of four uniform bytes).
/// Prototypes lie about 11 noise deviations apart, whatever the shape, so that a trained classifier reaches
/// about 100 %.
///
/// With `context`: fields "tokens" and "label" int32 [context]. A token follows from the one before by a
/// fixed permutation of the classes, save that one in eight is drawn at random.
///
/// Evaluation samples are further samples of the same source, none of which is trained on.
DatasetPair open_synthetic_datasets(const DataOptions& options);

}  // namespace lockstep::data
