#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "base/text.h"
#include "charts/svg_chart.h"
#include "charts/text_chart.h"
#include "cli/commands.h"
#include "cli/new_file.h"
#include "lockstep/error.h"
#include "observe/rate_sweep.h"
#include "train/faults/position.h"
#include "train/loop/stop_request.h"
#include "train/loop/trainer.h"
#include "train/start/world.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

struct RatesArguments {
  jobs::ConfigArguments config;
  jobs::OutputArguments output;
  jobs::DeviceArguments device;
  int64_t steps = 300;
  double from = 1e-6, to = 10;
  std::string svg;
};

void check(const RatesArguments& arguments) {
  if (!(arguments.from < arguments.to))
    throw ConfigError(fmt::format("--from {} --to {}: rates rise, so --from must be below --to",
                                  exact(arguments.from), exact(arguments.to)));
  for (const char* field : {"trainer.steps", "trainer.epochs", "optimizer.learning_rate"})
    for (const std::string& said : arguments.config.overrides)
      if (said.starts_with(fmt::format("{}=", field)))
        throw ConfigError(
            fmt::format("--set {}: rates sets it; use {}", said,
                        std::string_view(field).starts_with("trainer") ? "--steps" : "--from and --to"));
}

/// A training of its own, whose rate rises by equal factors. It leaves nothing behind.
config::RunConfig load(const RatesArguments& arguments) {
  check(arguments);
  config::RunConfig config = arguments.config.load();
  if (config.parallel.layout.has_sessions())
    throw ConfigError(
        fmt::format("layout '{}': its workers do not step together, so that no loss belongs to a "
                    "rate; use a layout with mode=sync",
                    layout::to_string(config.parallel.layout)));
  config.trainer.steps = arguments.steps;
  config.trainer.epochs = 0;
  config.trainer.eval_every_steps = 0;
  config.trainer.eval_at_end = false;
  config.trainer.early_stopping = 0;
  config.trainer.spike_threshold = 0;
  // A loss that is not finite is what ends it.
  config.trainer.nonfinite = config::NonFinitePolicy::skip;
  config.trainer.nonfinite_limit = arguments.steps + 1;
  config.checkpoint = {.every_steps = 0, .at_end = false};
  config.optimizer.learning_rate = arguments.to;
  config.schedule = {.kind = optim::ScheduleKind::points,
                     .unit = optim::ScheduleUnit::share,
                     .points = {{0, arguments.from / arguments.to}, {1, 1}},
                     .interpolation = optim::Interpolation::exponential};
  return config;
}

/// What --set optimizer.learning_rate takes for a rate of this batch, to two digits.
double stated_rate(double rate, const config::RunConfig& config) {
  if (config.batch_scaling)
    rate *= config.batch_scaling->learning_rate / config.batch_scaling->rate_for(config.trainer.global_batch);
  return std::stod(fmt::format("{:.1e}", rate));
}

/// Losses up to twice the first one: what lies above would press the rest together.
std::vector<charts::ChartPoint> drawn(const std::vector<observe::RatePoint>& points, double most) {
  std::vector<charts::ChartPoint> line;
  for (const auto& point : points) {
    if (!(point.loss <= most)) break;
    line.push_back({.x = point.rate, .y = point.loss});
  }
  return line;
}

double most_drawn(const std::vector<observe::RatePoint>& smoothed) {
  return smoothed.empty() ? 0 : 2 * smoothed.front().loss;
}

std::string svg_of(const RatesArguments& arguments, const observe::RateSweep& sweep) {
  const auto smoothed = sweep.smoothed();
  const double most = most_drawn(smoothed);
  std::vector<charts::ChartPlace> places;
  if (const auto finding = sweep.finding(); finding && finding->suggested)
    places = {{fmt::format("suggested {:.2g}", *finding->suggested), *finding->suggested}};
  const std::vector<charts::ChartPoint> line = drawn(smoothed, most);
  std::vector<charts::ChartPoint> raw = line;
  for (size_t i = 0; i < raw.size(); ++i) raw[i].y = std::min(sweep.points()[i].loss, most);
  return charts::svg_file({charts::logarithmic_chart(
      "learning rate, " + arguments.config.path, "loss",
      {{.name = "smoothed", .points = line}, {.name = "of each step", .points = raw}}, places)});
}

std::string end_of(const RatesArguments& arguments, const observe::RateSweep& sweep) {
  const auto& last = sweep.points().back();
  if (!sweep.diverged()) return fmt::format("it did not diverge up to a rate of {}", exact(arguments.to));
  return fmt::format("it diverged at {:.2g}, step {} of {}, with a loss of {:.4g}", last.rate,
                     sweep.points().size(), arguments.steps, last.loss);
}

/// The first point at or above a rate.
std::vector<charts::ChartPoint> mark_at(const std::vector<observe::RatePoint>& smoothed, double rate) {
  const auto point = std::ranges::lower_bound(smoothed, rate, {}, &observe::RatePoint::rate);
  if (point == smoothed.end()) return {};
  return {{.x = point->rate, .y = point->loss}};
}

std::string text_of(const RatesArguments& arguments, const config::RunConfig& config,
                    const observe::RateSweep& sweep) {
  const auto smoothed = sweep.smoothed();
  const auto finding = sweep.finding();
  const bool suggests = finding && finding->suggested;
  const std::string chart = charts::text_chart(
      {.title = "loss, smoothed, against the learning rate",
       .line = drawn(smoothed, most_drawn(smoothed)),
       .marks = suggests ? mark_at(smoothed, *finding->suggested) : std::vector<charts::ChartPoint>{},
       .may_be_logarithmic = false,
       .x_name = "rate",
       .x_is_logarithmic = true});
  if (!suggests)
    return chart + fmt::format("\n{}; the loss never falls, so no rate is suggested: {}\n",
                               end_of(arguments, sweep),
                               sweep.diverged() ? "lower --from, or take more --steps"
                                                : "raise --to, or take more --steps");
  return chart + fmt::format(
                     "\nsuggested for a batch of {} (●): --set optimizer.learning_rate={:g}\n"
                     "a third of {:.2g}, at which the loss is lowest, {:.4g}{}; it falls most at {:.2g}\n"
                     "{}\n"
                     "a first guess, right within a factor of about four\n",
                     config.trainer.global_batch, stated_rate(*finding->suggested, config),
                     finding->lowest_rate, finding->lowest_loss,
                     finding->at_the_end ? ", where the sweep ends (raise --to)" : "",
                     finding->steepest.value_or(finding->lowest_rate), end_of(arguments, sweep));
}

/// JSON has no infinities.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json json_of(const RatesArguments& arguments, const config::RunConfig& config,
             const observe::RateSweep& sweep) {
  const auto finding = sweep.finding();
  Json json{{"global_batch", config.trainer.global_batch},
            {"steps", arguments.steps},
            {"steps_taken", sweep.points().size()},
            {"diverged", sweep.diverged()},
            {"suggested_rate", finding && finding->suggested ? Json(*finding->suggested) : Json()},
            {"set_learning_rate",
             finding && finding->suggested ? Json(stated_rate(*finding->suggested, config)) : Json()},
            {"steepest_rate", finding && finding->steepest ? Json(*finding->steepest) : Json()},
            {"lowest_loss", finding ? Json(finding->lowest_loss) : Json()},
            {"lowest_rate", finding ? Json(finding->lowest_rate) : Json()},
            {"points", Json::array()}};
  const auto smoothed = sweep.smoothed();
  for (size_t i = 0; i < sweep.points().size(); ++i) {
    const auto& point = sweep.points()[i];
    json["points"].push_back({{"rate", point.rate},
                              {"loss", number(point.loss)},
                              {"smoothed_loss", i < smoothed.size() ? Json(smoothed[i].loss) : Json()}});
  }
  return json;
}

struct Swept {
  observe::RateSweep sweep;  ///< the same on all ranks
  bool stopped = false;      ///< by request
  int64_t steps = 0;
};

Swept trained(train::World& world, train::Worker& worker) {
  Swept swept;
  bool ends = false;
  train::TrainerEvents events;
  events.on_step = [&](const train::StepRecord& step) {
    if (ends || !step.has_loss()) return;
    swept.sweep.add({.rate = step.learning_rate, .loss = step.loss});
    ends = swept.sweep.diverged();
  };
  events.on_message = [&](const std::string& text) {
    if (world.rank() == 0) log_info(text);
  };
  train::Trainer trainer(worker, world.communicator(), std::move(events),
                         {.output_directory = "",
                          .stop_requested = [&] { return ends || train::stop_requested(); },
                          .progress = &world.control().progress(),
                          .drawing_threads = train::idle_threads(world.launch())});
  trainer.prepare();
  const train::TrainingOutcome outcome = trainer.run();
  train::enter_phase(&world.control().progress(), train::Phase::outside);
  swept.stopped = outcome.stopped && !ends;
  swept.steps = outcome.steps;
  return swept;
}

int rates(const RatesArguments& arguments) {
  return train::run_in_world([&](train::World& world) {
    std::unique_ptr<NewFile> file;
    train::DeviceRequest device = arguments.device.request();
    device.say = log_info;
    const auto worker = train::start_worker(world,
                                            [&] {
                                              config::RunConfig config = load(arguments);
                                              if (world.rank() == 0 && !arguments.svg.empty())
                                                file = std::make_unique<NewFile>("--svg", arguments.svg);
                                              return config;
                                            },
                                            device,
                                            {{"--steps", fmt::to_string(arguments.steps), ExitCode::usage},
                                             {"--from", exact(arguments.from), ExitCode::usage},
                                             {"--to", exact(arguments.to), ExitCode::usage}});
    const train::WatchedWorker watched(world, *worker);
    const Swept swept = trained(world, *worker);
    if (swept.stopped) {
      if (world.rank() == 0)
        log_warning(fmt::format("stopped by request after {} of {} steps; nothing was written", swept.steps,
                                arguments.steps));
      return static_cast<int>(train::stop_exit_code());
    }
    if (swept.sweep.points().empty())
      throw comm::CollectiveError("no step had a loss, since no label of its batch counts; look at the data",
                                  ExitCode::data);
    if (world.rank() != 0) return static_cast<int>(ExitCode::done);
    const config::RunConfig& config = worker->config();
    write_result(arguments.output.json ? json_of(arguments, config, swept.sweep).dump() + "\n"
                                       : text_of(arguments, config, swept.sweep));
    if (file) file->write(svg_of(arguments, swept.sweep));
    return static_cast<int>(ExitCode::done);
  });
}

}  // namespace

void add_rates_command(CLI::App& program, CommandAction& selected) {
  auto& command = add_subcommand(
      program, "rates",
      "Sweeps the learning rate in one short training, draws loss against rate, and suggests a rate",
      "  lockstep rates configs/digits_quickstart.textproto --data-dir digits --svg rates.svg\n"
      "  mpirun -n 2 lockstep rates configs/shakespeare_gpt.textproto --data-dir data --from 1e-5 --to 1");
  const auto arguments = std::make_shared<RatesArguments>();
  add_config(command, arguments->config, /*with_data=*/true);
  add_layout(command, arguments->config);
  command.add_option("--steps", arguments->steps, "Steps from the first rate to the last")
      ->check(CLI::Range(int64_t{10}, int64_t{10000}))
      ->capture_default_str();
  for (const auto& [name, value, what] :
       {std::tuple{"--from", &arguments->from, "The first rate"}, {"--to", &arguments->to, "The last rate"}})
    command.add_option(name, *value, what)
        ->check(finite_number())
        ->check(CLI::Range(1e-30, 1e30))
        ->capture_default_str();
  command.add_option("--svg", arguments->svg, "New file for the drawing")->type_name("FILE.svg");
  add_device(command, arguments->device);
  add_output(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return rates(*arguments); }; });
}

}  // namespace lockstep::cli
