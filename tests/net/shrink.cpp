#include "net/shrink.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "net/case_generator.h"

namespace lockstep::net {
namespace {

/// Leaves out layers whose output nobody reads, and inputs likewise.
void drop_unread(ModelSpec& model) {
  for (bool again = true; again;) {
    std::set<std::string> read;
    for (const Layer& layer : model.layers) read.insert(layer.inputs.begin(), layer.inputs.end());
    const auto unread = [&](const Layer& layer) {
      return !read.contains(layer.name) && &layer != &model.layers.back();
    };
    std::vector<Layer> kept;
    for (const Layer& layer : model.layers)
      if (!unread(layer)) kept.push_back(layer);
    again = kept.size() < model.layers.size();
    model.layers = std::move(kept);
    std::erase_if(model.inputs, [&](const ModelInput& input) { return !read.contains(input.name); });
    std::erase_if(model.frozen, [&](const std::string& name) {
      return std::ranges::find(model.layers, name, &Layer::name) == model.layers.end();
    });
  }
}

/// Cases that are a little smaller than this one; many of them make no sense.
class Smaller {
 public:
  explicit Smaller(const Case& from) : from_(from) {}

  std::vector<Case> all() {
    layers();
    layout();
    training();
    options();
    return std::move(cases_);
  }

 private:
  template <class Change>
  void with(const Change& change) {
    Case other = from_;
    change(other);
    cases_.push_back(std::move(other));
  }

  /// Each layer's readers read one of its inputs in its place.
  void layers() {
    const auto& layers = from_.model.layers;
    for (size_t l = layers.size() - 1; l-- > 0;)
      for (const std::string& input : layers[l].inputs)
        with([&](Case& other) {
          for (Layer& layer : other.model.layers)
            std::replace(layer.inputs.begin(), layer.inputs.end(), layers[l].name, input);
          std::erase(other.cuts, layers[l].name);
          if (other.cuts.size() < from_.cuts.size()) cut_behind(other, l);
          other.model.layers.erase(other.model.layers.begin() + static_cast<ptrdiff_t>(l));
          drop_unread(other.model);
        });
  }

  /// A cut at a layer that is gone is one at the next.
  void cut_behind(Case& other, size_t layer) const {
    const std::string& next = from_.model.layers[layer + 1].name;
    const auto place = std::find(from_.cuts.begin(), from_.cuts.end(), from_.model.layers[layer].name);
    if (std::find(other.cuts.begin(), other.cuts.end(), next) == other.cuts.end())
      other.cuts.insert(other.cuts.begin() + (place - from_.cuts.begin()), next);
  }

  void layout() {
    const layout::Layout plain;
    const auto try_layout = [&](auto member, auto value) {
      if (from_.layout.*member == value) return;
      with([&](Case& other) { other.layout.*member = value; });
    };
    using layout::Layout;
    try_layout(&Layout::sync, plain.sync);
    try_layout(&Layout::shard, plain.shard);
    try_layout(&Layout::recompute, plain.recompute);
    try_layout(&Layout::dp, 1);
    if (from_.layout.dp > 1) try_layout(&Layout::dp, from_.layout.dp - 1);
    try_layout(&Layout::pp, 1);
    // Schedules may want micro-batches that divide among the stages, as those of four do among two, not
    // three.
    if (from_.layout.pp > 2)
      with([&](Case& other) {
        other.layout.pp = 2;
        other.cuts.clear();
      });
    if (from_.layout.pp > 2)
      for (size_t cut = 0; cut <= from_.cuts.size(); ++cut)
        with([&](Case& other) {
          --other.layout.pp;
          if (cut < other.cuts.size()) other.cuts.erase(other.cuts.begin() + static_cast<ptrdiff_t>(cut));
        });
    try_layout(&Layout::schedule, plain.schedule);
    if (from_.layout.chunks > plain.chunks)
      for (size_t cut = 0; cut <= from_.cuts.size(); ++cut)
        with([&](Case& other) {  // one piece less on each stage
          --other.layout.chunks;
          for (int piece = 0; piece < other.layout.pp && cut < other.cuts.size(); ++piece)
            other.cuts.erase(other.cuts.begin() + static_cast<ptrdiff_t>(cut));
        });
    try_layout(&Layout::servers, plain.servers);
    try_layout(&Layout::placement, plain.placement);
    try_layout(&Layout::assign, plain.assign);
    try_layout(&Layout::aggregate, plain.aggregate);
    if (from_.layout.mode != plain.mode)
      with([&](Case& other) {
        other.layout.mode = plain.mode;
        other.layout.bound = plain.bound;
      });
    if (!from_.cuts.empty()) with([&](Case& other) { other.cuts.clear(); });
    if (from_.shared_memory) with([&](Case& other) { other.shared_memory = false; });
    if (from_.ranks_per_host > 0) with([&](Case& other) { other.ranks_per_host = 0; });
    if (from_.lanes_at_once) with([&](Case& other) { other.lanes_at_once = false; });
    if (from_.on_gpu) with([&](Case& other) { other.on_gpu = false; });
  }

  void training() {
    const Training plain;
    const auto try_training = [&](auto member, auto value) {
      if (from_.training.*member == value) return;
      with([&](Case& other) { other.training.*member = value; });
    };
    try_training(&Training::fast, false);
    try_training(&Training::algorithm, plain.algorithm);
    try_training(&Training::intra_op_threads, 1);
    try_training(&Training::fused_gelu, false);
    try_training(&Training::memory_limit, int64_t{0});
    try_training(&Training::optimizer, plain.optimizer);
    try_training(&Training::learning_rate, plain.learning_rate);
    try_training(&Training::adaptive_clip, plain.adaptive_clip);
    try_training(&Training::compute, plain.compute);
    try_training(&Training::error_feedback, false);
    try_training(&Training::wire, plain.wire);
    try_training(&Training::weight_decay, plain.weight_decay);
    try_training(&Training::clip_norm, plain.clip_norm);
    try_training(&Training::decay_norm_and_bias, plain.decay_norm_and_bias);
    try_training(&Training::groups, plain.groups);
    try_training(&Training::ema, plain.ema);
    try_training(&Training::nonfinite, plain.nonfinite);
    try_training(&Training::check_every_steps, plain.check_every_steps);
    try_training(&Training::bucket_bytes, plain.bucket_bytes);
    try_training(&Training::micro_batch, plain.micro_batch);
    try_training(&Training::shuffle, false);
    try_training(&Training::loss_scale, plain.loss_scale);
    try_training(&Training::seed, plain.seed);
    try_training(&Training::data_seed, plain.data_seed);
    for (const int64_t samples : {5, 10, 20})
      if (samples < from_.training.samples) try_training(&Training::samples, samples);
    for (const int leaves : {1, 2, 3})
      if (leaves < from_.training.virtual_replicas)
        with([&](Case& other) {
          other.training.global_batch =
              from_.training.global_batch / from_.training.virtual_replicas * leaves;
          other.training.virtual_replicas = leaves;
        });
    for (const int64_t samples : {1, 2})
      if (samples * from_.training.virtual_replicas < from_.training.global_batch)
        try_training(&Training::global_batch, samples * from_.training.virtual_replicas);
  }

  void options() {
    for (size_t f = 0; f < from_.model.frozen.size(); ++f)
      with([&](Case& other) {
        other.model.frozen.erase(other.model.frozen.begin() + static_cast<ptrdiff_t>(f));
      });
    widths();
    images();
    for (size_t l = 0; l < from_.model.layers.size(); ++l) {
      for (size_t t = 0; t < from_.model.layers[l].ties.size(); ++t)
        with([&](Case& other) {
          auto& ties = other.model.layers[l].ties;
          ties.erase(ties.begin() + static_cast<ptrdiff_t>(t));
        });
      std::visit([&](const auto& op) { simpler(l, op); }, from_.model.layers[l].op);
      if (std::holds_alternative<Attention>(from_.model.layers[l].op) &&
          from_.model.layers[l].inputs.size() > 1)
        with([&](Case& other) { other.model.layers[l].inputs.resize(1); });
    }
  }

  /// Layers of one width stay of one width, so that sums of them still fit.
  void widths() {
    std::set<int64_t> found;
    for (const Layer& layer : from_.model.layers)
      if (const int64_t* width = width_of(layer.op)) found.insert(*width);
    for (const int64_t width : found)
      for (const int64_t smaller : {1, 2, 3, 4})
        if (smaller < width)
          with([&](Case& other) {
            for (Layer& layer : other.model.layers)
              if (int64_t* size = width_of(layer.op); size != nullptr && *size == width) *size = smaller;
          });
    for (const int64_t classes : {2, 3})
      if (classes < from_.training.classes)
        with([&](Case& other) {
          for (Layer& layer : other.model.layers) {
            if (int64_t* size = width_of(layer.op); size != nullptr && *size == from_.training.classes)
              *size = classes;
            if (auto* embedding = std::get_if<Embedding>(&layer.op)) embedding->vocabulary = classes;
          }
          other.training.classes = classes;
        });
  }

  template <class AnyOp>
  static auto width_of(AnyOp& op) -> decltype(&std::get_if<Linear>(&op)->units) {
    if (auto* linear = std::get_if<Linear>(&op)) return &linear->units;
    if (auto* conv = std::get_if<Conv2d>(&op)) return &conv->channels;
    if (auto* lstm = std::get_if<Lstm>(&op)) return &lstm->units;
    if (auto* embedding = std::get_if<Embedding>(&op)) return &embedding->width;
    return nullptr;
  }

  /// Smaller samples: pixels, channels, positions, together with the labels of positions.
  void images() {
    const Shape whole = from_.model.inputs.front().spec.shape;
    for (int axis = 0; axis < whole.rank(); ++axis)
      for (const int64_t size : {int64_t{1}, int64_t{2}, whole[axis] / 2, whole[axis] - 1}) {
        if (size < 1 || size >= whole[axis]) continue;
        std::vector<int64_t> sizes(whole.dims().begin(), whole.dims().end());
        sizes[static_cast<size_t>(axis)] = size;
        with([&](Case& other) {
          const Shape smaller(sizes);
          for (ModelInput& input : other.model.inputs)
            if (input.spec.shape == whole) input.spec.shape = smaller;
          if (whole.rank() != 3) return;  // or the end of a regression makes the image again
          for (Layer& layer : other.model.layers) {
            if (int64_t* size = width_of(layer.op); size != nullptr && *size == whole.count())
              *size = smaller.count();
            if (auto* view = std::get_if<Reshape>(&layer.op);
                view != nullptr && view->shape == fmt::format("{},{},{}", whole[0], whole[1], whole[2]))
              view->shape = fmt::format("{},{},{}", smaller[0], smaller[1], smaller[2]);
          }
        });
      }
  }

  /// An op with other options.
  template <class AnyOp, class Change>
  void with_op(size_t layer, const AnyOp& op, const Change& change) {
    AnyOp changed = op;
    change(changed);
    if (!(changed == op)) with([&](Case& other) { other.model.layers[layer].op = changed; });
  }

  /// What takes the place of an op: itself with simpler options, or a simpler op of its shape.
  template <class AnyOp>
  void simpler(size_t l, const AnyOp& op) {
    if constexpr (requires(AnyOp o) { o.bias = false; }) with_op(l, op, [](AnyOp& o) { o.bias = false; });
    if constexpr (requires(AnyOp o) { o.init_std = 0.0f; })
      with_op(l, op, [](AnyOp& o) { o.init_std = AnyOp{}.init_std; });
    if constexpr (requires(AnyOp o) { o.epsilon = 0.0f; })
      with_op(l, op, [](AnyOp& o) { o.epsilon = AnyOp{}.epsilon; });
    if constexpr (std::is_same_v<AnyOp, Dropout>) with_op(l, op, [](Dropout& o) { o.rate = 0; });
    if constexpr (std::is_same_v<AnyOp, Attention>) with_op(l, op, [](Attention& o) { o.dropout = 0; });
    if constexpr (std::is_same_v<AnyOp, Lstm>) with_op(l, op, [](Lstm& o) { o.bidirectional = false; });
    if constexpr (std::is_same_v<AnyOp, Lstm> || std::is_same_v<AnyOp, SequencePool>)
      if (from_.model.layers[l].inputs.size() > 1)
        with([&](Case& other) {  // without its mask
          other.model.layers[l].inputs.resize(1);
          drop_unread(other.model);
        });
    if constexpr (std::is_same_v<AnyOp, Conv2d>) {
      with_op(l, op, [](Conv2d& o) { o.groups = 1; });
      with_op(l, op, [](Conv2d& o) { o.stride = 1; });
      with_op(l, op, [](Conv2d& o) {  // of the same shape, if padding has kept it
        o.padding -= o.kernel / 2 * (o.dilation - 1);
        o.dilation = 1;
      });
      with_op(l, op, [](Conv2d& o) {
        o.padding = std::max<int64_t>(0, o.padding - o.dilation * (o.kernel / 2));
        o.kernel = 1;
      });
      with_op(l, op, [](Conv2d& o) { o.padding = 0; });
    }
    if constexpr (std::is_same_v<AnyOp, Pool2d>) {
      with_op(l, op, [](Pool2d& o) { o.kind = PoolKind::average; });
      with_op(l, op, [](Pool2d& o) { o.count_include_pad = false; });
      with_op(l, op, [](Pool2d& o) { o.padding = 0; });
      with_op(l, op, [](Pool2d& o) { o.stride = 0; });
    }
    if constexpr (std::is_same_v<AnyOp, Upsample2d>)
      with_op(l, op, [](Upsample2d& o) {
        o.kind = UpsampleKind::nearest;
        o.align_corners = false;
      });
    if constexpr (std::is_same_v<AnyOp, SoftmaxCrossEntropy>) {
      with_op(l, op, [](SoftmaxCrossEntropy& o) { o.label_smoothing = 0; });
      with_op(l, op, [](SoftmaxCrossEntropy& o) { o.ignore_index = SoftmaxCrossEntropy{}.ignore_index; });
      if (from_.model.layers[l].inputs.size() > 2)
        with([&](Case& other) {  // no label_mix
          other.model.layers[l].inputs.resize(2);
          drop_unread(other.model);
        });
    }
    // What has a kink, a mean, or more than one formula: tanh has none of these.
    if constexpr (std::is_same_v<AnyOp, Gelu> || std::is_same_v<AnyOp, Silu> || std::is_same_v<AnyOp, Relu> ||
                  std::is_same_v<AnyOp, Sigmoid> || std::is_same_v<AnyOp, BatchNorm> ||
                  std::is_same_v<AnyOp, LayerNorm> || std::is_same_v<AnyOp, RmsNorm> ||
                  std::is_same_v<AnyOp, Dropout>)
      with([&](Case& other) {
        other.model.layers[l].op = Tanh{};
        other.model.layers[l].ties.clear();
      });
    if constexpr (std::is_same_v<AnyOp, Multiply>)
      with([&](Case& other) { other.model.layers[l].op = Add{}; });
  }

  const Case& from_;
  std::vector<Case> cases_;
};

}  // namespace

Case shrink(Case test_case, const std::function<bool(const Case&)>& fails, int most_tries) {
  int tries = 0;
  for (bool again = true; again && tries < most_tries;) {
    again = false;
    for (Case& smaller : Smaller(test_case).all()) {
      if (tries >= most_tries || !is_possible(smaller)) continue;
      ++tries;
      if (!fails(smaller)) continue;
      test_case = std::move(smaller);
      again = true;
      break;
    }
  }
  return test_case;
}

}  // namespace lockstep::net
