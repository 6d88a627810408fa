#include "net/shrink.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
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
    if (from_.layout.pp > 2)
      for (size_t cut = 0; cut <= from_.cuts.size(); ++cut)
        with([&](Case& other) {
          --other.layout.pp;
          if (cut < other.cuts.size()) other.cuts.erase(other.cuts.begin() + static_cast<ptrdiff_t>(cut));
        });
    try_layout(&Layout::schedule, plain.schedule);
    try_layout(&Layout::servers, plain.servers);
    try_layout(&Layout::placement, plain.placement);
    try_layout(&Layout::assign, plain.assign);
    try_layout(&Layout::aggregate, plain.aggregate);
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
    try_training(&Training::optimizer, plain.optimizer);
    try_training(&Training::adaptive_clip, plain.adaptive_clip);
    try_training(&Training::compute, plain.compute);
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
    for (size_t l = 0; l < from_.model.layers.size(); ++l) {
      for (size_t t = 0; t < from_.model.layers[l].ties.size(); ++t)
        with([&](Case& other) {
          auto& ties = other.model.layers[l].ties;
          ties.erase(ties.begin() + static_cast<ptrdiff_t>(t));
        });
      const Op& op = from_.model.layers[l].op;
      if (const auto* dropout = std::get_if<Dropout>(&op); dropout != nullptr && dropout->rate > 0)
        with([&](Case& other) { other.model.layers[l].op = Dropout{0}; });
      if (const auto* attention = std::get_if<Attention>(&op); attention != nullptr && attention->dropout > 0)
        with([&](Case& other) { other.model.layers[l].op = Attention{attention->heads, 0}; });
      if (std::holds_alternative<Attention>(op) && from_.model.layers[l].inputs.size() > 1)
        with([&](Case& other) { other.model.layers[l].inputs.resize(1); });
      if (const auto* linear = std::get_if<Linear>(&op); linear != nullptr && linear->bias)
        with([&](Case& other) { std::get<Linear>(other.model.layers[l].op).bias = false; });
    }
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
