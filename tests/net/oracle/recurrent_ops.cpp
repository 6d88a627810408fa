#include <cmath>

#include "net/oracle/op_parts.h"

namespace lockstep::net {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

bool counts(const OpCall& call, int64_t row) {
  return call.inputs.size() == 1 || (*call.inputs[1])[row] != 0;
}

/// What one position of a direction computes from the state before it.
struct Unit {
  double i, f, g, o, cell, hidden, cell_before;
};

/// One direction of one sample.
class Direction {
 public:
  Direction(const Lstm& op, const OpCall& call, int64_t sample, int number)
      : call_(call),
        units_(op.units),
        width_(call.input_shapes[0][1]),
        positions_(call.input_shapes[0][0]),
        stride_(call.output_shape[1]),
        sample_(sample),
        number_(number) {
    for (int64_t step = 0; step < positions_; ++step) {
      steps_.push_back(counts(call, row(step)) ? next(step) : steps_.empty() ? begin() : steps_.back());
      if (!counts(call, row(step)))
        for (Unit& unit : steps_.back()) unit.cell_before = unit.cell;
    }
  }

  void write(Values& y) const {
    for (int64_t step = 0; step < positions_; ++step)
      for (int64_t u = 0; u < units_ && counts(call_, row(step)); ++u)
        y[output(step, u)] = steps_[step][u].hidden;
  }

  void go_back(const Values& dy, OpGradients& gradients) const {
    Values of_hidden(units_), of_cell(units_);
    for (int64_t step = positions_ - 1; step >= 0; --step) {
      if (!counts(call_, row(step))) continue;
      Values z(4 * units_);
      for (int64_t u = 0; u < units_; ++u) {
        const Unit& unit = steps_[step][u];
        const double bent = std::tanh(unit.cell), h = of_hidden[u] + dy[output(step, u)];
        const double c = of_cell[u] + h * unit.o * (1 - bent * bent);
        z[u] = c * unit.g * unit.i * (1 - unit.i);
        z[units_ + u] = c * unit.cell_before * unit.f * (1 - unit.f);
        z[2 * units_ + u] = c * unit.i * (1 - unit.g * unit.g);
        z[3 * units_ + u] = h * bent * unit.o * (1 - unit.o);
        of_cell[u] = c * unit.f;
      }
      of_hidden.assign(units_, 0);
      for (int64_t gate = 0; gate < 4 * units_; ++gate) add_row(step, gate, z[gate], gradients, of_hidden);
    }
  }

 private:
  int64_t row(int64_t step) const {
    return sample_ * positions_ + (number_ == 0 ? step : positions_ - 1 - step);
  }
  int64_t output(int64_t step, int64_t unit) const { return row(step) * stride_ + number_ * units_ + unit; }
  const Values& parameter(int which) const { return *call_.parameters[4 * number_ + which]; }
  std::vector<Unit> begin() const { return std::vector<Unit>(units_, Unit{}); }

  std::vector<Unit> next(int64_t step) const {
    const std::vector<Unit> before = step == 0 ? begin() : steps_[step - 1];
    std::vector<Unit> made = begin();
    Values z(4 * units_);
    for (int64_t gate = 0; gate < 4 * units_; ++gate) {
      z[gate] = parameter(2)[gate] + parameter(3)[gate];
      for (int64_t k = 0; k < width_; ++k)
        z[gate] += parameter(0)[gate * width_ + k] * (*call_.inputs[0])[row(step) * width_ + k];
      for (int64_t k = 0; k < units_; ++k) z[gate] += parameter(1)[gate * units_ + k] * before[k].hidden;
    }
    for (int64_t u = 0; u < units_; ++u) {
      Unit& unit = made[u];
      unit = {sigmoid(z[u]),
              sigmoid(z[units_ + u]),
              std::tanh(z[2 * units_ + u]),
              sigmoid(z[3 * units_ + u]),
              0,
              0,
              before[u].cell};
      unit.cell = unit.f * unit.cell_before + unit.i * unit.g;
      unit.hidden = unit.o * std::tanh(unit.cell);
      // Products read states as they are stored.
      if (call_.error) unit.hidden += call_.error(std::abs(unit.hidden));
    }
    return made;
  }

  /// What the gradient `z` of a gate's sum says of all that the sum is made of.
  void add_row(int64_t step, int64_t gate, double z, OpGradients& gradients, Values& of_hidden) const {
    const size_t first = 4 * static_cast<size_t>(number_);
    for (int64_t k = 0; k < width_; ++k) {
      gradients.parameters[first][gate * width_ + k] += z * (*call_.inputs[0])[row(step) * width_ + k];
      gradients.inputs[0][row(step) * width_ + k] += z * parameter(0)[gate * width_ + k];
    }
    for (int64_t k = 0; k < units_; ++k) {
      if (step > 0) gradients.parameters[first + 1][gate * units_ + k] += z * steps_[step - 1][k].hidden;
      of_hidden[k] += z * parameter(1)[gate * units_ + k];
    }
    for (const size_t bias : {2, 3}) gradients.parameters[first + bias][gate] += z;
  }

  const OpCall& call_;
  int64_t units_, width_, positions_, stride_, sample_;
  int number_;
  std::vector<std::vector<Unit>> steps_;
};

}  // namespace

Values forward_of(const Lstm& op, const OpCall& call) {
  Values y(static_cast<size_t>(call.samples * call.output_shape.count()));
  for (int64_t s = 0; s < call.samples; ++s)
    for (int d = 0; d < (op.bidirectional ? 2 : 1); ++d) Direction(op, call, s, d).write(y);
  return y;
}

OpGradients backward_of(const Lstm& op, const OpCall& call, const Values& dy) {
  OpGradients gradients{{Values(call.inputs[0]->size())}, {}};
  gradients.inputs.resize(call.inputs.size());
  for (const Values* parameter : call.parameters) gradients.parameters.emplace_back(parameter->size());
  for (int64_t s = 0; s < call.samples; ++s)
    for (int d = 0; d < (op.bidirectional ? 2 : 1); ++d) Direction(op, call, s, d).go_back(dy, gradients);
  return gradients;
}

namespace {

/// Calls work(element of the input, element of the output, its share) for all that the pool reads.
template <class Work>
void for_pooled(const SequencePool& op, const OpCall& call, const Work& work) {
  const int64_t positions = call.input_shapes[0][0], channels = call.input_shapes[0][1];
  for (int64_t s = 0; s < call.samples; ++s) {
    std::vector<int64_t> rows;
    for (int64_t row = s * positions; row < (s + 1) * positions; ++row)
      if (counts(call, row)) rows.push_back(row);
    for (int64_t c = 0; c < channels && !rows.empty(); ++c) {
      const int64_t to = s * channels + c;
      if (op.kind == SequencePoolKind::mean)
        for (const int64_t row : rows) work(row * channels + c, to, 1 / static_cast<double>(rows.size()));
      else
        work(
            (op.kind == SequencePoolKind::ends && c >= channels / 2 ? rows.front() : rows.back()) * channels +
                c,
            to, 1.0);
    }
  }
}

}  // namespace

Values forward_of(const SequencePool& op, const OpCall& call) {
  Values y(static_cast<size_t>(call.samples * call.output_shape.count()));
  for_pooled(op, call,
             [&](int64_t from, int64_t to, double share) { y[to] += share * (*call.inputs[0])[from]; });
  return y;
}

OpGradients backward_of(const SequencePool& op, const OpCall& call, const Values& dy) {
  OpGradients gradients{{Values(call.inputs[0]->size())}, {}};
  gradients.inputs.resize(call.inputs.size());
  for_pooled(op, call,
             [&](int64_t from, int64_t to, double share) { gradients.inputs[0][from] += share * dy[to]; });
  return gradients;
}

}  // namespace lockstep::net
