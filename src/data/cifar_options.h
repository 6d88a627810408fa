#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::data {

/// Which labels of which data set: those of CIFAR-10, the 100 classes of CIFAR-100, or its 20 groups of
/// classes.
enum class CifarLabels { cifar10, cifar100, cifar100_coarse };

struct CifarOptions {
  CifarLabels labels = CifarLabels::cifar10;
  std::vector<std::string> train_files, eval_files;
  std::string eval_list;     ///< instead of eval_files: lists numbers of records to evaluate on
  double eval_fraction = 0;  ///< or the share of each class of the training samples
  uint64_t split_seed = 1;   ///< decides which
  bool operator==(const CifarOptions&) const = default;
};

}  // namespace lockstep::data
