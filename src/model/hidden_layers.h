#pragma once

#include <optional>

#include "base/matrix_size.h"
#include "model/graph.h"

namespace lockstep::model {

/// A parameter as a matrix [outputs, everything else]: a weight of two or more dimensions that only one node
/// uses. None otherwise.
std::optional<MatrixSize> matrix_of(const Parameter& parameter);

/// By parameter, whether it is a matrix of a hidden layer: the weight of a `linear`, or of a `conv2d` without
/// groups, that is matrix_of() something, with a layer before it and a layer after it that have such weights
/// of any op. So embeddings, what reads the model's input first, and what makes its last output are not
/// hidden.
std::vector<bool> hidden_matrices(const Graph& graph);

}  // namespace lockstep::model
