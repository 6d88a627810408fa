#pragma once

#include <string>

#include "checkpoint/manifest.h"
#include "model/graph.h"

namespace lockstep::train {

/// A warning if the checkpoint was saved by a build with a known fault that may have changed this model's
/// numbers; "" otherwise.
std::string known_fault_of(const checkpoint::Manifest& manifest, const model::Graph& graph);

}  // namespace lockstep::train
