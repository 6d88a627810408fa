#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "compare/results.h"

namespace lockstep::compare {
namespace {

const CompareRow* measured(const std::vector<CompareRow>& rows, const auto& is_wanted) {
  const auto found = std::ranges::find_if(
      rows, [&](const CompareRow& row) { return !row.samples.empty() && is_wanted(row); });
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace

std::string CompareResults::table() const {
  size_t width = 6, link_width = 4;
  for (const CompareRow& row : rows) {
    width = std::max(width, row.kind.size());
    link_width = std::max(link_width, row.link.size());
  }
  const bool has_links = links() != std::vector<std::string>{""};
  const auto link_cell = [&](const std::string& link) {
    return has_links ? fmt::format("{:>{}}  ", link, link_width) : "";
  };
  const auto straggler_cell = [&](const std::string& part) {
    return straggler.empty() ? "" : fmt::format("  {:>14}", part);
  };
  const auto kill_cell = [&](const CompareRow& row) {
    if (kill_rank < 0) return std::string();
    const bool is_known = row.kill && row.kill->failure.empty();
    return fmt::format("  {:>9}", is_known   ? fmt::format("{:.0f} %", 100 * row.kill->goodput())
                                  : row.kill ? "FAILED"
                                             : "-");
  };
  const auto loss_cell = [&](const std::string& seconds) {
    return target_loss > 0 ? fmt::format("  {:>14}", seconds) : "";
  };
  const auto cost_cell = [&](const std::string& cost) {
    return price > 0 ? fmt::format("  {:>15}", cost) : "";
  };
  std::string text = link_cell("link");
  text += fmt::format(
      "{:>7}  {:<{}}  {:>9}  {:>9}  {:<19}  {:>9}  {:>10}  {:>10}  {:>8}  {:>6}{}{}{}{}  {}\n", "workers",
      "layout", width, "processes", "step ms", "95 %", "predicted", "samples/s", "efficiency", "beside",
      "waits", straggler_cell("with straggler"), kill_rank < 0 ? "" : "  with kill",
      loss_cell(fmt::format("loss {:g} after", target_loss)), cost_cell("million samples"), "bits");
  for (const CompareRow& row : rows) {
    text += link_cell(row.link);
    text += fmt::format("{:>7}  {:<{}}  {:>9}  ", row.workers, row.kind, width, row.layout.world_size());
    if (row.samples.empty()) {
      text += fmt::format("{}\n", row.failure.empty() ? "not measured" : "FAILED: " + row.failure);
      continue;
    }
    const CompareRow* first = measured(rows, [&](const CompareRow& other) {
      return other.link == row.link && other.workers == row.workers;
    });
    const Interval interval = row.step_interval();
    text += fmt::format(
        "{:>9.2f}  {:<19}  {:>9}  {:>10.1f}  {:>8.1f} %  {:>8.2f}  {:>4.0f} %{}{}{}{}  {}\n", row.step_ms(),
        fmt::format("{:.2f} to {:.2f}", interval.low, interval.high),
        row.predicted_ms > 0 ? fmt::format("{:.2f}{}", row.predicted_ms, has_cores(row) ? "" : "*") : "-",
        row.samples_per_second(), 100 * efficiency(row),
        row.samples_per_second() / first->samples_per_second(),
        100 * row.mean(&CompareSample::exposed_comm_ms) / row.mean(&CompareSample::step_ms),
        straggler_cell(fmt::format("{:.0f} %", 100 * row.straggler_goodput())), kill_cell(row),
        loss_cell(row.seconds_to(target_loss) ? human_seconds(*row.seconds_to(target_loss)) : "-"),
        cost_cell(fmt::format("{:.4g}", cost(row))), name_of(row.proof));
  }
  for (const CompareRow& row : rows) {
    if (!row.samples.empty() && !row.failure.empty())
      text += fmt::format("{}: FAILED after {} runs: {}\n", row.name(), row.samples.size(), row.failure);
    if (row.kill && !row.kill->failure.empty())
      text += fmt::format("{}: with a kill: FAILED: {}\n", row.name(), row.kill->failure);
    if (!row.proof_detail.empty()) text += fmt::format("{}: {}\n", row.name(), row.proof_detail);
  }
  return text + predictions();
}

std::string CompareResults::predictions() const {
  std::string text;
  if (const std::optional<double> error = prediction_error())
    text += fmt::format("predictions are off by {:.1f} % in the median{}\n", 100 * *error,
                        std::ranges::all_of(rows, [&](const CompareRow& row) { return has_cores(row); })
                            ? ""
                            : "; *: assuming a core for each process, although there are fewer");
  for (const CompareRow& row : forecasts)
    if (row.predicted_ms > 0)
      text +=
          fmt::format("{}, one host per process: {:.2f} ms a step, {:.1f} samples/s, not measured{}\n",
                      row.name(), row.predicted_ms, row.predicted_rate(),
                      price > 0 ? fmt::format("; {:.4g} for a million samples", predicted_cost(row)) : "");
  for (const CompareTie& tie : ties) text += sentence_of(tie) + "\n";
  return text;
}

}  // namespace lockstep::compare
