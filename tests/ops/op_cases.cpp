#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

constexpr OpCasesRow kOpCases[] = {
    {Linear::kName, linear_cases},
    {Conv2d::kName, conv2d_cases},
    {Pool2d::kName, pool2d_cases},
    {GlobalPool2d::kName, global_pool2d_cases},
    {BatchNorm::kName, batch_norm_cases},
    {LayerNorm::kName, layer_norm_cases},
    {Embedding::kName, embedding_cases},
    {PositionEmbedding::kName, position_embedding_cases},
    {Attention::kName, attention_cases},
    {Dropout::kName, dropout_cases},
    {Relu::kName, relu_cases},
    {Gelu::kName, gelu_cases},
    {Sigmoid::kName, sigmoid_cases},
    {Tanh::kName, tanh_cases},
    {Add::kName, add_cases},
    {Fork::kName, fork_cases},
    {Flatten::kName, flatten_cases},
    {Reshape::kName, reshape_cases},
    {SoftmaxCrossEntropy::kName, softmax_cross_entropy_cases},
    {MeanSquaredError::kName, mean_squared_error_cases},
};

}  // namespace

std::span<const OpCasesRow> op_cases() { return kOpCases; }

}  // namespace lockstep::testing
