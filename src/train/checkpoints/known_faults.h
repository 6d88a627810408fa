#pragma once

#include <string>

#include "checkpoint/manifest.h"
#include "model/graph.h"

namespace lockstep::train {

/// What is to be told of a checkpoint that a build with a known fault has saved, if that fault may have
/// changed the numbers of this model; "" otherwise.
std::string known_fault_of(const checkpoint::Manifest& manifest, const model::Graph& graph);

}  // namespace lockstep::train
