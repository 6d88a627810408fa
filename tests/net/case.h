#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "layout/layout.h"
#include "lockstep/model.h"

namespace lockstep::net {

/// How a case is trained: what of a config is neither model nor layout.
struct Training {
  int64_t samples = 20, classes = 3;
  uint64_t data_seed = 1, seed = 1;
  bool shuffle = true;
  int64_t global_batch = 4, micro_batch = 0;
  int virtual_replicas = 2;
  std::string optimizer = "sgd {}";
  double learning_rate = 0.1, weight_decay = 0, clip_norm = 0;
  bool decay_norm_and_bias = false;
  std::vector<std::string> groups;  ///< texts of optimizer.groups
  double adaptive_clip = 0;         ///< 0: left out
  std::string ema;                  ///< text of optimizer.ema; "": left out
  std::string compute = "FLOAT32";
  double loss_scale = 0;  ///< 0: the config's default
  std::string nonfinite = "LOCATE";
  int64_t check_every_steps = 100;
  int64_t bucket_bytes = 0;  ///< 0: left out
  std::string wire = "FLOAT32";
  bool error_feedback = false;
  bool fast = false;  ///< sums associate as is fast: close to the oracle, in place of one rank's bits
  std::string algorithm = "AUTOMATIC";
  int intra_op_threads = 1;
  bool fused_gelu = false;
  int64_t memory_limit = 0;  ///< of the layout; one rank has none
};

/// A model, how it is trained, and the layout in which its bits are compared with those of one rank.
struct Case {
  ModelSpec model;
  Training training;
  layout::Layout layout;
  std::vector<std::string> cuts;
  bool on_gpu = false;  ///< the emulated one
  bool shared_memory = false;
  int ranks_per_host = 0;      ///< 0: all ranks are on one host
  bool lanes_at_once = false;  ///< on the asynchronous CPU, where each waits a little now and then
};

/// The host of each rank; none: all are on one.
std::vector<int> hosts_of(int ranks, int ranks_per_host);

/// As a user would write it.
std::string config_text(const Case& test_case);
/// The text, and in a comment the command that checks it again, given a file of it (replay.h).
std::string describe(const Case& test_case);

}  // namespace lockstep::net
