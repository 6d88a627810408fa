#pragma once

#include <string>

#include "lockstep/tensor.h"
#include "model/graph.h"

namespace lockstep::exchange {

/// What PyTorch calls a parameter of a node: "<layer>.<parameter>", but for parameters of nn.LSTM, of
/// nn.MultiheadAttention, and for what is a parameter of a module by itself, such as `class_token`.
std::string name_there(const model::Graph& graph, const model::Node& node, const std::string& parameter);

/// The shape there of a parameter that has `shape` here, apart from the order of its elements.
Shape shape_there(const model::Node& node, const Shape& shape);

/// Throws ConfigError, which names the layers, if LSTMs are numbered as those of one nn.LSTM ("rnn.l0",
/// "rnn.l1"), but one is missing, or they do not follow each other as its layers do.
void check_lstm_stacks(const model::Graph& graph);

}  // namespace lockstep::exchange
