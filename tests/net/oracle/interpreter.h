#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/model.h"
#include "model/graph.h"
#include "net/draw.h"
#include "net/oracle/ops.h"

namespace lockstep::net {

/// A micro-batch: of each input of the model all samples' values.
struct MicroBatch {
  int64_t samples = 0, first_sample = 0;
  std::vector<Values> inputs;
};

/// Rounds as an engine might: what is stored changes by up to `amplitude` of the largest number in it. Two
/// runs that part by so much say how far two right answers may lie apart.
struct Roundings {
  double amplitude = 0;
  double of_gradients = 0;  ///< the same of parameters' gradients, which may travel in a narrower type
  Draw draw{0};

  void disturb(Values& values, double least_scale = 0);
  /// Gradients of parameters: what cancels to nothing is off by roundoffs of what cancelled, which is taken
  /// to be as large as the largest gradient.
  void disturb_gradients(std::vector<Values>& gradients);
};

/// With what a micro-batch is computed.
struct Pass {
  const std::vector<Values>& parameters;  ///< in the graph's order
  uint64_t seed = 0, step = 0;
  bool training = true;
  Roundings* roundings = nullptr;  ///< null: exact
  Kinks* kinks = nullptr;
};

struct LossSums {
  double loss = 0, count = 0;
};

/// A model as it was written, layer by layer in double precision: no forks, segments, buckets or fusion, and
/// every value has a gradient of its own, to which each reader adds. Of the graph it takes shapes, the names
/// of parameters and the numbers by which ops draw.
class Interpreter {
 public:
  Interpreter(const ModelSpec& spec, const model::Graph& graph);

  /// Gradients of the summed loss are added to `gradients`, unless that is null.
  LossSums run(const MicroBatch& batch, const Pass& pass, std::vector<Values>* gradients) const;

 private:
  struct Layer {
    Op op;
    std::vector<int> inputs;      // values: the model's inputs, then layers' outputs
    std::vector<int> parameters;  // of the graph
    uint32_t op_number = 0;
    Shape shape;
  };
  OpCall call_of(const Layer& layer, const std::vector<Values>& values, const std::vector<Values>& parameters,
                 const MicroBatch& batch, const Pass& pass) const;
  void go_back(const std::vector<Values>& values, const std::vector<Values>& parameters,
               const MicroBatch& batch, const Pass& pass, std::vector<Values>& gradients) const;

  std::vector<Layer> layers_;
  std::vector<Shape> shapes_;  // by value
  std::vector<DType> types_;
  size_t input_count_ = 0;
};

}  // namespace lockstep::net
