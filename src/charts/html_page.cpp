#include "charts/html_page.h"

#include <fmt/format.h>

#include <string_view>

#include "charts/svg_chart.h"

namespace lockstep::charts {
namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 78rem;
       color: #1b1f24; background: #ffffff; }
h1 { font-size: 1.3rem; line-height: 1.35; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin-top: 2.2rem; }
h3 { font-size: 0.95rem; } .answer { font-weight: 600; overflow-wrap: anywhere; }
h1, h2, p, ul { max-width: 60rem; } li { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(34rem, 100%), 1fr)); gap: 1rem; }
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
  td:not(:first-child)::before { text-align: left; opacity: 0.75; flex: none; max-width: 45%; }
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
    text += fmt::format("<{}{}>{}</{}>", tag, i >= words ? " class=\"words\"" : "", html_text(cells[i]), tag);
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
  return html_text(text);
}

std::string names_style() {
  constexpr int kMostColumns = 64;
  std::string text = "@media screen and (max-width: 64rem) {\n";
  for (int i = 2; i <= kMostColumns; ++i)
    text += fmt::format("td:nth-child({})::before{{content:var(--c{})}}", i, i);
  return text + "\n}\n";
}

}  // namespace

std::string page_begin(const std::string& title) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{}</title>\n<style>{}{}{}</style></head>\n<body>\n",
      html_text(title), kStyle, names_style(), chart_style());
}

std::string page_end() { return "</body></html>\n"; }

std::string html_table(const std::vector<std::string>& head,
                       const std::vector<std::vector<std::string>>& rows, size_t words) {
  std::string text = fmt::format("<div class=\"scroll\"><table style=\"{}\">\n<thead>{}</thead>\n<tbody>\n",
                                 names_text(head), row_text(head, "th", words));
  for (const auto& row : rows) text += row_text(row, "td", words);
  return text + "</tbody></table></div>\n";
}

std::string html_chart(const std::string& svg) {
  return svg.empty() ? "" : "<div class=\"scroll\">\n" + svg + "</div>\n";
}

}  // namespace lockstep::charts
