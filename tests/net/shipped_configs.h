#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"

namespace lockstep::net {

/// Every config under configs/ and examples/, and the example whose model is a program's, by their paths in
/// the repository.
std::vector<std::string> shipped_configs();

/// Whether its preset takes a rate of dropout.
bool takes_dropout(const std::string& shipped);

/// The config with its layers, sizes made small, on few samples that are drawn, for two steps (`vit`: four)
/// of 12 micro-batches. The memory that a device has is no limit.
config::RunConfig small_config(const std::string& shipped, const std::string& layout, bool drops);

}  // namespace lockstep::net
