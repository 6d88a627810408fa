#pragma once

#include <cstdint>

#include "ops/cpu/chained_products.h"
#include "ops/cpu/recurrent_product.h"
#include "ops/cpu/row_range.h"
#include "ops/op.h"

namespace lockstep::ops {

struct LstmSizes {
  int64_t batch, positions, inputs, units;
  int64_t directions;
  int64_t rows() const { return batch * positions; }
  int64_t gates() const { return 4 * units; }
};

/// One direction's tensors of a call. Its units are some columns of the output.
struct LstmForwardCall {
  const float *x, *mask;  ///< mask: null if there is none
  const float *weight_ih, *weight_hh, *bias_ih, *bias_hh;
  float *gates, *cells, *output;
};
struct LstmBackwardCall {
  const float *x, *mask, *weight_ih, *weight_hh, *gates, *cells, *output, *output_gradient;
  float* input_gradient;  ///< null: not wanted
  float *weight_ih_gradient, *weight_hh_gradient, *bias_ih_gradient, *bias_hh_gradient;
  bool accumulate;  ///< gradients of parameters
};

/// A direction of an LSTM on the CPU. Every number is a chain of its own sample's, so that its bits depend
/// neither on how many samples or positions are computed at once, nor on threads; gradients of weights are
/// those of ChainedProducts over the rows in the order of samples, then positions.
///
/// Threads share the samples. Each takes its own through all positions: it waits for nobody between them.
/// Of few positions of a sample, as when a text is written, threads share the columns of products instead,
/// and the caller keeps packed weights from call to call: packing them takes longer than multiplying.
class LstmDirection {
 public:
  LstmDirection(const LstmSizes& sizes, int64_t direction, const KernelOptions& options);

  /// Of memory in which packed weights may be kept while these do not change; 0: calls pack what they need.
  int64_t kept_floats() const;
  void pack(const LstmForwardCall& call, float* kept) const;
  int64_t forward_floats() const;  ///< of workspace
  int64_t backward_floats() const;
  /// `kept`: what pack() has written, if kept_floats() is not 0.
  void forward(const LstmForwardCall& call, const RowRange& positions, const float* kept,
               float* workspace) const;
  void backward(const LstmBackwardCall& call, float* workspace) const;

 private:
  struct Samples;  // that a thread takes
  static constexpr int64_t kFewRows = 8;

  int64_t column() const { return direction_ * sizes_.units; }
  int64_t output_stride() const { return sizes_.directions * sizes_.units; }
  bool is_reverse() const { return direction_ > 0; }
  int64_t thread_samples() const;
  Samples samples_of(int64_t thread) const;
  int64_t forward_thread_floats() const;
  int64_t backward_thread_floats() const;
  bool keeps_panels() const { return rows_ > 0 && rows_ <= kFewRows; }
  void multiply_inputs(const LstmForwardCall& call, const RowRange& positions, const float* panels,
                       float* workspace) const;
  void run_forward(const LstmForwardCall& call, const RowRange& positions, const Samples& samples,
                   const float* panels, int threads, float* own) const;
  void step_forward(const LstmForwardCall& call, int64_t row, const float* cell_before) const;
  void run_backward(const LstmBackwardCall& call, const Samples& samples, const float* panels,
                    float* gradients, float* own) const;
  void gather_hidden(const LstmBackwardCall& call, float* hidden) const;
  void finish(const LstmBackwardCall& call, const float* gradients, float* workspace) const;
  void finish_biases(const LstmBackwardCall& call, const float* gradients, float* workspace) const;

  LstmSizes sizes_;
  int64_t direction_;
  int64_t rows_;  ///< positions of each sample that are computed in a call; 0: all
  int threads_, replicas_;
  ChainedProducts input_products_, hidden_products_;
  RecurrentProduct recurrent_, recurrent_gradient_, few_inputs_;
};

}  // namespace lockstep::ops
