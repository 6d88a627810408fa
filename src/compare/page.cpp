#include "compare/page.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "charts/html_page.h"
#include "charts/svg_chart.h"
#include "compare/page_parts.h"

namespace lockstep::compare {
namespace {

std::string machine_of(const CompareResults& results) {
  std::vector<std::string> parts;
  for (const std::string& part : {results.cpu, results.kernel, results.mpirun})
    if (!part.empty()) parts.push_back(part);
  if (!results.hosts_text.empty()) parts.push_back("hosts: " + join(split(results.hosts_text, '\n'), ", "));
  return parts.empty() ? "" : fmt::format("The machine: {}.", join(parts, "; "));
}

}  // namespace

std::vector<std::string> kinds_of(const CompareResults& results) {
  std::vector<std::string> kinds;
  for (const CompareRow& row : results.rows)
    if (std::ranges::find(kinds, row.kind) == kinds.end()) kinds.push_back(row.kind);
  return kinds;
}

std::string compare_page(const CompareResults& results) {
  std::string page = charts::page_begin("lockstep compare: " + results.config);
  const std::vector<std::string> answers = results.answers();
  page += fmt::format("<h1>{}</h1>\n", charts::html_text(answers.front()));
  for (size_t i = 1; i < answers.size(); ++i)
    page += fmt::format("<p class=\"answer\">{}</p>\n", charts::html_text(answers[i]));
  page += fmt::format(
      "<p class=\"quiet\">{}, {} of {} steps each, {} scaling, on {} with {} core{}, begun {}, lockstep "
      "{}</p>\n",
      charts::html_text(results.config), "runs", results.steps, results.weak ? "weak" : "strong",
      charts::html_text(results.host), results.cores, results.cores == 1 ? "" : "s",
      charts::html_text(results.began), charts::html_text(results.version));
  page += "<h2>Throughput</h2>\n" + throughput_part(results) +
          "<p class=\"quiet\">Medians of interleaved runs, with 95 % bootstrap intervals. Ideal: the speed "
          "of the fastest layout with the fewest workers, scaled by the number of workers. Dedicated servers "
          "are not counted as workers.</p>\n";
  page += "<h2>Where a step's time goes</h2>\n" + steps_part(results) +
          "<p class=\"quiet\">Means over all runs, for the worker that waited longest. Bubble: waiting "
          "caused by a pipeline's schedule. Servers' work: time in which a server was busy. Both count only "
          "as far as the worker waited at all. Staleness is in updates. With a straggler: the step if one "
          "worker computes that many times as long, and the throughput that is left. With a kill: whole "
          "jobs, with their starts and checkpoints.</p>\n" +
          staleness_part(results);
  page += "<h2>What moves</h2>\n" + traffic_part(results) +
          "<p class=\"quiet\">Per step. Sent by all: what all processes send, also within a host. An "
          "interface also counts headers, acknowledgements and whatever else the host sends. If workers "
          "never wait, the programs' bytes assume that all push equally often.</p>\n";
  page += "<h2>Loss</h2>\n" + losses_part(results) +
          "<p class=\"quiet\">From the first run of each row; drawings show the most workers. Means over "
          "equal numbers of steps. Seconds assume the median pace, without start-up.</p>\n";
  page += "<h2>Predicted and measured</h2>\n" + predictions_part(results) + links_part(results) +
          "<p class=\"quiet\">Predicted from the programs of all processes, the times of layers in an "
          "all-reduce training of as many workers, and the times of messages between two of them (lockstep "
          "bench). As fast as: it takes at most 2 % longer.</p>\n";
  page += fmt::format(
      "<h2>Are the results the same?</h2>\n<p>{}</p>\n",
      results.proof_steps == 0
          ? "It was not tried."
          : fmt::format("Loss, gradient norm, parameters and optimizer state after each of {} steps under "
                        "REPRODUCIBLE, compared bit by bit with the first layout of the same batch.",
                        results.proof_steps));
  page += fmt::format(
      "<p>All rows have the same seed ({}), element type ({}) and data ({}); rows with equal numbers of "
      "workers have the same global batch. Gradients are means over the global batch. With mode=async a push "
      "is a mean over its worker's part, and the learning rate is divided by the number of workers unless "
      "the config says otherwise.{}</p>\n",
      results.seed, charts::html_text(results.element_type), charts::html_text(results.data),
      std::ranges::none_of(results.rows, [](const CompareRow& row) { return !row.math_hash.empty(); })
          ? ""
          : " Proofs of one batch have the same hash of everything that determines the numbers: model, data, "
            "seed, batch, optimizer and precision.");
  page += proofs_part(results);
  page += fmt::format(
      "<h2>Again</h2>\n<pre>{}</pre>\n<p class=\"quiet\">results.json beside this page has every "
      "run; its config's hash is {}. {}</p>\n",
      charts::html_text(results.command), charts::html_text(results.config_hash),
      charts::html_text(machine_of(results)));
  return page + charts::page_end();
}

}  // namespace lockstep::compare
