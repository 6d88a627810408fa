#include "train/worker/batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/ensure.h"
#include "base/index.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "run/staging.h"

namespace lockstep::train {

ReadAhead read_ahead_of(const data::DataOptions& data, int cores) {
  constexpr int kMost = 16;  // micro-batches, which take memory, and so many threads fill them
  if (data.threads_adapt) return {std::clamp(cores, 1, kMost), kMost, true};
  return {data.prefetch_threads, data.prefetch_depth, false};
}

PrefetchedBatches::PrefetchedBatches(const data::Dataset& dataset, const model::Graph& graph,
                                     data::SampleOrder order, int64_t batch_samples,
                                     std::vector<data::SampleSpan> micro_batches, const ReadAhead& ahead,
                                     int64_t stride, const BatchForm& form)
    : batch_samples_(batch_samples),
      stride_(stride),
      exchanges_(form.device != nullptr),
      micro_batches_(std::move(micro_batches)) {
  data::PrefetchOptions options{.threads = ahead.threads,
                                .depth = ahead.depth,
                                .adapts = ahead.adapts,
                                .fields = {},
                                .float_type = graph.compute,
                                .packed = form.packed.has_value(),
                                .allocate = {},
                                .most_samples = form.most_samples};
  if (form.device != nullptr)
    options.allocate = [device = form.device](int64_t size_bytes) {
      try {
        return device->allocate_host(size_bytes);
      } catch (const DeviceError& error) {
        throw DeviceError(fmt::format(
            "{} (for a micro-batch that is read ahead: a smaller data.prefetch_depth, or a smaller "
            "trainer.micro_batch, needs less)",
            error.what()));
      }
    };
  for (const int input : graph.inputs) options.fields.push_back(graph.value(input).name);
  const auto next = [this](data::SampleSpan span) {
    const int64_t read = span.first_position - shift_, batch = read / batch_samples_;
    const auto later = std::ranges::upper_bound(micro_batches_, read % batch_samples_, {},
                                                &data::SampleSpan::first_position);
    return later != micro_batches_.end()
               ? span_of(static_cast<uint64_t>(batch), *later)
               : span_of(static_cast<uint64_t>(batch + stride_), micro_batches_.front());
  };
  prefetcher_ = std::make_unique<data::Prefetcher>(dataset, order, next, options);
  if (exchanges_) prefetcher_->require_fields(run::batch_fields(graph, form.most_samples, form.packed));
}

data::SampleSpan PrefetchedBatches::span_of(uint64_t iteration, const data::SampleSpan& micro_batch) const {
  return {static_cast<int64_t>(iteration) * batch_samples_ + micro_batch.first_position + shift_,
          micro_batch.count};
}

data::SampleSpan PrefetchedBatches::span_of(uint64_t iteration, int64_t position) const {
  const auto found =
      std::ranges::lower_bound(micro_batches_, position, {}, &data::SampleSpan::first_position);
  ensure(found != micro_batches_.end() && found->first_position == position, "a micro-batch begins there");
  return span_of(iteration, *found);
}

void PrefetchedBatches::load(uint64_t iteration, int64_t position, std::span<const Tensor> fields) {
  prefetcher_->take(span_of(iteration, position), fields);
}

void PrefetchedBatches::exchange(uint64_t iteration, int64_t position, device::Buffer& buffer) {
  prefetcher_->exchange(span_of(iteration, position), buffer);
}

void PrefetchedBatches::start(uint64_t iteration) {
  prefetcher_->start(span_of(iteration, micro_batches_.front()));
}

ReadAheadBytes read_ahead_bytes(const model::Graph& graph, int64_t micro_batch, const ReadAhead& ahead,
                                bool exchanged, const std::optional<program::PackedInput>& packed) {
  std::vector<int64_t> fields;
  int64_t converted_bytes = 0;
  for (const Tensor& field : run::batch_fields(graph, micro_batch, packed)) {
    const int input = nth(graph.inputs, std::ssize(fields));
    const TensorSpec read = graph.logical_spec(input);
    if (read.dtype != field.dtype && field.dtype != DType::uint8)
      converted_bytes += read.shape.count() * size_of(read.dtype);
    fields.push_back(field.size_bytes());
  }
  const int64_t batch_bytes = exchanged ? tensor::batch_places(fields).size_bytes
                                        : std::accumulate(fields.begin(), fields.end(), int64_t{0});
  // A sample that is converted lies with each micro-batch and with the thread that takes them.
  return {.batches = ahead.threads > 0 ? ahead.depth * batch_bytes : 0,
          .samples = (ahead.depth + 1) * converted_bytes};
}

namespace {

void check_labels(const data::Dataset& dataset, const model::Graph& graph) {
  const auto& loss = graph.node(graph.loss);
  const auto* op = std::get_if<SoftmaxCrossEntropy>(&loss.op);
  if (op == nullptr) return;
  const int64_t outputs = graph.value(loss.inputs[0]).spec.shape[-1];
  const auto& labels = graph.value(loss.inputs[1]);
  const bool is_label = labels.producer >= 0 || labels.name == data::kLabelField;
  const data::LargestValue largest =
      dataset.largest(is_label ? data::kLabelField : std::string_view(labels.name), op->ignore_index);
  if (largest.value >= outputs) {
    throw ConfigError(
        largest.place.empty()
            ? fmt::format(
                  "the model has {} classes, but the data ({}) have {}; raise the model's number of classes",
                  outputs, dataset.description(), largest.value + 1)
            : fmt::format("the model has {} classes, but {} is not from 0 to {}: the label is damaged, the "
                          "model has too few classes, or the label should be ignored: softmax_cross_entropy "
                          "{{ ignore_index: {} }}",
                          outputs, largest.place, outputs - 1, largest.value));
  }
}

void check_tokens(const data::Dataset& dataset, const model::Graph& graph) {
  for (const auto& node : graph.nodes) {
    const auto* embedding = std::get_if<Embedding>(&node.op);
    if (embedding == nullptr || graph.value(node.inputs[0]).producer >= 0) continue;
    const int64_t vocabulary = dataset.vocabulary(graph.value(node.inputs[0]).name);
    if (embedding->vocabulary < vocabulary)
      throw ConfigError(
          fmt::format("layer {}: vocabulary is {}, but the data ({}) have {} tokens; set it to {}", node.name,
                      embedding->vocabulary, dataset.description(), vocabulary, vocabulary));
  }
}

}  // namespace

void check_data_fits_model(const data::Dataset& dataset, const model::Graph& graph,
                           const std::optional<program::PackedInput>& packed) {
  std::vector<std::string> names;
  for (const auto& field : dataset.fields()) names.push_back(field.name);
  for (const int input : graph.inputs) {
    const auto& value = graph.value(input);
    const auto field = std::find_if(dataset.fields().begin(), dataset.fields().end(),
                                    [&](const data::Field& f) { return f.name == value.name; });
    if (field == dataset.fields().end())
      throw ConfigError(
          fmt::format("model input '{}' is not a field of the data ({}); their fields are: {}{}", value.name,
                      dataset.description(), join(names, ", "), did_you_mean(value.name, names)));
    // Narrow inputs are rounded where batches are read.
    const TensorSpec wanted = graph.logical_spec(input);
    if (field->spec != wanted)
      throw ConfigError(fmt::format(
          "model input '{}' is {} {}, but the data ({}) have {} {}; change the model or the data section",
          value.name, name_of(wanted.dtype), wanted.shape.to_string(), dataset.description(),
          name_of(field->spec.dtype), field->spec.shape.to_string()));
  }
  check_labels(dataset, graph);
  check_tokens(dataset, graph);
  if (!packed) return;
  const auto images = dataset.packed();
  require(images.has_value(),
          fmt::format("data.transforms_on is GPU, but that is for images in files or records, and the data "
                      "({}) are others; set data.transforms_on: CPU",
                      dataset.description()));
  ensure(images->layout == packed->layout && nth(dataset.fields(), static_cast<int>(images->field)).name ==
                                                 graph.value(nth(graph.inputs, packed->input)).name,
         "samples are packed otherwise than programs were compiled for");
}

}  // namespace lockstep::train
