#include "report/run_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "charts/html_page.h"
#include "lockstep/error.h"
#include "observe/sinks/append_file.h"
#include "report/run_sections.h"

namespace lockstep::report {
namespace {

/// "digits: evaluation loss 0.187, accuracy 94.50 %", "digits: at step 200"
std::string headline(const RunFolder& run) {
  const auto loss = number_of(run.report, "eval_loss"), accuracy = number_of(run.report, "eval_accuracy"),
             trained = number_of(run.report, "train_loss");
  if (!run.has_ended())
    return fmt::format("{}: has not ended, at step {}", run.name,
                       run.rows.empty() ? 0 : run.rows.back().step());
  std::string text = run.name + ": ";
  if (loss)
    text += fmt::format("evaluation loss {:.4g}", *loss);
  else if (trained)
    text += fmt::format("training loss {:.4g}", *trained);
  else
    text += fmt::format("{:.0f} steps", number_of(run.report, "steps").value_or(0));
  if (accuracy) text += fmt::format(", accuracy {:.2f} %", 100 * *accuracy);
  return text;
}

/// "dp=2, 2 processes, 200 steps"
std::string circumstances(const RunFolder& run) {
  if (!run.has_ended()) return "";
  const auto processes = number_of(run.report, "world_size").value_or(1);
  return fmt::format("{}: layout {}, {:.0f} process{}, {:.0f} steps, {:.2f} epochs", run.name,
                     run.report.value("layout", ""), processes, processes == 1 ? "" : "es",
                     number_of(run.report, "steps").value_or(0), number_of(run.report, "epochs").value_or(0));
}

std::vector<std::string> paths_of(const std::vector<RunFolder>& runs) {
  std::vector<std::string> paths;
  for (const RunFolder& run : runs) paths.push_back(run.path);
  return paths;
}

}  // namespace

std::string run_page(const std::vector<RunFolder>& runs) try {
  std::vector<std::string> names;
  for (const RunFolder& run : runs) names.push_back(run.name);
  std::string page = charts::page_begin("lockstep: " + join(names, ", "));
  for (size_t i = 0; i < runs.size(); ++i)
    page += i == 0 ? fmt::format("<h1>{}</h1>\n", charts::html_text(headline(runs[i])))
                   : fmt::format("<p class=\"answer\">{}</p>\n", charts::html_text(headline(runs[i])));
  for (const RunFolder& run : runs)
    if (const std::string text = circumstances(run); !text.empty())
      page += fmt::format("<p class=\"quiet\">{}</p>\n", charts::html_text(text));
  for (const auto section : {learning_section, text_section, results_section, speed_section, time_section,
                             machines_section, layout_section, config_section})
    page += section(runs);
  return page + charts::page_end();
} catch (const Json::exception& error) {
  throw DataError(fmt::format("a report of {} is of another version, or damaged ({})",
                              join(paths_of(runs), ", "), error.what()));
}

void write_run_page(const std::string& folder) {
  observe::replace_file((std::filesystem::path(folder) / kPageFile).string(), run_page({read_run(folder)}));
}

}  // namespace lockstep::report
