#include <fmt/format.h>

#include <cmath>

#include "base/text.h"
#include "config/schema.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

// Enumerators are converted by number.
static_assert(int{schema::Trainer::LOCATE} == static_cast<int>(NonFinitePolicy::locate));
static_assert(int{schema::Trainer::STOP} == static_cast<int>(NonFinitePolicy::stop));
static_assert(int{schema::Trainer::IGNORE} == static_cast<int>(NonFinitePolicy::ignore));
static_assert(int{schema::Trainer::SKIP} == static_cast<int>(NonFinitePolicy::skip));
static_assert(int{schema::Checkpoint::STOP} == static_cast<int>(checkpoint::SaveFailurePolicy::stop));
static_assert(int{schema::Metrics::CONTINUE} == static_cast<int>(observe::SinkFailurePolicy::go_on));
static_assert(int{schema::Metrics::STOP} == static_cast<int>(observe::SinkFailurePolicy::stop));
static_assert(int{schema::Checkpoint::CONTINUE} == static_cast<int>(checkpoint::SaveFailurePolicy::go_on));
static_assert(int{schema::Parallel::FAST} == static_cast<int>(layout::Reduction::fast));
static_assert(int{schema::Parallel::REPRODUCIBLE} == static_cast<int>(layout::Reduction::reproducible));
static_assert(int{schema::Parallel::AUTOMATIC} == static_cast<int>(parallel::AllReduceAlgorithm::automatic));
static_assert(int{schema::Parallel::LIBRARY} == static_cast<int>(parallel::AllReduceAlgorithm::library));
static_assert(int{schema::Parallel::RING} == static_cast<int>(parallel::AllReduceAlgorithm::ring));
static_assert(int{schema::Parallel::SHARED_MEMORY} ==
              static_cast<int>(parallel::AllReduceAlgorithm::shared_memory));
static_assert(int{schema::Parallel::TREE} == static_cast<int>(parallel::AllReduceAlgorithm::tree));
static_assert(int{schema::Precision::FLOAT32} == static_cast<int>(ComputeType::float32));
static_assert(int{schema::Precision::BFLOAT16} == static_cast<int>(ComputeType::bfloat16));
static_assert(int{schema::Precision::FLOAT16} == static_cast<int>(ComputeType::float16));
static_assert(int{schema::Precision::TF32} == static_cast<int>(ComputeType::tf32));
static_assert(int{schema::Pool2d::MAX} == static_cast<int>(PoolKind::max));
static_assert(int{schema::Pool2d::AVERAGE} == static_cast<int>(PoolKind::average));

static_assert(int{schema::Tokens::AUTOMATIC} == static_cast<int>(data::TokenFormat::automatic));
static_assert(int{schema::Tokens::LLMC} == static_cast<int>(data::TokenFormat::llmc));
static_assert(int{schema::Tokens::UINT16} == static_cast<int>(data::TokenFormat::uint16));
static_assert(int{schema::Tokens::UINT32} == static_cast<int>(data::TokenFormat::uint32));

data::TokenOptions convert_tokens(const schema::Tokens& tokens) {
  return {.files = {tokens.files().begin(), tokens.files().end()},
          .eval_files = {tokens.eval_files().begin(), tokens.eval_files().end()},
          .eval_list = tokens.eval_list(),
          .eval_fraction = tokens.eval_fraction(),
          .split_seed = tokens.split_seed(),
          .format = static_cast<data::TokenFormat>(tokens.format()),
          .context = tokens.context(),
          .stride = tokens.stride(),
          .vocabulary = tokens.vocabulary(),
          .tokenizer = tokens.tokenizer()};
}

static_assert(int{schema::Table::AUTOMATIC} == static_cast<int>(data::TableFormat::automatic));
static_assert(int{schema::Table::CSV} == static_cast<int>(data::TableFormat::csv));
static_assert(int{schema::Table::TSV} == static_cast<int>(data::TableFormat::tsv));
static_assert(int{schema::Table::NPY} == static_cast<int>(data::TableFormat::npy));

data::TableOptions convert_table(const schema::Table& table) {
  return {.files = {table.files().begin(), table.files().end()},
          .eval_files = {table.eval_files().begin(), table.eval_files().end()},
          .eval_list = table.eval_list(),
          .eval_fraction = table.eval_fraction(),
          .split_seed = table.split_seed(),
          .format = static_cast<data::TableFormat>(table.format()),
          .target = table.target(),
          .columns = {table.columns().begin(), table.columns().end()},
          .categories = {table.categories().begin(), table.categories().end()},
          .standardize = table.standardize()};
}

data::LineOptions convert_lines(const schema::Lines& lines) {
  return {.files = {lines.files().begin(), lines.files().end()},
          .eval_files = {lines.eval_files().begin(), lines.eval_files().end()},
          .folder = lines.folder(),
          .eval_folder = lines.eval_folder(),
          .eval_list = lines.eval_list(),
          .eval_fraction = lines.eval_fraction(),
          .split_seed = lines.split_seed(),
          .length = lines.length(),
          .tokenizer = lines.tokenizer()};
}

data::DataOptions convert_data(const schema::Data& data) {
  data::DataOptions options{.directory = data.directory(),
                            .shuffle = data.shuffle(),
                            .on_damage = static_cast<data::DamagePolicy>(data.on_damage()),
                            .most_inflated_bytes = data.most_inflated_bytes(),
                            .cache_directory = data.cache_directory(),
                            .cache_bytes = data.cache_directory().empty() ? 0 : data.cache_bytes(),
                            .transforms = convert_transforms(data.transforms()),
                            .eval_transforms = convert_transforms(data.eval_transforms()),
                            .transforms_on_gpu = data.transforms_on() == schema::Data::GPU,
                            .threads_adapt = data.threads() == schema::Data::AUTOMATIC,
                            .prefetch_threads = data.prefetch_threads(),
                            .prefetch_depth = data.prefetch_depth()};
  if (data.has_idx()) {
    const auto& idx = data.idx();
    options.kind = data::DataKind::idx;
    options.train_images = idx.train_images();
    options.train_labels = idx.train_labels();
    options.eval_images = idx.eval_images();
    options.eval_labels = idx.eval_labels();
    options.train_range = {idx.train_range().begin(), idx.train_range().end()};
    options.eval_range = {idx.eval_range().begin(), idx.eval_range().end()};
    options.mean = idx.mean();
    options.deviation = idx.deviation();
    options.label_offset = idx.label_offset();
    options.transposed = idx.transposed();
    options.eval_list = idx.eval_list();
    options.eval_fraction = idx.eval_fraction();
    options.split_seed = idx.split_seed();
    options.idx_classes = idx.classes();
  } else if (data.has_images()) {
    options.kind = data::DataKind::images;
    options.images = convert_images(data.images());
  } else if (data.has_records()) {
    const auto& records = data.records();
    options.kind = data::DataKind::records;
    options.records = {.folder = records.folder(),
                       .channels = records.channels(),
                       .background = records.background(),
                       .scaled_decoding = records.scaled_decoding()};
  } else if (data.has_cifar()) {
    options.kind = data::DataKind::cifar;
    options.cifar = convert_cifar(data.cifar());
  } else if (data.has_text()) {
    options.kind = data::DataKind::text;
    options.text_file = data.text().file();
    options.context = data.text().context();
    options.train_fraction = data.text().train_fraction();
    if (data.text().has_end_of_text())
      options.documents.end_of_text_character = static_cast<char>(data.text().end_of_text());
  } else if (data.has_tokens()) {
    options.kind = data::DataKind::tokens;
    options.tokens = convert_tokens(data.tokens());
    if (data.tokens().has_end_of_text()) options.documents.end_of_text = data.tokens().end_of_text();
  } else if (data.has_table()) {
    options.kind = data::DataKind::table;
    options.table = convert_table(data.table());
  } else if (data.has_lines()) {
    options.kind = data::DataKind::lines;
    options.lines = convert_lines(data.lines());
  } else if (data.has_own()) {
    options.kind = data::DataKind::own;
    options.samples = data.own().samples();
    options.eval_samples = data.own().eval_samples();
  } else {
    const auto& synthetic = data.synthetic();
    options.kind = data::DataKind::synthetic;
    options.samples = synthetic.samples();
    options.eval_samples = synthetic.eval_samples();
    options.classes = synthetic.classes();
    options.shape = fmt::format("{}", fmt::join(synthetic.shape(), ","));
    options.context = synthetic.context();
    options.seed = synthetic.seed();
  }
  return options;
}

optim::OptimizerOptions convert_optimizer(const schema::Optimizer& optimizer, int64_t global_batch) {
  optim::OptimizerOptions options{.learning_rate = peak_rate(optimizer, global_batch),
                                  .weight_decay = optimizer.weight_decay(),
                                  .decay_norm_and_bias = optimizer.decay_norm_and_bias()};
  if (optimizer.has_ema())
    options.average = {
        .enabled = true, .decay = optimizer.ema().decay(), .start_step = optimizer.ema().start_step()};
  if (optimizer.has_adaptive_clip())
    options.adaptive_clip = {.limit = optimizer.adaptive_clip().clipping(),
                             .floor = optimizer.adaptive_clip().floor()};
  if (optimizer.has_sgd()) {
    options.kind = optim::OptimizerKind::sgd;
    options.momentum = optimizer.sgd().momentum();
    options.nesterov = optimizer.sgd().nesterov();
  } else if (optimizer.has_lars()) {
    options.kind = optim::OptimizerKind::lars;
    options.momentum = optimizer.lars().momentum();
    options.trust = optimizer.lars().trust();
    options.epsilon = optimizer.lars().epsilon();
  } else if (optimizer.has_lamb()) {
    options.kind = optim::OptimizerKind::lamb;
    options.beta1 = optimizer.lamb().beta1();
    options.beta2 = optimizer.lamb().beta2();
    options.epsilon = optimizer.lamb().epsilon();
    options.adapts_without_decay = optimizer.lamb().adapt_without_decay();
  } else if (optimizer.has_muon()) {
    const auto& muon = optimizer.muon();
    options.kind = optim::OptimizerKind::muon;
    options.momentum = muon.momentum();
    options.nesterov = muon.nesterov();
    options.newton_schulz_steps = muon.newton_schulz_steps();
    options.matrix_scale = static_cast<optim::MatrixScale>(muon.scale());
    options.beta1 = muon.adamw().beta1();
    options.beta2 = muon.adamw().beta2();
    options.epsilon = muon.adamw().epsilon();
  } else {
    const auto& adam = optimizer.has_adam() ? optimizer.adam() : optimizer.adamw();
    options.kind = optimizer.has_adam() ? optim::OptimizerKind::adam : optim::OptimizerKind::adamw;
    options.beta1 = adam.beta1();
    options.beta2 = adam.beta2();
    options.epsilon = adam.epsilon();
  }
  return options;
}

TrainerOptions convert_trainer(const schema::Trainer& trainer) {
  return {.global_batch = trainer.global_batch(),
          .micro_batch = trainer.micro_batch(),
          .virtual_replicas = trainer.virtual_replicas(),
          .steps = trainer.steps(),
          .epochs = trainer.epochs(),
          .seed = trainer.seed(),
          .clip_norm = trainer.clip_norm(),
          .eval_every_steps = trainer.eval_every_steps(),
          .eval_at_end = trainer.eval_at_end(),
          .nonfinite = static_cast<NonFinitePolicy>(trainer.nonfinite()),
          .nonfinite_limit = trainer.nonfinite_limit(),
          .check_every_steps = trainer.check_every_steps(),
          .spike_threshold = trainer.spike_threshold(),
          .early_stopping = trainer.early_stopping(),
          .sample = {.every_steps = trainer.sample().every_steps(),
                     .prompt = trainer.sample().prompt(),
                     .tokens = trainer.sample().tokens(),
                     .temperature = trainer.sample().temperature()}};
}

PrecisionOptions convert_precision(const schema::Precision& precision) {
  const auto& scaling = precision.loss_scaling();
  return {.compute = static_cast<ComputeType>(precision.compute()),
          .loss_scaling = {.initial_scale = scaling.initial_scale(),
                           .growth_interval = scaling.growth_interval(),
                           .minimum = scaling.minimum(),
                           .maximum = scaling.maximum()},
          .fused_gelu = precision.fused_gelu()};
}

checkpoint::CheckpointOptions convert_checkpoint(const schema::Checkpoint& checkpoint) {
  return {.every_steps = checkpoint.every_steps(),
          .at_end = checkpoint.at_end(),
          .keep = checkpoint.keep(),
          .keep_best = checkpoint.keep_best(),
          .resume = checkpoint.has_resume_path()    ? checkpoint::ResumePolicy::path
                    : checkpoint.resume_automatic() ? checkpoint::ResumePolicy::automatic
                                                    : checkpoint::ResumePolicy::never,
          .resume_path = checkpoint.resume_path(),
          .allow_config_change = checkpoint.allow_config_change(),
          .background = checkpoint.background(),
          .on_failure = static_cast<checkpoint::SaveFailurePolicy>(checkpoint.on_failure())};
}

observe::MetricsOptions convert_metrics(const schema::Metrics& metrics) {
  observe::MetricsOptions options{.log_every_steps = metrics.log_every_steps(),
                                  .progress = metrics.progress(),
                                  .on_failure = static_cast<observe::SinkFailurePolicy>(metrics.on_failure()),
                                  .histogram_every_steps = metrics.histogram_every_steps(),
                                  .noise_scale_every_steps = metrics.noise_scale_every_steps(),
                                  .machine_every_seconds = metrics.machine_every_seconds(),
                                  .tensorboard = metrics.tensorboard(),
                                  .prometheus_port = metrics.prometheus_port(),
                                  .prometheus_address = metrics.prometheus_address(),
                                  .mlflow = {}};
  if (metrics.has_mlflow())
    options.mlflow = {.uri = metrics.mlflow().uri(),
                      .experiment = metrics.mlflow().experiment(),
                      .run_name = metrics.mlflow().run_name()};
  return options;
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::llround(1000 * seconds)));
}

control::WatchdogOptions convert_watchdog(const schema::Watchdog& watchdog) {
  return {.enabled = watchdog.enabled(),
          .heartbeat_interval = milliseconds_of(watchdog.heartbeat_seconds()),
          .silent_after = milliseconds_of(watchdog.silent_seconds()),
          .compute_deadline = milliseconds_of(watchdog.compute_seconds()),
          .input_deadline = milliseconds_of(watchdog.input_seconds()),
          .storage_deadline = milliseconds_of(watchdog.storage_seconds()),
          .communication_deadline = milliseconds_of(watchdog.communication_seconds())};
}

}  // namespace

parallel::ParallelOptions convert_parallel(const schema::Parallel& parallel, const layout::Layout& layout) {
  return {.layout = layout,
          .reduction = static_cast<layout::Reduction>(parallel.reduction()),
          .algorithm = static_cast<parallel::AllReduceAlgorithm>(parallel.algorithm()),
          .wire = parallel.wire() == schema::Parallel::BFLOAT16 ? DType::bfloat16 : DType::float32,
          .error_feedback = parallel.error_feedback(),
          .bucket_bytes = parallel.has_bucket_bytes() ? std::optional(parallel.bucket_bytes()) : std::nullopt,
          .intra_op_threads = parallel.intra_op_threads(),
          .server_threads = parallel.server_threads(),
          .servers_on_gpus = parallel.server_device() == schema::Parallel::GPU,
          .async_learning_rate = static_cast<parallel::AsyncLearningRate>(parallel.async_learning_rate()),
          .cuts = {parallel.pipeline().cuts().begin(), parallel.pipeline().cuts().end()}};
}

RunConfig convert(const schema::RunConfig& config, ModelSpec model, const layout::Layout& layout) {
  RunConfig run;
  run.model = std::move(model);
  run.data = convert_data(config.data());
  run.data.documents.are_read = std::ranges::any_of(
      run.model.inputs, [](const ModelInput& input) { return input.name == data::kDocumentsField; });
  run.trainer = convert_trainer(config.trainer());
  run.optimizer = convert_optimizer(config.optimizer(), config.trainer().global_batch());
  run.batch_scaling = batch_scaling(config.optimizer());
  run.evaluates_average = config.optimizer().has_ema() && config.optimizer().ema().evaluate();
  run.schedule = convert_schedule(config.optimizer(), config.trainer().global_batch());
  run.precision = convert_precision(config.precision());
  run.parallel = convert_parallel(config.parallel(), layout);
  run.checkpoint = convert_checkpoint(config.checkpoint());
  run.metrics = convert_metrics(config.metrics());
  run.watchdog = convert_watchdog(config.watchdog());
  run.device = {.memory_limit = config.device().memory_limit()};
  const auto& weights = config.weights();
  run.weights = {.from = weights.from(),
                 .new_layers = {weights.new_layers().begin(), weights.new_layers().end()},
                 .leave_out = {weights.leave_out().begin(), weights.leave_out().end()}};
  return run;
}

}  // namespace lockstep::config
