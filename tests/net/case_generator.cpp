#include "net/case_generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "lockstep/error.h"
#include "model/graph.h"
#include "model/pieces.h"
#include "net/draw.h"
#include "net/model_generator.h"
#include "plan/device_plan.h"
#include "train/worker/compile_options.h"

namespace lockstep::net {
namespace {

constexpr int kMostRanks = 8;
constexpr int kTries = 30;  // of a layout, before the training is drawn again, and at last the model

std::string draw_optimizer(Draw& draw) {
  switch (draw.weighted({4, 3, 1, 1, 1, 1, 1})) {
    case 0:
      return draw.percent(50) ? "sgd {}" : "sgd { momentum: 0.9 }";
    case 1:  // mostly with an epsilon that does not make large updates of rounding errors
      return draw.percent(30) ? "adamw {}" : "adamw { epsilon: 0.001 }";
    case 2:
      return "adam { epsilon: 0.01 }";
    case 3:
      return draw.percent(50) ? "lars { trust: 0.1 epsilon: 0.01 }" : "lars { momentum: 0.5 trust: 0.02 }";
    case 4:
      return draw.percent(70) ? "lamb { epsilon: 0.001 adapt_without_decay: true }"
                              : "lamb { beta1: 0.8 epsilon: 0.01 adapt_without_decay: true }";
    case 5:
      return draw.of<std::string>(
          {"muon { adamw { learning_rate: 0.01 epsilon: 0.001 } }",
           "muon { scale: MATCH_ADAMW adamw { learning_rate: 0.003 epsilon: 0.01 weight_decay: 0.1 } }",
           "muon { momentum: 0.5 nesterov: false newton_schulz_steps: 2 "
           "adamw { learning_rate: 0.01 beta1: 0.8 epsilon: 0.01 } }"});
    default:
      return "sgd { momentum: 0.5 nesterov: true }";
  }
}

void draw_precision(Draw& draw, Training& training) {
  training.compute = "FLOAT32";
  if (draw.percent(35)) training.compute = draw.of({"BFLOAT16", "BFLOAT16", "FLOAT16", "FLOAT16", "TF32"});
  // The default scale overflows now and then, which is tried, too.
  if (training.compute == "FLOAT16" && draw.percent(70)) training.loss_scale = 256;
  if (training.compute.ends_with("FLOAT16")) training.fused_gelu = draw.percent(50);
}

std::string draw_average(Draw& draw) {
  return fmt::format("decay: {} start_step: {} evaluate: {}", draw.of({0.5, 0.9}), draw.between(0, 2),
                     draw.percent(70));
}

/// Layers that do not learn: mostly the first ones, as in fine-tuning.
std::vector<std::string> draw_frozen(Draw& draw, const ModelSpec& model) {
  const auto layers = static_cast<int64_t>(model.layers.size());
  const int64_t first_ones = draw.percent(60) ? draw.below(layers) : 0;
  std::vector<std::string> frozen;
  const model::Graph graph = model::make_graph(model);
  for (int64_t l = 0; l < layers; ++l) {
    const std::string& name = model.layers[static_cast<size_t>(l)].name;
    const auto node = std::ranges::find(graph.nodes, name, &model::Node::name);
    if (node->parameters.empty() || !(first_ones > 0 ? l < first_ones : draw.percent(30))) continue;
    frozen.push_back(name);
  }
  return frozen;
}

/// Other rates for one parameter, for those of a layer or for those of a name, and perhaps for all others.
std::vector<std::string> draw_groups(Draw& draw, const model::Graph& graph) {
  const std::string& name = draw.of(graph.parameters).name;
  const size_t dot = name.rfind('.');
  std::vector<std::string> groups;
  for (const std::string& pattern :
       {draw.of<std::string>({name, name.substr(0, dot) + ".*", "*" + name.substr(dot)}), std::string("*")}) {
    groups.push_back(fmt::format("parameters: \"{}\"", pattern));
    if (draw.percent(70)) groups.back() += fmt::format(" learning_rate_factor: {}", draw.of({0.1, 0.5, 2.0}));
    if (draw.percent(50)) groups.back() += fmt::format(" weight_decay: {}", draw.of({0.0, 0.05, 0.2}));
    if (draw.percent(60)) break;
  }
  return groups;
}

Training draw_training(Draw& draw, int64_t classes, bool on_gpu) {
  Training training;
  training.classes = classes;
  training.samples = draw.between(5, 40);
  training.data_seed = static_cast<uint64_t>(draw.between(1, 1000));
  training.seed = static_cast<uint64_t>(draw.between(1, 1000));
  training.shuffle = draw.percent(70);
  training.virtual_replicas = draw.of({1, 2, 2, 3, 4, 4, 5, 6, 7, 8});
  const int64_t leaf = draw.of<int64_t>({1, 2, 2, 3, 4});
  training.global_batch = leaf * training.virtual_replicas;
  training.micro_batch = draw.of<int64_t>({0, 1, 1, 2});
  if (on_gpu && draw.percent(20)) {  // GPUs compute several virtual replicas at once only if these are larger
    training.global_batch = 8 * training.virtual_replicas;
    training.micro_batch = 8 * draw.of<int64_t>({2, 4});
    training.samples += 20;
  }
  training.optimizer = draw_optimizer(draw);
  const bool is_sgd = training.optimizer.starts_with("sgd"), is_lars = training.optimizer.starts_with("lars");
  training.learning_rate = is_sgd || is_lars ? 0.1 : 0.01;
  if (draw.percent(40)) training.weight_decay = 0.1;
  training.decay_norm_and_bias = draw.percent(30);
  if (draw.percent(40)) training.clip_norm = draw.of({0.1, 0.5, 5.0});
  if (draw.percent(25)) training.ema = draw_average(draw);
  const bool takes_no_clip =
      is_lars || training.optimizer.starts_with("lamb") || training.optimizer.starts_with("muon");
  if (!takes_no_clip && draw.percent(15)) training.adaptive_clip = draw.of({0.02, 0.1, 0.5});
  draw_precision(draw, training);
  training.nonfinite = draw.of({"LOCATE", "IGNORE", "IGNORE", "SKIP"});
  training.check_every_steps = draw.of<int64_t>({0, 1, 100});
  training.bucket_bytes = draw.of<int64_t>({0, 64, 64, 300, 300, 1000, 4000, 1 << 20});
  training.fast = draw.percent(20);
  if (draw.percent(20)) training.wire = "BFLOAT16";
  if (draw.percent(20))
    training.intra_op_threads = std::min(kMostThreads, static_cast<int>(draw.between(2, 4)));
  return training;
}

void draw_sync(Draw& draw, layout::Layout& layout) {
  if (draw.percent(60)) {
    if (draw.percent(35)) {
      layout.shard = layout::ShardedState::optimizer;
    } else if (draw.percent(25)) {
      layout.aggregate = layout::Aggregation::host;
      if (layout.pp == 1) layout.dp = draw.of({2, 3, 4});
    }
    return;
  }
  layout.sync = layout::SyncMethod::parameter_server;
  layout.servers = static_cast<int>(draw.between(1, 2));
  if (draw.percent(40)) {  // workers of each stage serve, as many of one as of another
    layout.placement = layout::ServerPlacement::colocated;
    layout.servers = layout.pp * static_cast<int>(draw.between(1, layout.dp));
  }
  if (draw.percent(30)) layout.assign = layout::ServerAssignment::whole;
  if (draw.percent(30)) layout.aggregate = layout::Aggregation::host;
  if (draw.percent(15)) {
    layout.mode = layout::ServerMode::stale;
    layout.bound = 0;  // all wait for each other
  }
}

/// As a text, so that it is what a user could have stated.
std::optional<layout::Layout> draw_layout(Draw& draw, const GeneratorOptions& options) {
  layout::Layout layout;
  layout.pp = options.pipelines ? draw.of({1, 2, 2, 2, 3, 3, 4}) : 1;
  layout.dp = draw.of({1, 1, 2, 2, 3});
  if (layout.pp > 1) {
    layout.schedule = draw.of({layout::PipelineSchedule::zero_bubble, layout::PipelineSchedule::zero_bubble,
                               layout::PipelineSchedule::gpipe, layout::PipelineSchedule::one_f_one_b,
                               layout::PipelineSchedule::interleaved});
    if (layout.schedule == layout::PipelineSchedule::interleaved)
      layout.chunks = static_cast<int>(draw.between(2, 3));
  }
  layout.recompute = draw.of({layout::Recompute::none, layout::Recompute::none, layout::Recompute::selective,
                              layout::Recompute::full});
  draw_sync(draw, layout);
  if (layout.world_size() > kMostRanks) return std::nullopt;
  if (layout.world_size() == 1 && layout.recompute == layout::Recompute::none && draw.percent(90))
    return std::nullopt;
  try {
    return layout::parse_layout(layout::to_string(layout));
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

/// Places to cut at, anywhere between fused groups: most of them far from where the estimates would cut.
std::vector<std::string> draw_cuts(Draw& draw, const model::Graph& graph, int pieces) {
  std::vector<int> begins = model::group_begins(graph);
  std::erase(begins, 0);
  const auto wanted = static_cast<size_t>(pieces - 1);
  if (begins.size() < wanted) return {};
  while (begins.size() > wanted)
    begins.erase(begins.begin() + draw.below(static_cast<int64_t>(begins.size())));
  std::vector<std::string> names;
  for (const int node : begins) names.push_back(graph.node(node).name);
  return names;
}

/// What its fullest rank takes; nothing if it cannot be compiled, or takes more than it may.
std::optional<int64_t> bytes_of(const Case& test_case) {
  try {
    const auto config =
        config::parse_run_config(config_text(test_case), "case", {}, layout::to_string(test_case.layout));
    const compile::CompiledRun run = train::compile_run(
        config, {.world_size = test_case.layout.world_size(),
                 .shared_memory = test_case.shared_memory,
                 .hosts = hosts_of(test_case.layout.world_size(), test_case.ranks_per_host),
                 .device = test_case.on_gpu ? device::DeviceKind::cuda : device::DeviceKind::cpu});
    const int64_t bytes = plan::fullest_rank(run).plan.total_bytes, limit = config.device.memory_limit;
    return limit > 0 && bytes > limit ? std::nullopt : std::optional(bytes);
  } catch (const ConfigError&) {
    return std::nullopt;
  } catch (const InternalError&) {
    return 0;  // a fault of ours, which is for the check to find
  }
}

bool compiles(const Case& test_case) { return bytes_of(test_case).has_value(); }

/// Whether one rank can train it, whatever the layout is, and what fits it alone.
bool trains_alone(Case test_case) {
  test_case.layout = layout::Layout{.dp = 1};
  test_case.training.memory_limit = 0;
  return compiles(test_case);
}

/// What does not fit, such as one half of a shared parameter, is left out.
void draw_frozen_and_groups(Draw& draw, Case& test_case) {
  if (draw.percent(20)) {
    test_case.model.frozen = draw_frozen(draw, test_case.model);
    if (!trains_alone(test_case)) test_case.model.frozen.clear();
  }
  if (draw.percent(20)) {
    test_case.training.groups = draw_groups(draw, model::make_graph(test_case.model));
    if (!trains_alone(test_case)) test_case.training.groups.clear();
  }
}

/// What the layout takes, or a little less: then its stages are cut elsewhere, or it does not fit.
void draw_memory_limit(Draw& draw, Case& test_case) {
  if (!draw.percent(20)) return;
  const double share = draw.of({0.9, 0.98, 1.0});
  test_case.training.memory_limit =
      static_cast<int64_t>(share * static_cast<double>(bytes_of(test_case).value_or(0)));
  if (!compiles(test_case)) test_case.training.memory_limit = 0;
}

/// Other ways than the default to sum, if the layout has a use for them.
void draw_algorithm(Draw& draw, Case& test_case) {
  if (!draw.percent(35) || test_case.layout.sync == layout::SyncMethod::parameter_server) return;
  test_case.training.algorithm = draw.of({test_case.training.fast ? "RING" : "TREE", "SHARED_MEMORY"});
  if (!compiles(test_case) || !trains_alone(test_case)) test_case.training.algorithm = "AUTOMATIC";
}

bool draw_fitting_layout(Draw& draw, const GeneratorOptions& options, Case& test_case,
                         std::vector<layout::Layout>* refused) {
  const model::Graph graph = model::make_graph(test_case.model);
  for (int i = 0; i < kTries; ++i) {
    const auto layout = draw_layout(draw, options);
    if (!layout) continue;
    test_case.layout = *layout;
    test_case.cuts.clear();
    if (layout->pp > 1 && draw.percent(60)) test_case.cuts = draw_cuts(draw, graph, layout->pieces());
    if (compiles(test_case)) {
      draw_algorithm(draw, test_case);
      draw_memory_limit(draw, test_case);
      return true;
    }
    if (refused != nullptr) refused->push_back(*layout);
  }
  return false;
}

}  // namespace

namespace {

bool has_batch_norm(const ModelSpec& model) {
  return std::ranges::any_of(model.layers,
                             [](const Layer& layer) { return std::holds_alternative<BatchNorm>(layer.op); });
}

}  // namespace

Case generate_case(uint64_t seed, const GeneratorOptions& options, std::vector<layout::Layout>* refused) {
  Draw draw(seed);
  Case test_case;
  test_case.on_gpu = options.on_gpu;
  for (;;) {
    GeneratedModel model = generate_model(draw);
    test_case.model = std::move(model.spec);
    for (int i = 0; i < 3; ++i) {
      test_case.model.frozen.clear();
      test_case.training = draw_training(draw, model.classes, options.on_gpu);
      test_case.shared_memory = !options.on_gpu && draw.percent(50);
      test_case.lanes_at_once = !options.on_gpu && draw.percent(15);
      test_case.ranks_per_host = test_case.shared_memory ? 0 : draw.of({0, 1, 2, 2, 3});
      if (!trains_alone(test_case)) continue;
      draw_frozen_and_groups(draw, test_case);
      if (!draw_fitting_layout(draw, options, test_case, refused)) continue;
      // A limit of memory was drawn without its residuals.
      Training& training = test_case.training;
      if (training.wire != "FLOAT32" && training.compute != "FLOAT16" && training.memory_limit == 0)
        training.error_feedback = draw.percent(50) && !has_batch_norm(test_case.model);
      return test_case;
    }
  }
}

bool is_possible(const Case& test_case) {
  try {
    layout::parse_layout(layout::to_string(test_case.layout));
    return trains_alone(test_case) && compiles(test_case);
  } catch (const ConfigError&) {
    return false;
  }
}

uint64_t seed_of_case(uint64_t run_seed, int64_t number) {
  return Draw(run_seed * 0x2545F4914F6CDD1Du + static_cast<uint64_t>(number)).next();
}

}  // namespace lockstep::net
