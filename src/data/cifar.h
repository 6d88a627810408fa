#pragma once

#include "data/dataset.h"

namespace lockstep::data {

/// Fields "image" float32 [32, 32, 3], a value divided by 255, and "label" int32 []: the binary files of
/// CIFAR-10 and CIFAR-100 (Krizhevsky, "Learning multiple layers of features from tiny images", 2009), gzip
/// or not. A record is a label, or a group and a label, then planes of 1,024 red, green and blue bytes. Held
/// in memory as bytes.
DatasetPair open_cifar_datasets(const DataOptions& options);

}  // namespace lockstep::data
