#include "cli/rank_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/index.h"
#include "base/text.h"
#include "program/program_traffic.h"

namespace lockstep::cli {
namespace {

constexpr size_t kMostLines = 8;

struct Column {
  const char* title;
  const char* json;
  int64_t RankShare::*bytes;
};
constexpr Column kColumns[] = {{"parameters", "parameter_bytes", &RankShare::parameters},
                               {"gradients", "gradient_bytes", &RankShare::gradients},
                               {"optimizer", "optimizer_state_bytes", &RankShare::optimizer_state},
                               {"updates", "updated_bytes", &RankShare::updated},
                               {"saves", "saved_bytes", &RankShare::saved},
                               {"sends/step", "wire_bytes_theory", &RankShare::sent},
                               {"shared/step", "shared_memory_bytes", &RankShare::shared_memory}};

RankShare share_of(const compile::CompiledRun& run, int rank) {
  const auto programs = run.compile(rank);
  RankShare share{.rank = rank, .role = run.role_of(rank)};
  for (const auto& buffer : programs.step.buffers) {
    if (buffer.space == program::Space::parameters) share.parameters += buffer.size_bytes;
    // By category, too: those that are rounded for the wire lie in the arena.
    if (buffer.space == program::Space::gradients || buffer.category == program::Category::gradients)
      share.gradients += buffer.size_bytes;
    if (buffer.space == program::Space::optimizer) share.optimizer_state += buffer.size_bytes;
  }
  for (const auto& place : programs.step.parameters) share.updated += 4 * place.owned.count();
  share.saved = layout::size_bytes_of(nth(run.checkpoint_shares(), rank));
  const program::ProgramTraffic traffic = programs.traffic();
  share.sent = traffic.sent_bytes;
  share.shared_memory = traffic.shared_memory_bytes;
  return share;
}

template <class Bytes>
std::string line(const std::string& name, std::string_view role, Bytes&& bytes) {
  std::string text = fmt::format("  {:<6}{:<14}", name, role);
  for (const Column& column : kColumns) text += fmt::format("{:>13}", human_bytes(bytes(column)));
  return text + "\n";
}

}  // namespace

std::vector<RankShare> rank_shares(const compile::CompiledRun& run) {
  std::vector<RankShare> shares;
  for (int rank = 0; rank < run.layout().world_size(); ++rank) shares.push_back(share_of(run, rank));
  return shares;
}

std::string describe(const std::vector<RankShare>& shares) {
  std::string text = fmt::format("  {:<6}{:<14}", "rank", "role");
  for (const Column& column : kColumns) text += fmt::format("{:>13}", column.title);
  text += "\n";
  const auto extreme = [&](const Column& column, bool most) {
    const auto [least_of, most_of] = std::ranges::minmax_element(shares, {}, column.bytes);
    return (*(most ? most_of : least_of)).*column.bytes;
  };
  if (shares.size() <= kMostLines) {
    for (const auto& share : shares)
      text += line(std::to_string(share.rank), share.role,
                   [&](const Column& column) { return share.*column.bytes; });
  } else {
    text += line("least", "", [&](const Column& column) { return extreme(column, false); });
    text += line("most", "", [&](const Column& column) { return extreme(column, true); });
  }
  return text + line("all", "", [&](const Column& column) {
           int64_t sum = 0;
           for (const auto& share : shares) sum += share.*column.bytes;
           return sum;
         });
}

nlohmann::ordered_json json_of(const std::vector<RankShare>& shares) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& share : shares) {
    list.push_back({{"rank", share.rank}, {"role", share.role}});
    for (const Column& column : kColumns) list.back()[column.json] = share.*column.bytes;
  }
  return list;
}

}  // namespace lockstep::cli
