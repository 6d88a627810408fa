#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/ops.h"
#include "lockstep/tensor.h"

/// An op of your own, in C++, without a change to lockstep:
///
///     class Scale : public lockstep::CustomOp {
///       Signature signature(const std::vector<Shape>& inputs, const Attributes&) const override {
///         return {.output = inputs.at(0)};
///       }
///       void forward(const Call& call) const override {
///         const auto factor = static_cast<float>(call.attributes->number("factor"));
///         for (size_t i = 0; i < call.output.size(); ++i) call.output[i] = factor * call.inputs[0][i];
///       }
///       void backward_input(const Call& call) const override {
///         const auto factor = static_cast<float>(call.attributes->number("factor"));
///         for (size_t i = 0; i < call.output_gradient.size(); ++i)
///           call.input_gradients[0][i] = factor * call.output_gradient[i];
///       }
///     };
///
///     lockstep::register_op("scale", std::make_shared<Scale>());   // before a model is made of it
///     lockstep::check_gradients("scale", {{8, 16}}, {{"factor", 2}});
///     builder.add("twice", lockstep::Custom{"scale", {{"factor", 2}}}, {x});
///
/// In a config: layer { name: "twice" custom { name: "scale" attribute { name: "factor" value: 2 } } }

#pragma GCC visibility push(default)
namespace lockstep {

/// Of one sample, and of one op in a model. Runs on CPUs, in float32.
///
/// lockstep calls forward() and the two halves of backward for one sample at a time, from several threads at
/// once, in micro-batches of any size. Its proofs that every layout gives the same bits take for granted, of
/// each op, what check_gradients() tries:
/// - a call writes all of what it is to write, and nothing else; gradients of parameters it adds to;
/// - what it writes depends on what it may read, and on nothing else: no state, no random numbers, no clock,
/// no
///   other thread, and not on where in memory numbers lie, which may be any multiple of 4 bytes;
/// - backward reads inputs and outputs only if the signature says so.
///
/// Samples of a micro-batch are shared by threads, except in backward_parameters, which runs on one. An op
/// that needs room for results in between makes it in each call; the plan of memory knows nothing of it.
class CustomOp {
 public:
  /// The numbers that the model gives to the op.
  class Attributes {
   public:
    Attributes(std::string op, std::vector<CustomAttribute> values)
        : op_(std::move(op)), values_(std::move(values)) {}
    /// Throws ConfigError, which lists those that the model gives, if `name` is not among them.
    double number(const std::string& name) const;
    double number(const std::string& name, double otherwise) const;
    /// Throws ConfigError unless each name is among `known`: call it in signature(), so that a slip of the
    /// pen is found.
    void expect_only(const std::vector<std::string>& known) const;

   private:
    std::string op_;
    std::vector<CustomAttribute> values_;
  };

  enum class Initial { zero, one, normal, uniform };
  struct Weight {
    std::string name;  ///< "weight", "bias", ...: of letters, digits, '_' and '-'
    Shape shape;
    Initial initial = Initial::zero;
    float scale = 0;               ///< normal: standard deviation; uniform: numbers are in [-scale, scale)
    bool is_norm_or_bias = false;  ///< exempt from weight decay if the config says so
  };

  struct Signature {
    Shape output;  ///< of a sample
    std::vector<Weight> parameters = {};
    /// Which inputs backward reads; empty: none.
    std::vector<bool> backward_needs_input = {};
    bool backward_needs_output = false;
    /// Whether a position of the output, by the first dimension, depends on that position of all inputs
    /// alone, and parameters do not depend on how many there are. Language models can then write text.
    bool by_position = false;
    /// Multiplications and additions of forward for a sample, for estimates of time. Each half of backward is
    /// taken for as many. 0: one for each element.
    double flops = 0;
  };

  /// What a call reads and writes: of one sample, row-major. A span is empty if the call may not read it or
  /// need not write it; lists are as long as inputs and parameters in every call.
  struct Call {
    const std::vector<Shape>* input_shapes;
    const Attributes* attributes;
    std::span<const std::span<const float>> inputs;
    std::span<const std::span<const float>> parameters;
    std::span<float> output;             ///< forward: all of it is written
    std::span<const float> kept_output;  ///< backward: if the signature asks for it
    std::span<const float> output_gradient;
    std::span<const std::span<float>> input_gradients;      ///< all of each that is not empty is written
    std::span<const std::span<float>> parameter_gradients;  ///< this sample's is added to each
  };

  virtual ~CustomOp() = default;
  /// Throws ConfigError if the inputs' shapes or the attributes do not fit, and says which and why.
  virtual Signature signature(const std::vector<Shape>& inputs, const Attributes& attributes) const = 0;
  virtual void forward(const Call& call) const = 0;
  virtual void backward_input(const Call& call) const = 0;
  /// Called for each sample of a micro-batch in order, if the op has parameters.
  virtual void backward_parameters(const Call&) const {}
};

/// Makes an op known under a name, in this process: every rank registers the same ones. Throws ConfigError if
/// the name is taken, empty, or has other characters than letters, digits, '_', '-', '.' and '/'.
/// Thread-safe.
void register_op(const std::string& name, std::shared_ptr<const CustomOp> op);

struct GradientCheck {
  uint64_t seed = 1;        ///< of the numbers that it is tried on
  double tolerance = 2e-3;  ///< of gradients, relative to the largest one of a tensor
  int samples = 3;
  int most_elements = 64;  ///< of each tensor, of which differences are taken
  /// Inputs are in [low, high); differences go up to 1/8 beyond. Parameters that begin with 1 are in
  /// [0.5, 1.5), others in [-1, 1).
  double low = -1, high = 1;
};

/// Tries a registered op on random numbers: whether gradients are those of forward (by differences of fourth
/// order; elements at which forward has a kink are passed over), and whether it keeps the rules that CustomOp
/// states. That threads do not disturb each other, it can only try: give it shapes for which a call takes a
/// while. Throws Error, which says which rule, tensor and element, if it does not; ConfigError if the shapes
/// do not fit.
void check_gradients(const std::string& name, const std::vector<Shape>& inputs,
                     const std::vector<CustomAttribute>& attributes = {}, const GradientCheck& options = {});

}  // namespace lockstep
#pragma GCC visibility pop
