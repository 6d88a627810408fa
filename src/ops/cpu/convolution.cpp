#include "ops/cpu/convolution.h"

#include <algorithm>

#include "base/ensure.h"

namespace lockstep::ops {

Convolution::Convolution(const ConvolutionSizes& sizes, int replicas, int threads) {
  ensure(sizes.batch % replicas == 0, "replicas of a convolution have equally many images");
  threads = std::max(1, threads);
  const bool is_plain = sizes.kernel == 1 && sizes.stride == 1 && sizes.padding == 0 && sizes.groups == 1;
  const bool is_depthwise = sizes.groups > 1 && sizes.groups == sizes.channels && sizes.groups == sizes.units;
  if (is_plain)
    plain_.emplace(sizes.batch * sizes.pixels(), sizes.units, sizes.channels, replicas, threads);
  else if (is_depthwise)
    depthwise_.emplace(sizes, replicas, threads);
  else
    windows_.emplace(Windows{ConvolutionForward(sizes, threads), ConvolutionInputGradient(sizes, threads),
                             ConvolutionWeightGradient(sizes, replicas, threads)});
}

int64_t Convolution::forward_bytes() const {
  if (plain_) return plain_->forward_bytes();
  return depthwise_ ? depthwise_->forward_bytes() : windows_->forward.bytes();
}

int64_t Convolution::input_gradient_bytes() const {
  if (plain_) return plain_->input_gradient_bytes();
  return depthwise_ ? depthwise_->input_gradient_bytes() : windows_->input_gradient.bytes();
}

int64_t Convolution::weight_gradient_bytes() const {
  if (plain_) return plain_->weight_gradient_bytes();
  return depthwise_ ? depthwise_->weight_gradient_bytes() : windows_->weight_gradient.bytes();
}

void Convolution::forward(const float* x, const float* weight, const float* bias, float* y,
                          float* workspace) const {
  if (plain_) return plain_->forward(x, weight, bias, y, workspace);
  depthwise_ ? depthwise_->forward(x, weight, bias, y, workspace)
             : windows_->forward.run(x, weight, bias, y, workspace);
}

void Convolution::input_gradient(const float* dy, const float* weight, float* dx, float* workspace) const {
  if (plain_) return plain_->input_gradient(dy, weight, dx, workspace);
  depthwise_ ? depthwise_->input_gradient(dy, weight, dx, workspace)
             : windows_->input_gradient.run(dy, weight, dx, workspace);
}

void Convolution::weight_gradient(const float* dy, const float* x, float* dweight, bool accumulate,
                                  float* workspace) const {
  if (plain_) return plain_->weight_gradient(dy, x, dweight, accumulate, workspace);
  depthwise_ ? depthwise_->weight_gradient(dy, x, dweight, accumulate, workspace)
             : windows_->weight_gradient.run(dy, x, dweight, accumulate, workspace);
}

}  // namespace lockstep::ops
