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

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (const OpCasesRow& row : op_cases()) {
    for (OpCase& c : row.cases()) {
      c.name = std::string(row.op) + "_" + c.name;
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

std::vector<OpCase> narrow_cases(DType dtype, double tolerance) {
  std::vector<OpCase> cases = all_cases();
  for (OpCase& c : cases) {
    c.options.compute = dtype;
    c.tolerance = tolerance;
    // Rounded numbers are often equal, and a maximum of equal ones has no derivative: all in a window differ.
    if (std::holds_alternative<Pool2d>(c.op))
      c.prepare = [](std::vector<Array>& inputs) {
        for (size_t i = 0; i < inputs[0].values.size(); ++i)
          inputs[0].values[i] = (static_cast<double>(i * 73 % 251) - 125) / 128;
      };
  }
  return cases;
}

}  // namespace lockstep::testing
