#include "compare/page.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "charts/svg_chart.h"
#include "compare/page_parts.h"

namespace lockstep::compare {
namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 78rem;
       color: #1b1f24; background: #ffffff; }
h1 { font-size: 1.3rem; line-height: 1.35; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin-top: 2.2rem; }
h3 { font-size: 0.95rem; } .answer { font-weight: 600; overflow-wrap: anywhere; }
h1, h2, p, ul { max-width: 60rem; } li { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.86rem; margin: 0.8rem 0; }
th, td { padding: 0.25rem 0.7rem 0.25rem 0; text-align: right; white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child, .words { text-align: left; }
th, td:first-child, td.words { white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
thead th { border-bottom: 1px solid #8a929c; font-weight: 600; vertical-align: bottom; min-width: 4rem; overflow-wrap: break-word; }
code, pre { font: 0.86rem ui-monospace, monospace; } pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.quiet { opacity: 0.75; font-size: 0.9rem; }
/* Where a table has no room, each row is a list of its columns. */
@media screen and (max-width: 64rem) {
  table, tbody, tr, td { display: block; } thead { display: none; }
  tr { border-top: 1px solid #8a929c; padding: 0.4rem 0; }
  td, td.words { display: flex; justify-content: space-between; gap: 1rem; padding: 0.1rem 0; min-width: 0;
                 white-space: normal; overflow-wrap: anywhere; text-align: right; }
  td:first-child { display: block; font-weight: 600; text-align: left; } td:empty { display: none; }
  td:not(:first-child)::before { text-align: left; opacity: 0.75; }
}
@media (prefers-color-scheme: dark) { body { color: #e4e7eb; background: #14171a; } }
@media print { body { max-width: none; padding: 0; color: #000; background: #fff; } .scroll { overflow: visible; }
               table { font-size: 0.6rem; } th, td { white-space: normal; } svg { min-width: 0; } h2 { break-after: avoid; }
               svg { break-inside: avoid; }
               details::details-content { content-visibility: visible; display: block; } }
)";

std::string row_text(const std::vector<std::string>& cells, const char* tag, size_t words) {
  std::string text = "<tr>";
  for (size_t i = 0; i < cells.size(); ++i)
    text += fmt::format("<{}{}>{}</{}>", tag, i >= words ? " class=\"words\"" : "",
                        charts::html_text(cells[i]), tag);
  return text + "</tr>\n";
}

/// The names of columns as variables of a table, for screens on which each row is a list; said once, since in
/// every cell they would be half of the page.
std::string names_text(const std::vector<std::string>& head) {
  std::string text;
  for (size_t i = 1; i < head.size(); ++i) {
    std::string name;
    for (const char c : head[i]) name += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
    text += fmt::format("--c{}:\"{}\";", i + 1, name);
  }
  return charts::html_text(text);
}

std::string names_style() {
  constexpr int kMostColumns = 64;
  std::string text = "@media screen and (max-width: 64rem) {\n";
  for (int i = 2; i <= kMostColumns; ++i)
    text += fmt::format("td:nth-child({})::before{{content:var(--c{})}}", i, i);
  return text + "\n}\n";
}

std::string machine_of(const CompareResults& results) {
  std::vector<std::string> parts;
  for (const std::string& part : {results.cpu, results.kernel, results.mpirun})
    if (!part.empty()) parts.push_back(part);
  if (!results.hosts_text.empty()) parts.push_back("hosts: " + join(split(results.hosts_text, '\n'), ", "));
  return parts.empty() ? "" : fmt::format("The machine: {}.", join(parts, "; "));
}

}  // namespace

std::string table_text(const std::vector<std::string>& head,
                       const std::vector<std::vector<std::string>>& rows, size_t words) {
  std::string text = fmt::format("<div class=\"scroll\"><table style=\"{}\">\n<thead>{}</thead>\n<tbody>\n",
                                 names_text(head), row_text(head, "th", words));
  for (const auto& row : rows) text += row_text(row, "td", words);
  return text + "</tbody></table></div>\n";
}

std::vector<std::string> kinds_of(const CompareResults& results) {
  std::vector<std::string> kinds;
  for (const CompareRow& row : results.rows)
    if (std::ranges::find(kinds, row.kind) == kinds.end()) kinds.push_back(row.kind);
  return kinds;
}

std::string compare_page(const CompareResults& results) {
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>lockstep compare: {}</title>\n<style>{}{}{}</style></head>\n<body>\n",
      charts::html_text(results.config), kStyle, names_style(), charts::chart_style());
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
  page += "<h2>Predicted beside measured</h2>\n" + predictions_part(results) + links_part(results) +
          "<p class=\"quiet\">Predicted from the programs of all processes, the times of layers in an "
          "all-reduce training of as many workers, and the times of messages between two of them (lockstep "
          "bench). A layout ties if it takes at most 1.02 times as long.</p>\n";
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
      "run; its config's hash is {}. {}</p>\n</body></html>\n",
      charts::html_text(results.command), charts::html_text(results.config_hash),
      charts::html_text(machine_of(results)));
  return page;
}

}  // namespace lockstep::compare
