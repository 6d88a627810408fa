#pragma once

#include "data/dataset.h"

namespace lockstep::data {

/// Learnable samples made from the seed, with the same bits on every machine. The time for a sample is
/// proportional to its size. What samples share is made once and kept, if it fits into 16 MiB.
///
/// With `shape`: fields "image" float32 [shape] and "label" int32 []. Sample i is of class i mod classes: a
/// prototype of that class plus noise of deviation 1, both nearly Gaussian (sums of four uniform bytes).
/// Prototypes are about 11 noise deviations apart for any shape, so that a trained classifier reaches about
/// 100 %.
///
/// With `context`: fields "tokens" and "label" int32 [context]. A token follows from the preceding one by a
/// fixed permutation of the classes, except that one in eight is drawn at random. If documents are read,
/// token 0 begins one.
///
/// Evaluation samples are further samples of the same source, none of which is trained on.
DatasetPair open_synthetic_datasets(const DataOptions& options);

}  // namespace lockstep::data
