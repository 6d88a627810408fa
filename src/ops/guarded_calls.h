#pragma once

#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops/custom_op.h"

namespace lockstep::ops {

using Numbers = std::vector<float>;

/// What lies where a call may not read. An op that compares numbers, such as max(x, 0), makes the same of NaN
/// each time, but not of both large ones.
enum class Unread { nothing, nan, high, low };

inline constexpr size_t kAllWanted = std::numeric_limits<size_t>::max();

/// Calls of a program's own op, sample by sample, on copies of numbers with words around them that nobody may
/// write. A call throws Error if the op writes beyond what it is given, or changes what it may only read.
/// Thread-safe while nobody changes its public members.
class GuardedCalls {
 public:
  /// Without numbers: whoever calls fills them in.
  GuardedCalls(const Custom& op, std::vector<Shape> inputs);

  // The lists of calls. `before`: what stands where they write. `unwanted`: the gradient that they do not ask
  // for.
  Numbers forward(size_t sample, float before) const;
  std::vector<Numbers> input_gradients(size_t sample, float before, Unread unread,
                                       size_t unwanted = kAllWanted) const;
  /// Sums over all samples, onto `before`.
  std::vector<Numbers> parameter_gradients(float before, Unread unread, size_t unwanted = kAllWanted) const;

  /// Throws Error, which names the op.
  [[noreturn]] void fail(const std::string& what) const;
  void expect_finite(const Numbers& numbers, const std::string& what) const;
  /// To the bit. `why`: what a difference means.
  void expect_same(const Numbers& first, const Numbers& second, const std::string& what,
                   const std::string& why) const;

  const std::vector<Shape>& shapes() const { return shapes_; }
  const CustomOp::Signature& signature() const { return signature_; }

  std::vector<std::vector<Numbers>> inputs;  ///< by sample
  std::vector<Numbers> output_gradients;     ///< by sample
  std::vector<Numbers> parameters;
  size_t shift = 0;  ///< numbers by which all tensors begin later in memory

 private:
  class Guarded;

  template <class Run>
  void make_call(size_t sample, bool backward, Unread unread, std::vector<Guarded>& written,
                 const Run& run) const;
  bool may_read(size_t input, bool backward) const {
    return !backward || signature_.backward_needs_input[input];
  }

  std::shared_ptr<const CustomOp> op_;
  std::string name_;
  CustomOp::Attributes attributes_;
  std::vector<Shape> shapes_;
  CustomOp::Signature signature_;
};

}  // namespace lockstep::ops
