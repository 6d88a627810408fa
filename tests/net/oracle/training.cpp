#include "net/oracle/training.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/index.h"
#include "train/worker/initialize.h"

namespace lockstep::net {
namespace {

bool is_statistic(const model::Parameter& parameter) {
  return parameter.spec.role == ops::ParameterRole::statistic;
}

/// NaN stands for none; what overflowed is infinite.
double mean_loss(double sum, double count) {
  if (count == 0) return std::numeric_limits<double>::quiet_NaN();
  return std::isnan(sum) ? std::numeric_limits<double>::infinity() : sum / count;
}

/// The largest divisor of a leaf not above the limit.
int64_t micro_batch_of(const config::TrainerOptions& trainer) {
  const int64_t leaf = trainer.global_batch / trainer.virtual_replicas;
  if (trainer.micro_batch == 0) return leaf;
  int64_t size = std::min(leaf, trainer.micro_batch);
  while (leaf % size != 0) --size;
  return size;
}

}  // namespace

OracleTraining::OracleTraining(const config::RunConfig& config)
    : config_(config),
      graph_(model::make_graph(config.model)),
      interpreter_(config.model, graph_),
      data_(data::open_datasets(config.data)),
      order_(config.trainer.seed, data_.train->size(), config.data.shuffle) {}

std::vector<Values> OracleTraining::first_parameters() const {
  std::vector<Values> parameters;
  for (const auto& parameter : graph_.parameters) {
    std::vector<float> drawn(static_cast<size_t>(parameter.spec.shape.count()));
    train::initialize_parameter(parameter, config_.trainer.seed, tensor::Part::whole(parameter.spec.shape),
                                drawn, 1);
    parameters.emplace_back(drawn.begin(), drawn.end());
  }
  return parameters;
}

MicroBatch OracleTraining::read(const data::Dataset& dataset, const std::vector<data::SampleKey>& samples,
                                int64_t first_sample) const {
  MicroBatch batch{.samples = static_cast<int64_t>(samples.size()), .first_sample = first_sample};
  const auto& fields = dataset.fields();
  for (const auto& input : config_.model.inputs) {
    Values values;
    for (const data::SampleKey& sample : samples) {
      std::vector<std::byte> room;
      std::vector<std::byte*> destinations(fields.size(), nullptr);
      size_t f = 0;
      while (fields[f].name != input.name) ++f;
      room.resize(static_cast<size_t>(4 * input.spec.shape.count()));
      destinations[f] = room.data();
      dataset.read(sample, destinations);
      for (int64_t i = 0; i < input.spec.shape.count(); ++i)
        values.push_back(input.spec.dtype == DType::int32
                             ? static_cast<double>(reinterpret_cast<const int32_t*>(room.data())[i])
                             : static_cast<double>(reinterpret_cast<const float*>(room.data())[i]));
    }
    batch.inputs.push_back(std::move(values));
  }
  return batch;
}

std::vector<MicroBatch> OracleTraining::batches_of(int64_t step) const {
  const int64_t size = micro_batch_of(config_.trainer);
  std::vector<MicroBatch> batches;
  for (int64_t first = 0; first < config_.trainer.global_batch; first += size) {
    std::vector<data::SampleKey> samples;
    for (int64_t i = first; i < first + size; ++i)
      samples.push_back(order_.key(step * config_.trainer.global_batch + i));
    batches.push_back(read(*data_.train, samples, first));
  }
  return batches;
}

OracleTraining::Step OracleTraining::compute(const std::vector<MicroBatch>& batches, const Pass& pass,
                                             bool with_gradients) const {
  Step step;
  for (const auto& parameter : graph_.parameters)
    step.gradients.emplace_back(static_cast<size_t>(parameter.spec.shape.count()));
  for (const MicroBatch& batch : batches) {
    const LossSums sums = interpreter_.run(batch, pass, with_gradients ? &step.gradients : nullptr);
    step.loss += sums.loss;
    step.count += sums.count;
  }
  const double terms = std::max(step.count, 1.0);
  for (size_t p = 0; p < step.gradients.size(); ++p)
    for (double& g : step.gradients[p])
      g /= is_statistic(graph_.parameters[p]) ? static_cast<double>(batches.size()) : terms;
  for (size_t p = 0; p < step.gradients.size(); ++p)
    if (graph_.parameters[p].frozen) std::ranges::fill(step.gradients[p], 0);
  step.loss = mean_loss(step.loss, step.count);
  return step;
}

bool OracleTraining::learns(size_t parameter) const {
  return !is_statistic(graph_.parameters[parameter]) && !graph_.parameters[parameter].frozen;
}

double OracleTraining::norm_of(const Step& step) const {
  double sum = 0;
  for (size_t p = 0; p < step.gradients.size(); ++p)
    for (const double g : step.gradients[p]) sum += learns(p) ? g * g : 0;
  return std::sqrt(sum);
}

namespace {

/// As muon.py has it. Of a tall matrix the transpose is taken, which comes to the same.
Values orthogonal(const Values& direction, const MatrixSize& size, int iterations) {
  const bool is_tall = size.rows > size.columns;
  const int64_t rows = std::min(size.rows, size.columns), columns = std::max(size.rows, size.columns);
  const auto at = [&](int64_t r, int64_t c) {
    return static_cast<size_t>(is_tall ? c * rows + r : r * columns + c);
  };
  const auto of = [rows](int64_t r, int64_t c) { return static_cast<size_t>(r * rows + c); };
  double squares = 0;
  for (const double u : direction) squares += u * u;
  Values x = direction;
  for (double& value : x) value /= std::sqrt(squares) + 1e-7;
  for (int i = 0; i < iterations; ++i) {
    Values a(static_cast<size_t>(rows * rows)), factor(a.size()), next(x.size());
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < rows; ++c)
        for (int64_t k = 0; k < columns; ++k) a[of(r, c)] += x[at(r, k)] * x[at(c, k)];
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < rows; ++c) {
        for (int64_t k = 0; k < rows; ++k) factor[of(r, c)] += 2.0315 * a[of(r, k)] * a[of(k, c)];
        factor[of(r, c)] -= 4.7750 * a[of(r, c)];
      }
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) {
        next[at(r, c)] = 3.4445 * x[at(r, c)];
        for (int64_t k = 0; k < rows; ++k) next[at(r, c)] += factor[of(r, k)] * x[at(k, c)];
      }
    x = next;
  }
  return x;
}

double scale_of(optim::MatrixScale kind, const MatrixSize& size) {
  const double rows = size.rows, columns = size.columns;
  return kind == optim::MatrixScale::match_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                                                 : std::sqrt(std::max(1.0, rows / columns));
}

}  // namespace

/// As PyTorch's SGD, Adam, AdamW, Muon and AveragedModel; LARS, LAMB and adaptive clipping by their papers.
void OracleTraining::update(int64_t step, const Step& computed, double scale, std::vector<Values>& parameters,
                            OptimizerState& state) const {
  const optim::OptimizerOptions& o = config_.optimizer;
  const double updates = static_cast<double>(step + 1);
  const double gain = step + 1 <= std::max<int64_t>(1, o.average.start_step) ? 1 : 1 - o.average.decay;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (graph_.parameters[p].frozen) continue;
    const auto& spec = graph_.parameters[p].spec;
    const auto group = config_.group_rates.find(graph_.parameters[p].name);
    const bool has_group = group != config_.group_rates.end();
    const double rate = o.learning_rate * (has_group ? group->second.learning_rate_factor : 1);
    const double decay = has_group                                        ? group->second.weight_decay
                         : o.decay_norm_and_bias || !spec.is_norm_or_bias ? o.weight_decay
                                                                          : 0;
    // Of LAMB the norms are known once its moments have moved; Muon's are orthogonal.
    Values directions;
    if (o.kind == optim::OptimizerKind::lamb && learns(p))
      for (size_t i = 0; i < parameters[p].size(); ++i) {
        const double d = computed.gradients[p][i] * scale;
        double &first = state.first[p][i], &second = state.second[p][i];
        first = o.beta1 * first + (1 - o.beta1) * d;
        second = o.beta2 * second + (1 - o.beta2) * d * d;
        directions.push_back(first / (1 - std::pow(o.beta1, updates)) /
                                 (std::sqrt(second / (1 - std::pow(o.beta2, updates))) + o.epsilon) +
                             decay * parameters[p][i]);
      }
    const MatrixSize matrix = has_group && learns(p) ? group->second.matrix : MatrixSize{};
    if (matrix.is_matrix()) {
      for (size_t i = 0; i < parameters[p].size(); ++i) {
        const double d = computed.gradients[p][i] * scale;
        double& mean = state.first[p][i];
        mean += (1 - o.momentum) * (d - mean);
        directions.push_back(o.nesterov ? d + o.momentum * (mean - d) : mean);
      }
      directions = orthogonal(directions, matrix, o.newton_schulz_steps);
    }
    const double ratio =
        learns(p) ? ratio_of(p, computed.gradients[p], scale, decay, parameters[p], directions) : 1;
    for (size_t i = 0; i < parameters[p].size(); ++i) {
      double &value = parameters[p][i], &first = state.first[p][i], &second = state.second[p][i];
      const double gradient = computed.gradients[p][i];
      if (is_statistic(graph_.parameters[p])) {
        value += static_cast<double>(spec.momentum) * (gradient - value);
      } else if (matrix.is_matrix()) {
        value -= rate * decay * value + rate * scale_of(o.matrix_scale, matrix) * directions[i];
      } else if (o.kind == optim::OptimizerKind::lars) {
        first = o.momentum * first - rate * ratio * (gradient * scale + decay * value);
        value += first;
      } else if (o.kind == optim::OptimizerKind::lamb) {
        value -= rate * ratio * directions[i];
      } else if (o.kind == optim::OptimizerKind::sgd) {
        const double d = gradient * scale * ratio + decay * value;
        first = o.momentum * first + d;
        value -= rate * (o.nesterov ? d + o.momentum * first : first);
      } else {
        if (o.kind == optim::OptimizerKind::adamw || o.kind == optim::OptimizerKind::muon)
          value -= rate * decay * value;
        const double d =
            gradient * scale * ratio + (o.kind == optim::OptimizerKind::adam ? decay * value : 0);
        first = o.beta1 * first + (1 - o.beta1) * d;
        second = o.beta2 * second + (1 - o.beta2) * d * d;
        const double mean = first / (1 - std::pow(o.beta1, updates)),
                     square = second / (1 - std::pow(o.beta2, updates));
        value -= rate * mean / (std::sqrt(square) + o.epsilon);
      }
      state.average[p][i] += gain * (value - state.average[p][i]);
    }
  }
}

/// By what norms scale the update of a parameter, or with adaptive clipping its gradient.
double OracleTraining::ratio_of(size_t p, const Values& gradient, double scale, double decay,
                                const Values& parameter, const Values& direction) const {
  const optim::OptimizerOptions& o = config_.optimizer;
  const auto norm = [](const Values& values) {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return std::sqrt(sum);
  };
  const double of_gradient = norm(gradient) * scale, of_parameter = norm(parameter),
               of_update = norm(direction);
  const bool is_bias = graph_.parameters[p].spec.is_norm_or_bias;
  if (o.kind == optim::OptimizerKind::lars) {
    if (is_bias || of_parameter == 0 || of_gradient == 0) return 1;
    return o.trust * of_parameter / (of_gradient + decay * of_parameter + o.epsilon);
  }
  if (o.kind == optim::OptimizerKind::lamb) {
    if (is_bias || (decay == 0 && !o.adapts_without_decay) || of_parameter == 0 || of_update == 0) return 1;
    return of_parameter / of_update;
  }
  const double limit = o.adaptive_clip.limit * std::max(of_parameter, o.adaptive_clip.floor);
  return o.adaptive_clip.limit > 0 && of_gradient > limit ? limit / of_gradient : 1;
}

double OracleTraining::evaluate(const Pass& pass, const OptimizerState& state) const {
  std::vector<data::SampleKey> samples;
  for (int64_t i = 0; i < data_.eval->size(); ++i) samples.emplace_back(i);
  std::vector<Values> parameters = pass.parameters;
  for (size_t p = 0; p < parameters.size(); ++p)
    if (config_.evaluates_average && learns(p)) parameters[p] = state.average[p];
  const Pass evaluation{.parameters = parameters,
                        .seed = pass.seed,
                        .step = pass.step,
                        .training = false,
                        .roundings = pass.roundings,
                        .kinks = pass.kinks};
  const LossSums sums = interpreter_.run(read(*data_.eval, samples, 0), evaluation, nullptr);
  return mean_loss(sums.loss, sums.count);
}

Expected OracleTraining::train(Roundings* roundings) const {
  Expected expected;
  std::vector<Values> parameters = first_parameters();
  OptimizerState state;
  for (const Values& values : parameters) {
    state.first.emplace_back(values.size());
    state.second.emplace_back(values.size());
    state.average.emplace_back(values.size());
  }
  Pass pass{.parameters = parameters,
            .seed = config_.trainer.seed,
            .roundings = roundings,
            .kinks = &expected.kinks};
  for (int64_t step = 0; step < config_.trainer.steps; ++step) {
    pass.step = static_cast<uint64_t>(step);
    Step computed = compute(batches_of(step), pass, true);
    if (roundings != nullptr) roundings->disturb_gradients(computed.gradients);
    const double norm = norm_of(computed), limit = config_.trainer.clip_norm;
    expected.losses.push_back(computed.loss);
    expected.norms.push_back(norm);
    const double scale = limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1;
    update(step, computed, scale, parameters, state);
  }
  expected.eval_loss = evaluate(pass, state);
  expected.parameters = parameters;
  return expected;
}

double OracleTraining::error_of_gradients(uint64_t seed) const {
  const std::vector<MicroBatch> batches = batches_of(0);
  std::vector<Values> parameters = first_parameters();
  Kinks kinks;
  const Pass pass{.parameters = parameters, .seed = config_.trainer.seed, .kinks = &kinks};
  const std::vector<Values> gradients = compute(batches, pass, true).gradients;
  if (kinks.nearest < 1e-3 || kinks.on_one) return 0;  // a difference might reach over it
  Draw draw(seed);
  double worst = 0;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!learns(p)) continue;
    const Values kept = parameters[p];
    Values direction(kept.size());
    double slope = 0;
    for (size_t i = 0; i < kept.size(); ++i) slope += gradients[p][i] * (direction[i] = draw.centred());
    const auto loss_at = [&](double distance) {
      for (size_t i = 0; i < kept.size(); ++i) parameters[p][i] = kept[i] + distance * direction[i];
      return compute(batches, pass, false).loss;
    };
    const auto central = [&](double h) { return (loss_at(h) - loss_at(-h)) / (2 * h); };
    const double wide = central(2e-5), narrow = central(1e-5);
    parameters[p] = kept;
    // The wide one's error is four times the narrow one's; what is left of that, and of the losses' last
    // bits.
    const double doubt = std::abs(wide - narrow) + 1e-9;
    worst = std::max(worst, (std::abs(narrow - slope) - 2 * doubt) / (std::abs(slope) + 1e-3));
  }
  return worst;
}

}  // namespace lockstep::net
