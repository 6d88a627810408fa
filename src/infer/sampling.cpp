#include "infer/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::infer {

void check(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
    throw ConfigError(fmt::format("temperature must be 0 or more, is {}", options.temperature));
  if (options.top_k < 0) throw ConfigError(fmt::format("top_k must be 0 or more, is {}", options.top_k));
  if (!(options.top_p > 0 && options.top_p <= 1))
    throw ConfigError(fmt::format("top_p must be above 0 and at most 1, is {}", options.top_p));
}

int32_t choose(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int32_t token) { return static_cast<double>(logits[static_cast<size_t>(token)]); };
  for (const int32_t token : order)
    if (std::isnan(logit(token)))
      throw DataError("the model's logits are not numbers: its training diverged");
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  if (order.empty() || !std::isfinite(logit(order[0])))
    throw DataError("the model's logits are not finite: its training diverged");
  if (options.temperature == 0) return order[0];
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(options.top_k)));

  std::vector<double> weights;
  for (const int32_t token : order)
    weights.push_back(std::exp((logit(token) - logit(order[0])) / options.temperature));
  double sum = std::accumulate(weights.begin(), weights.end(), 0.0), kept = 0;
  size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < options.top_p * sum)) kept += weights[count++];

  double left = uniform * kept;
  for (size_t i = 0; i + 1 < count; ++i) {
    if (left < weights[i]) return order[i];
    left -= weights[i];
  }
  return order[count - 1];
}

}  // namespace lockstep::infer
