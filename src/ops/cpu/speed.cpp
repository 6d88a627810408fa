#include "ops/cpu/speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "ops/cpu/chained_products.h"
#include "ops/cpu/loops/attention_head.h"
#include "ops/cpu/loops/loops.h"
#include "ops/op.h"

namespace lockstep::ops {
namespace {

/// A piece of work of about a tenth of a millisecond: returns how many operations it was.
class PeakWork {
 public:
  double operator()() {
    std::ranges::fill(numbers_, 0.5f);
    return 2.0 * static_cast<double>(loops().multiply_adds(20'000, numbers_.data()));
  }

 private:
  std::array<float, 16> numbers_{};
};

class ProductWork {
 public:
  double operator()() {
    products_.forward(x_.data(), weight_.data(), nullptr, y_.data(), workspace_.data());
    return 2.0 * kSize * kSize * kSize;
  }

 private:
  static constexpr int64_t kSize = 256;
  ChainedProducts products_{kSize, kSize, kSize, 1, 1};
  std::vector<float> x_ = std::vector<float>(kSize * kSize, 0.5f), weight_ = x_, y_ = x_;
  std::vector<float> workspace_ = std::vector<float>(static_cast<size_t>(products_.forward_bytes()) / 4);
};

class AttentionWork {
 public:
  double operator()() {
    const int64_t row = 3 * kHead;
    const HeadView query{qkv_.data(), row}, key{qkv_.data() + kHead, row},
        value{qkv_.data() + 2 * kHead, row};
    loops().attention_forward({.context = context_,
                               .head = 0,
                               .sample = 0,
                               .query = query,
                               .key = key,
                               .value = value,
                               .output = output_.data(),
                               .log_sum_exp = log_sum_exp_.data(),
                               .workspace = workspace_.data()});
    loops().attention_backward({.context = context_,
                                .head = 0,
                                .sample = 0,
                                .query = query,
                                .key = key,
                                .value = value,
                                .output = {output_.data(), kHead},
                                .output_gradient = {output_.data(), kHead},
                                .log_sum_exp = log_sum_exp_.data(),
                                .query_gradient = gradient_.data(),
                                .key_gradient = gradient_.data() + kHead,
                                .value_gradient = gradient_.data() + 2 * kHead,
                                .adds_keys = false,
                                .workspace = workspace_.data()});
    return operations_;
  }

 private:
  static constexpr int64_t kHead = 64, kPositions = 256;
  static double operations() {
    const TensorSpec input{{kPositions, 3 * kHead}, DType::float32};
    const OpCost cost = ops::cost(Attention{.heads = 1}, {&input, 1}, 1);
    return cost.forward_flops + cost.backward_input_flops;
  }

  const double operations_ = operations();
  AttentionContext context_{
      .sizes = {.batch = 1, .positions = kPositions, .heads = 1, .key_heads = 1, .head_size = kHead}};
  std::vector<float> qkv_ = std::vector<float>(kPositions * 3 * kHead, 0.125f), gradient_ = qkv_;
  std::vector<float> output_ = std::vector<float>(kPositions * kHead);
  std::vector<float> log_sum_exp_ = std::vector<float>(kPositions);
  std::vector<float> workspace_ = std::vector<float>(
      static_cast<size_t>(std::max(context_.sizes.forward_workspace(), context_.sizes.backward_workspace())));
};

template <class Work>
void improve(double& best, Work& work) {
  const auto begin = Clock::now();
  const double operations = work();
  const std::chrono::duration<double> taken = Clock::now() - begin;
  best = std::max(best, operations / std::max(taken.count(), 1e-9));
}

std::array<std::pair<const char*, double>, 2> parts(const ArithmeticSpeed& speed) {
  return {{{"products", speed.products}, {"attention", speed.attention}}};
}

}  // namespace

ArithmeticSpeed measure_arithmetic(double seconds) {
  ArithmeticSpeed speed{.instruction_set = loops().instruction_set};
  PeakWork peak;
  ProductWork products;
  AttentionWork attention;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    improve(speed.peak, peak);
    improve(speed.products, products);
    improve(speed.attention, attention);
  } while (Clock::now() < end);
  return speed;
}

std::string to_text(const ArithmeticSpeed& speed) {
  std::vector<std::string> shares;
  for (const auto& [name, rate] : parts(speed))
    shares.push_back(
        fmt::format("{}{} {:.0f} %", name, shares.empty() ? " reach" : "", 100 * rate / speed.peak));
  return fmt::format("{}, at most {:.0f} GFLOP/s of a core: {}", speed.instruction_set, speed.peak / 1e9,
                     join(shares, ", "));
}

std::vector<std::string> below_half(const ArithmeticSpeed& speed) {
  std::vector<std::string> slow;
  for (const auto& [name, rate] : parts(speed))
    if (rate < speed.peak / 2) slow.emplace_back(name);
  return slow;
}

}  // namespace lockstep::ops
