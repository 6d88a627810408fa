#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/index.h"
#include "net/model_generator.h"

namespace lockstep::net {

inline constexpr int64_t kMostElements = 300;  // of a value; models stay small, so that many can be tried

/// Draws a model, layer by layer. What only moves elements, and recurrent layers, are in moving_layers.cpp.
class ModelMaker {
 public:
  explicit ModelMaker(Draw& draw) : draw_(draw) {}
  GeneratedModel make();

 private:
  struct Made {
    std::string name;
    Shape shape;
    int readers = 0;
    bool product = false;  // a linear layer's or convolution's output
  };
  struct OwnedParameter {
    std::string name;
    Shape shape;
    std::string_view op, parameter;
  };

  void begin_with_images();
  void begin_with_tokens();
  void add_layer();
  bool add_by_rank(int rank);
  void end();
  void end_as_regression();

  const Made& at(int value) const { return nth(values_, value); }
  const Shape& shape() const { return at(last_).shape; }
  int64_t width() const { return shape()[-1]; }
  int then(const char* prefix, Op op, std::vector<int> inputs, Shape shape, std::vector<Tie> ties = {},
           bool product = false);
  void linear(int64_t units);
  void residual();
  void norm();
  void activation();
  void attention();
  void convolution();
  void pool();
  void upsample();
  void view();
  void mix_positions();
  std::vector<int> masked_or_not();
  void recurrence();
  void sequence_to_vector();
  void move_elements();
  void branch();
  int64_t some_width();
  void tie_or_own(std::vector<Tie>& ties, std::string_view op, const std::string& parameter, Shape shape,
                  int chance);
  void own_parameters(const std::string& layer);
  std::vector<int> of_equal_shape(int value) const;
  std::vector<int> unread() const;
  void join(int value);

  Draw& draw_;
  ModelSpec spec_;
  std::vector<Made> values_;  // of layers and inputs that layers may read
  std::vector<OwnedParameter> parameters_, new_parameters_;
  int last_ = -1;
  int64_t usual_width_ = 4, classes_ = 3;
  bool tokens_ = false;
  Shape sample_;
};

}  // namespace lockstep::net
