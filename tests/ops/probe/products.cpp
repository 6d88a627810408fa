#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../benchmark/gpt2.h"
#include "../benchmark/op_run.h"
#include "ops/cuda/library_product.h"
#include "ops/cuda/linear.h"
#include "probe.h"

namespace lockstep::ops {
namespace {

constexpr int kCandidates = 8;

struct NamedProduct {
  std::string name;
  int count;  // in a step of one micro-batch
  bool fused;
  ProductSpec spec;
};

/// Those of a step, then those that precision.fused_gelu puts in the place of two of them.
std::vector<NamedProduct> step_products(const GptShape& shape) {
  std::vector<NamedProduct> all, fused;
  for (const GptLinear& linear : shape.linears()) {
    KernelOptions options{.compute = DType::bfloat16};
    const auto products = [&] { return linear_products(linear.op, shape.rows(), linear.in, options); };
    const auto name = [&](const std::string& phase) { return std::string(linear.name) + " " + phase; };
    all.push_back({name("forward"), linear.count, false, products().forward});
    all.push_back({name("input gradient"), linear.count, false, products().input_gradient});
    all.push_back({name("weight gradient"), linear.count, false, products().weight_gradient});
    options.fused = {.gelu_behind = linear.gelu_behind, .gelu_before = linear.gelu_before};
    if (linear.gelu_behind) fused.push_back({name("forward, GELU"), linear.count, true, products().forward});
    if (linear.gelu_before)
      fused.push_back({name("input gradient, GELU"), linear.count, true, products().input_gradient});
  }
  all.insert(all.end(), fused.begin(), fused.end());
  return all;
}

/// Matrices of random numbers for a product.
class Matrices {
 public:
  Matrices(Bench& bench, const ProductSpec& spec) : bench_(bench) {
    const auto make = [&](int64_t rows, int64_t columns, DType type) {
      return bench.make({Shape({rows, columns}), type}).data;
    };
    operands = {.a = make(spec.rows, spec.inner, spec.factors),
                .b = make(spec.inner, spec.columns, spec.factors),
                .c = make(spec.rows, spec.columns, spec.result),
                .bias = make(1, spec.columns, spec.result)};
    if (spec.epilogue != Epilogue::none) operands.kept = make(spec.rows, spec.columns, spec.result);
    workspace = bench.make_bytes(LibraryProduct::workspace_bytes());
  }
  ~Matrices() { bench_.release(); }
  Matrices(const Matrices&) = delete;

  ProductOperands operands;
  void* workspace = nullptr;

 private:
  Bench& bench_;
};

Line measure_candidate(Bench& bench, LibraryProduct& product, const ProductSpec& spec,
                       const Matrices& matrices) {
  const ProductAlgorithm algorithm = product.algorithm();
  Line line{{"algorithm", algorithm.name},
            {"taken", false},
            {"workspace_bytes", algorithm.workspace_bytes},
            {"waves", algorithm.waves}};
  try {
    const double milliseconds =
        bench.milliseconds([&] { product.run(matrices.operands, matrices.workspace, bench.stream()); });
    line["us"] = 1e3 * milliseconds;
    line["tflops"] = 2e-9 * static_cast<double>(spec.rows * spec.columns * spec.inner) / milliseconds;
  } catch (const std::exception& error) {
    line["error"] = error.what();
  }
  return line;
}

/// What the library offers, each with its time, into `line`. Throws if it fails or offers nothing.
void measure_product(Bench& bench, const ProductSpec& asked, Line& line) {
  ProductSpec spec = asked;
  auto candidates = LibraryProduct::candidates(spec, bench.device(), kCandidates);
  line["epilogue"] = !spec.has_epilogue() ? "none" : candidates.empty() ? "refused" : "taken";
  if (candidates.empty() && spec.has_epilogue()) {  // as Product does
    spec = spec.without_epilogue();
    candidates = LibraryProduct::candidates(spec, bench.device(), kCandidates);
  }
  // The library may answer otherwise when it is asked for one algorithm, as training asks.
  auto chosen = LibraryProduct::choose(spec, bench.device());
  if (chosen == nullptr) throw std::runtime_error("refused");
  const std::string name = chosen->algorithm().name;
  if (std::none_of(candidates.begin(), candidates.end(),
                   [&](const auto& each) { return each->algorithm().name == name; }))
    candidates.push_back(std::move(chosen));

  const Matrices matrices(bench, spec);
  auto& measured = line["candidates"] = Line::array();
  for (const auto& candidate : candidates)
    measured.push_back(measure_candidate(bench, *candidate, spec, matrices));
  auto& taken = *std::find_if(measured.begin(), measured.end(),
                              [&](const Line& each) { return each["algorithm"] == name; });
  taken["taken"] = true;
  if (taken.contains("error")) throw std::runtime_error(taken["error"].get<std::string>());
}

/// Which products of linear layers the library refuses, of all types; none of them is run.
class Refusals {
 public:
  explicit Refusals(device::Device& device) : device_(device) {}

  void ask(const Linear& op, int64_t rows, int64_t in) {
    for (const auto& [type, tf32] : {std::pair{DType::float32, false}, std::pair{DType::float32, true},
                                     std::pair{DType::bfloat16, false}, std::pair{DType::float16, false}}) {
      const LinearProducts products = linear_products(op, rows, in, {.compute = type, .tf32 = tf32});
      for (const ProductSpec& spec : {products.forward, products.input_gradient, products.weight_gradient})
        ask(spec, spec.to_string() + (tf32 ? " in TF32" : ""));
    }
  }

  Line line() const {
    return {{"asked", asked_}, {"refused", refused_}, {"epilogue_refused", epilogue_refused_}};
  }

 private:
  bool has(const ProductSpec& spec) { return !LibraryProduct::candidates(spec, device_, 1).empty(); }
  void ask(const ProductSpec& spec, const std::string& name) {
    ++asked_;
    try {
      if (has(spec)) return;
      const bool works_alone = spec.has_epilogue() && has(spec.without_epilogue());
      (works_alone ? epilogue_refused_ : refused_).push_back(name);
    } catch (const std::exception& error) {
      refused_.push_back(name + ": " + error.what());
    }
  }

  device::Device& device_;
  int asked_ = 0;
  std::vector<std::string> refused_, epilogue_refused_;
};

/// Of models that are trained, in every type, and of a vocabulary that no alignment fits.
Line refusals(Bench& bench, const GptShape& shape) {
  Refusals refusals(bench.device());
  for (const GptLinear& linear : shape.linears()) refusals.ask(linear.op, shape.rows(), linear.in);
  refusals.ask({.units = 50257, .bias = false}, shape.rows(), shape.width());
  const int64_t batch = 64;
  for (const auto& [in, units] : {std::pair{784, 1024},
                                  {1024, 1024},
                                  {1024, 10},  // the MLP
                                  {400, 120},
                                  {120, 84},
                                  {84, 10},
                                  {2048, 1000}})  // LeNet-5, ResNet-50
    refusals.ask({.units = units}, batch, in);
  return refusals.line();
}

}  // namespace

bool probe_products(Bench& bench) {
  const GptShape shape = bench.tiny() ? GptShape::tiny() : GptShape{};
  bool worked = true;
  for (const NamedProduct& product : step_products(shape)) {
    const Line line{{"name", product.name},
                    {"product", product.spec.to_string()},
                    {"count", product.count},
                    {"fused", product.fused}};
    worked &= print_measured(line, [&](Line& measured) { measure_product(bench, product.spec, measured); });
  }
  print_line(refusals(bench, shape));
  return worked;
}

}  // namespace lockstep::ops
