#include "net/check.h"

#include <fmt/format.h>

#include "lockstep/error.h"
#include "net/training.h"
#include "train/worker/compile_options.h"

namespace lockstep::net {
namespace {

config::RunConfig read(const std::string& text, const std::string& layout) {
  config::RunConfig config = config::parse_run_config(text, "case.textproto", {}, layout);
  return config;
}

/// Of one rank there are no pieces to be cut.
config::RunConfig read_for_one(const std::string& text) {
  config::RunConfig config = read(text, "dp=1");
  config.parallel.cuts.clear();
  return config;
}

}  // namespace

std::string_view name_of(Finding::Kind kind) {
  switch (kind) {
    case Finding::Kind::bits:
      return "bits";
    case Finding::Kind::error:
      return "error";
    case Finding::Kind::proof:
      return "proof";
    default:
      return "oracle";
  }
}

std::optional<Finding> check_texts(const std::string& config, const std::string& layout,
                                   const CaseFacts& facts, OracleReport* oracle) {
  using Kind = Finding::Kind;
  const auto device = facts.on_gpu ? device::DeviceKind::cuda : device::DeviceKind::cpu;
  Trained one, many;
  try {
    one = train_here(read_for_one(config), {.device = device});
  } catch (const std::exception& failure) {
    return Finding{Kind::error, fmt::format("on one rank: {}", failure.what())};
  }
  const config::RunConfig run = read(config, layout);
  const int ranks = run.parallel.layout.world_size();
  try {
    train::compile_run(run, {.world_size = ranks, .shared_memory = facts.shared_memory, .device = device}).check();
  } catch (const std::exception& failure) {
    return Finding{Kind::proof, failure.what()};
  }
  try {
    many = train_here(run, {.ranks = ranks, .device = device, .shared_memory = facts.shared_memory});
  } catch (const std::exception& failure) {
    return Finding{Kind::error, failure.what()};
  }
  if (const auto text = difference(one, many); !text.empty()) return Finding{Kind::bits, text};
  const OracleReport report = compare_with_oracle(read_for_one(config), one);
  if (oracle != nullptr) *oracle = report;
  if (!report.difference.empty()) return Finding{Kind::oracle, report.difference};
  return std::nullopt;
}

std::optional<Finding> check_case(const Case& test_case, OracleReport* oracle) {
  return check_texts(config_text(test_case), layout::to_string(test_case.layout),
                     {.on_gpu = test_case.on_gpu, .shared_memory = test_case.shared_memory},
                     oracle);
}

}  // namespace lockstep::net
