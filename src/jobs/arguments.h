#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "train/start/device_choice.h"

namespace lockstep::jobs {

/// CONFIG, --set, --layout and --data-dir: what commands that read a config have in common.
struct ConfigArguments {
  std::string path;
  std::vector<std::string> overrides;
  std::optional<std::string> layout;  ///< replaces that of the config
  std::string data_directory;

  /// Overrides by --set, then those of the options that stand for one.
  std::vector<std::string> all_overrides() const;
  config::RunConfig load() const { return config::load_run_config(path, all_overrides(), layout); }
};

/// --json, --quiet and --verbose.
struct OutputArguments {
  bool json = false, quiet = false, verbose = false;
};

/// --device and --allow-shared-gpu.
struct DeviceArguments {
  std::string device = "auto";
  bool allow_shared_gpu = false;

  train::DeviceRequest request() const;
};

}  // namespace lockstep::jobs
