#include "net/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "lockstep/error.h"
#include "net/training.h"
#include "train/worker/compile_options.h"

namespace lockstep::net {
namespace {

using Kind = Finding::Kind;

config::RunConfig read(const std::string& text, const std::string& layout) {
  return config::parse_run_config(text, "case.textproto", {}, layout);
}

/// Trains, or says why not; then there are the steps before that.
struct Attempt {
  Trained trained;
  std::string failure;

  /// A loss that is no number ends a run; that is the model's doing, whatever the layout.
  bool diverged() const {
    return failure.find("has diverged") != std::string::npos ||
           failure.find("not both finite") != std::string::npos;
  }
};

Attempt attempt(const config::RunConfig& config, const RankFacts& facts) {
  Trained until_failure;
  try {
    return {train_here(config, facts, &until_failure), ""};
  } catch (const std::exception& failure) {
    return {std::move(until_failure), failure.what()};
  }
}

std::string refusal(const config::RunConfig& config, const compile::CompileFacts& facts) {
  try {
    train::compile_run(config, facts).check();
    return "";
  } catch (const std::exception& failure) {
    return failure.what();
  }
}

bool has_statistics(const config::RunConfig& config) {
  const model::Graph graph = model::make_graph(config.model);
  return std::ranges::any_of(graph.parameters, [](const model::Parameter& parameter) {
    return parameter.spec.role == ops::ParameterRole::statistic;
  });
}

/// How one rank computes what a layout's bits are compared with: by one thread, without a limit of memory,
/// and in other micro-batches, if they change no bit of a training. On CPUs they do not, unless they decide
/// statistics; on GPUs those do not that hold several virtual replicas.
config::RunConfig one_rank(const std::string& text, const RankFacts& facts, const CheckOptions& options) {
  config::RunConfig alone = read(text, "dp=1");
  if (options.as_verify) return alone;
  alone.device.memory_limit = 0;
  alone.parallel.algorithm = parallel::AllReduceAlgorithm::automatic;  // there is nothing to choose
  alone.parallel.intra_op_threads = 1;
  int64_t& micro_batch = alone.trainer.micro_batch;
  if (alone.parallel.reduction != layout::Reduction::reproducible) return alone;
  if (facts.device == device::DeviceKind::cuda)
    micro_batch =
        std::min(micro_batch, alone.trainer.global_batch / config::resolved_virtual_replicas(alone.trainer));
  else if (!has_statistics(alone))
    micro_batch = micro_batch == 1 ? 0 : 1;
  return alone;
}

/// An evaluation's losses are summed micro-batch by micro-batch: of other ones the last bits may differ.
void forgive_order_of_evaluation(const Trained& one, Trained& other) {
  if (std::abs(one.eval_loss - other.eval_loss) <= 1e-12 * std::abs(one.eval_loss))
    other.eval_loss = one.eval_loss;
}

std::optional<Finding> check_with_oracle(const config::RunConfig& config, const Trained& trained,
                                         CheckReport& report) {
  report.oracle = compare_with_oracle(config, trained);
  if (!report.oracle.difference.empty()) return Finding{Kind::oracle, report.oracle.difference};
  return std::nullopt;
}

/// Beside the roundings of a narrower wire, small errors of the model would not be noticed. So it is trained
/// without them, too, and the report is of that.
std::optional<Finding> check_with_exact_wire(config::RunConfig config, const RankFacts& facts,
                                             CheckReport& report) {
  config.parallel.wire = DType::float32;
  config.parallel.error_feedback = false;
  config.device.memory_limit = 0;  // it was drawn for the narrower wire
  const Attempt exact = attempt(config, facts);
  if (exact.diverged()) return std::nullopt;
  if (!exact.failure.empty()) return Finding{Kind::error, "with a float32 wire: " + exact.failure};
  return check_with_oracle(config, exact.trained, report);
}

/// Of REPRODUCIBLE sums.
std::optional<Finding> compare_bits(const Attempt& one, const Attempt& many, CheckReport& report) {
  if (one.diverged() != many.diverged()) return Finding{Kind::bits, one.failure + many.failure};
  report.diverged = one.diverged();
  const auto text = report.diverged ? difference_of_steps(one.trained, many.trained)
                                    : difference(one.trained, many.trained);
  if (!text.empty()) return Finding{Kind::bits, text + (report.diverged ? ", and then both diverge" : "")};
  report.bits = !report.diverged;
  return std::nullopt;
}

}  // namespace

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::bits:
      return "bits";
    case Kind::error:
      return "error";
    case Kind::proof:
      return "proof";
    case Kind::crash:
      return "crash";
    case Kind::oracle:
      return "oracle";
  }
  return "";
}

std::optional<Finding> check_texts(const std::string& config, const std::string& layout,
                                   const CaseFacts& facts, const CheckOptions& options, CheckReport* report) {
  CheckReport unread;
  CheckReport& compared = report != nullptr ? *report : unread;
  const auto device = facts.on_gpu ? device::DeviceKind::cuda : device::DeviceKind::cpu;
  const config::RunConfig alone = one_rank(config, {.device = device}, options),
                          together = read(config, layout);
  const int ranks = together.parallel.layout.world_size();
  if (options.proves) {
    const auto text = refusal(together, {.world_size = ranks,
                                         .shared_memory = facts.shared_memory,
                                         .hosts = hosts_of(ranks, facts.ranks_per_host),
                                         .device = device});
    if (!text.empty()) return Finding{Kind::proof, text};
  }
  const RankFacts one_rank_facts{.device = device};
  const RankFacts many_facts{.ranks = ranks,
                             .device = device,
                             .shared_memory = facts.shared_memory,
                             .lanes_at_once = facts.lanes_at_once,
                             .hosts = hosts_of(ranks, facts.ranks_per_host)};
  const Attempt one = attempt(alone, one_rank_facts);
  if (!one.failure.empty() && !one.diverged()) return Finding{Kind::error, "on one rank: " + one.failure};
  Attempt many = attempt(together, many_facts);
  if (!many.failure.empty() && !(many.diverged() && one.diverged()))
    return Finding{Kind::error, many.failure};
  // Sums that associate as is fast have nobody's bits, but are as close to the oracle as one rank's.
  const bool is_fast = together.parallel.reduction == layout::Reduction::fast;
  if (is_fast) {
    compared.diverged = many.diverged();
  } else {
    if (alone.trainer.micro_batch != together.trainer.micro_batch)
      forgive_order_of_evaluation(one.trained, many.trained);
    if (auto found = compare_bits(one, many, compared)) return found;
  }
  if (compared.diverged) return std::nullopt;
  const config::RunConfig& trained = is_fast ? together : alone;
  const auto found = check_with_oracle(trained, is_fast ? many.trained : one.trained, compared);
  if (found || trained.parallel.wire == DType::float32) return found;
  return check_with_exact_wire(trained, is_fast ? many_facts : one_rank_facts, compared);
}

CaseFacts facts_of(const Case& test_case) {
  return {.on_gpu = test_case.on_gpu,
          .shared_memory = test_case.shared_memory,
          .lanes_at_once = test_case.lanes_at_once,
          .ranks_per_host = test_case.ranks_per_host};
}

std::optional<Finding> check_case(const Case& test_case, const CheckOptions& options, CheckReport* report) {
  return check_texts(config_text(test_case), layout::to_string(test_case.layout), facts_of(test_case),
                     options, report);
}

}  // namespace lockstep::net
