#include "run/serve/served_measures.h"

#include <fmt/format.h>

#include "base/index.h"
#include "lockstep/error.h"

namespace lockstep::run {

ServedMeasures::ServedMeasures(const UpdateCall& update, const std::vector<int64_t>& elements,
                               const std::vector<bool>& is_norm_or_bias)
    : slots_(optim::proposed_slots(update.optimizer)), scales_(elements.size(), 1.0) {
  for (size_t p = 0; p < update.pieces.size(); ++p) {
    const auto& piece = update.pieces[p];
    if (piece.is_statistic) continue;
    if (piece.count != nth(elements, piece.parameter))
      throw InternalError(fmt::format("a server measures {} of the {} elements of parameter {}; it needs all",
                                      piece.count, nth(elements, piece.parameter), piece.parameter));
    float* const parameters = update.parameters + piece.offset;
    parameters_.pieces.push_back({parameters, piece.count, chunks_});
    gradients_.pieces.push_back({nullptr, piece.count, chunks_});
    if (slots_ > 0)
      propose_.pieces.push_back({.gradients = nullptr,
                                 .parameters = parameters,
                                 .state = {update.state[0] + piece.offset, update.state[1] + piece.offset},
                                 .count = piece.count,
                                 .first_chunk = chunks_,
                                 .rates = piece.rates,
                                 .parameter = piece.parameter});
    const int64_t chunks = layout::chunks_in(piece.count);
    const bool of_norm = is_norm_or_bias[static_cast<size_t>(piece.parameter)];
    ratios_.pieces.push_back({.first_chunk = chunks_,
                              .chunks = chunks,
                              .parameter = piece.parameter,
                              .is_scaled = optim::is_scaled(update.optimizer, piece.rates, of_norm),
                              .rates = piece.rates});
    weights_.push_back(p);
    chunks_ += chunks;
  }
  for (auto& sums : sums_) sums.resize(static_cast<size_t>(chunks_));
  gradients_.chunks = parameters_.chunks = propose_.chunks = chunks_;
  gradients_.sums = sums_[static_cast<size_t>(layout::Measured::gradients)].data();
  parameters_.sums = sums_[static_cast<size_t>(layout::Measured::parameters)].data();
  propose_.sums = sums_[static_cast<size_t>(layout::Measured::updates)].data();
  propose_.optimizer = ratios_.optimizer = update.optimizer;
  ratios_.sums[0] = gradients_.sums;
  ratios_.sums[1] = parameters_.sums;
  ratios_.sums[2] = slots_ > 0 ? propose_.sums : nullptr;
  ratios_.scales = scales_.data();
}

void ServedMeasures::measure(const UpdateCall& update, StepKernels& kernels, device::Stream& stream) {
  for (size_t i = 0; i < weights_.size(); ++i) {
    const auto& piece = update.pieces[weights_[i]];
    gradients_.pieces[i].data = update.gradients + piece.offset;
    if (slots_ == 0) continue;
    propose_.pieces[i].gradients = update.gradients + piece.offset;
    propose_.pieces[i].rates = piece.rates;
  }
  propose_.verdict = ratios_.verdict = update.verdict;
  propose_.constants = ratios_.constants = update.constants;
  propose_.static_count = ratios_.static_count = update.static_count;
  propose_.whole_step = ratios_.whole_step = update.whole_step;
  propose_.predicated = update.predicated;
  kernels.sum_squares(gradients_, stream);
  kernels.sum_squares(parameters_, stream);
  if (slots_ > 0) kernels.propose(propose_, stream);
  kernels.ratios(ratios_, stream);
}

}  // namespace lockstep::run
