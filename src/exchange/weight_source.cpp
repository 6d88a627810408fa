#include "exchange/weight_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/ensure.h"
#include "base/hash.h"
#include "base/index.h"
#include "base/text.h"
#include "checkpoint/file_names.h"
#include "checkpoint/strict_json.h"
#include "exchange/family.h"
#include "exchange/tensor_names.h"
#include "lockstep/error.h"
#include "tensor/convert.h"

namespace lockstep::exchange {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "config.json";
constexpr size_t kShownProblems = 8;
constexpr int64_t kComparedElements = 1 << 20;  // at once

std::string config_path(const std::string& path) { return (fs::path(path) / kConfigFile).string(); }

/// Every tensor as it lies here, under its own name.
Mapping own_mapping(const model::Graph& graph) {
  Mapping mapping{.family = "lockstep"};
  for (const auto& parameter : graph.parameters)
    mapping.pieces.push_back({as_here(parameter.name, parameter.spec.shape)});
  return mapping;
}

std::string problems_text(const std::string& path, const std::vector<std::string>& problems) {
  std::vector<std::string> shown(problems.begin(), problems.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                                          kShownProblems, problems.size())));
  if (problems.size() > kShownProblems)
    shown.push_back(fmt::format("and {} more", problems.size() - kShownProblems));
  return fmt::format(
      "{}: its weights are not those of this model:\n  {}\nName layers that are to be drawn by --new, and "
      "tensors that are not to be read by --leave-out; docs/weights.md has the names.",
      path, join(shown, "\n  "));
}

/// A weight may be there under a second name alone. Returns the first names of such weights.
std::set<std::string> find_by_second_names(const Mapping& mapping, NameMatch& match) {
  std::set<std::string> firsts;
  for (const auto& implied : mapping.implied) {
    const auto second = match.found.find(implied.name);
    if (implied.parameter < 0 || second == match.found.end()) continue;
    const std::string& first = nth(mapping.pieces, implied.parameter).at(0).name;
    if (!match.found.emplace(first, second->second).second) continue;
    std::erase(match.missing, first);
    firsts.insert(first);
  }
  return firsts;
}

}  // namespace

bool is_huggingface_folder(const std::string& path) {
  std::error_code unknown;
  return fs::is_directory(path, unknown) && fs::exists(config_path(path), unknown);
}

bool is_weight_folder(const std::string& path) {
  std::error_code unknown;
  return is_huggingface_folder(path) ||
         (fs::is_directory(path, unknown) && (fs::exists(fs::path(path) / kTensorFile, unknown) ||
                                              fs::exists(fs::path(path) / checkpoint::kIndexName, unknown)));
}

struct WeightSource::Fit {
  Mapping mapping;
  std::map<std::string, std::string> tensors;
  std::vector<std::string> problems, notes;
};

WeightSource::WeightSource(const ModelSpec& model, const WeightSourceOptions& options)
    : graph_(model::make_graph(model)),
      new_layers_(options.new_layers),
      leave_out_(options.leave_out),
      store_(options.checkpoint ? open_checkpoint(options.path, options.before_read)
                                : open_safetensors(options.path)) {
  check_new_layers();
  check_left_out();
  std::vector<Fit> fits;
  for (const auto& mapping : candidates(model, options)) fits.push_back(fit(mapping));
  const auto best = std::ranges::min_element(fits, {}, [](const Fit& each) { return each.problems.size(); });
  if (!best->problems.empty()) throw CheckpointError(problems_text(store_->path(), best->problems));
  take(std::move(*best));
  check_implied();
}

/// How the tensors may be stored. A folder of Hugging Face says it; of a bare file names and shapes decide.
std::vector<Mapping> WeightSource::candidates(const ModelSpec& model,
                                              const WeightSourceOptions& options) const {
  if (options.checkpoint || store_->metadata().contains("conv2d_weight")) return {own_mapping(graph_)};
  if (is_huggingface_folder(options.path)) {
    const std::string path = config_path(options.path);
    require_regular_file(path);
    const auto config = checkpoint::parse_strict_json(read_text_file(path), path);
    const Family& family = family_of(config, path);
    std::vector<std::string> differences;
    Mapping mapping;
    try {
      mapping = family.mapping(model);
      differences = family.differences(model, config);
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("{}: is of a {}: {}", path, family.name, error.what()));
    }
    if (!differences.empty())
      throw ConfigError(fmt::format("{}: is of another model:\n  {}", path, join(differences, "\n  ")));
    return {mapping};
  }
  std::vector<Mapping> all;
  for (const Family& family : all_families()) {
    if (!family.resembles(model)) continue;
    try {
      all.push_back(family.mapping(model));
    } catch (const ConfigError&) {
      // It only looked like one.
      if (family.format == Format::pytorch) throw;
    }
  }
  return all;
}

void WeightSource::check_new_layers() const {
  std::set<std::string> drawing;
  for (const auto& parameter : graph_.parameters)
    for (const auto& use : parameter.uses) drawing.insert(graph_.node(use.node).name);
  for (const auto& name : new_layers_)
    if (!drawing.contains(name))
      throw ConfigError(
          fmt::format("weights.new_layers: layer '{}' draws no weights, so it cannot be new{}", name,
                      did_you_mean(name, std::vector<std::string>(drawing.begin(), drawing.end()))));
}

void WeightSource::check_left_out() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : store_->entries()) names.push_back(name);
  for (const auto& left_out : leave_out_)
    if (std::ranges::none_of(names, [&](const auto& name) { return begins_with_name(name, left_out); }))
      throw ConfigError(
          fmt::format("weights.leave_out: {} has no tensor '{}', and none whose name begins so{}",
                      store_->path(), left_out, did_you_mean(left_out, names)));
}

/// A weight that a new layer shares with another is not new.
bool WeightSource::is_new(int parameter) const {
  return std::ranges::all_of(graph_.parameter(parameter).uses, [&](const auto& use) {
    return std::ranges::find(new_layers_, graph_.node(use.node).name) != new_layers_.end();
  });
}

WeightSource::Fit WeightSource::fit(const Mapping& mapping) const {
  Fit fit{.mapping = mapping, .tensors = {}, .problems = {}, .notes = {}};
  std::vector<std::string> expected, there;
  std::map<std::string, const Piece*> pieces;
  std::set<std::string> unneeded;
  for (int p = 0; p < static_cast<int>(mapping.pieces.size()); ++p)
    for (const Piece& piece : nth(mapping.pieces, p)) {
      expected.push_back(piece.name);
      pieces.emplace(piece.name, &piece);
      if (is_new(p)) unneeded.insert(piece.name);
    }
  for (const auto& implied : mapping.implied) {
    expected.push_back(implied.name);
    unneeded.insert(implied.name);
  }
  for (const auto& [name, entry] : store_->entries()) {
    const bool ignored =
        std::ranges::any_of(leave_out_, [&](const auto& each) { return begins_with_name(name, each); }) ||
        std::ranges::any_of(mapping.worthless, [&](const auto& end) { return name.ends_with(end); });
    if (!ignored || pieces.contains(name)) there.push_back(name);
  }
  NameMatch match = match_names(expected, there);
  const std::set<std::string> seconds = find_by_second_names(mapping, match);
  fit.tensors = match.found;
  note_names(fit, match, unneeded);
  for (const auto& [name, found] : match.found) {
    if (seconds.contains(name)) continue;  // its other name is here, too
    const auto piece = pieces.find(name);
    if (piece == pieces.end()) {
      const Implied& implied = *std::ranges::find(mapping.implied, name, &Implied::name);
      if (implied.parameter < 0 || !is_new(implied.parameter)) check_tensor(fit, found, implied.shape, false);
    } else if (!unneeded.contains(name))
      check_tensor(fit, found, piece->second->shape, piece->second->may_be_longer);
  }
  return fit;
}

/// What is missing, left over, or beside the names.
void WeightSource::note_names(Fit& fit, const NameMatch& match, const std::set<std::string>& unneeded) const {
  if (match.prefix.starts_with('-'))
    fit.notes.push_back(fmt::format("its names lack '{}'", match.prefix.substr(1)));
  else if (!match.prefix.empty())
    fit.notes.push_back(fmt::format("its names begin with '{}'", match.prefix));
  // To compare all names with all takes long, and few are shown.
  const auto hint = [&](const std::string& name, const std::vector<std::string>& others) {
    return fit.problems.size() < kShownProblems ? did_you_mean(name, others) : "";
  };
  for (const auto& name : match.missing)
    if (!unneeded.contains(name))
      fit.problems.push_back(fmt::format("'{}' is missing{}", name, hint(name, match.left_over)));
  for (const auto& name : match.left_over)
    fit.problems.push_back(fmt::format("the model has no '{}'{}", name, hint(name, match.missing)));
}

void WeightSource::check_tensor(Fit& fit, const std::string& name, const Shape& shape,
                                bool may_be_longer) const {
  const auto& entry = store_->entries().find(name)->second;
  const bool is_longer = may_be_longer && entry.shape.rank() == shape.rank() && entry.shape[1] == shape[1] &&
                         entry.shape[0] > shape[0];
  if (is_longer)
    fit.notes.push_back(
        fmt::format("{}: the first {} of {} positions are used", name, shape[0], entry.shape[0]));
  else if (entry.shape != shape)
    fit.problems.push_back(
        fmt::format("'{}' is {}, expected {}", name, entry.shape.to_string(), shape.to_string()));
  if (!entry.dtype || (*entry.dtype != DType::float32 && !tensor::is_narrow(*entry.dtype)))
    fit.problems.push_back(
        fmt::format("'{}' has elements of {}; F32, BF16 and F16 are read", name, entry.type));
}

void WeightSource::take(Fit&& fit) {
  mapping_ = std::move(fit.mapping);
  tensors_ = std::move(fit.tensors);
  notes_ = std::move(fit.notes);
  kind_ = mapping_.family == "lockstep" ? "a checkpoint of lockstep"
          : mapping_.family == "layers" ? "in PyTorch's layout"
                                        : fmt::format("Hugging Face's {}", mapping_.family);
}

/// Second names of a weight must be the same weight, and biases that the model lacks must be zeros: otherwise
/// the model would silently compute something else.
void WeightSource::check_implied() const {
  for (const auto& implied : mapping_.implied) {
    const auto found = tensors_.find(implied.name);
    if (found == tensors_.end()) continue;
    const int64_t count = implied.shape.count();
    const bool is_zero = implied.parameter < 0;
    if (!is_zero && is_new(implied.parameter)) continue;
    const std::string same = is_zero ? "" : tensors_.at(nth(mapping_.pieces, implied.parameter).at(0).name);
    if (same == found->second) continue;  // the only name that is there
    std::vector<float> values, expected;
    for (int64_t done = 0; done < count; done += kComparedElements) {
      const int64_t some = std::min(kComparedElements, count - done);
      values.resize(static_cast<size_t>(some));
      expected.assign(static_cast<size_t>(some), 0.0f);
      store_->read(found->second, done, some, values.data());
      if (!is_zero) store_->read(same, done, some, expected.data());
      if (values == expected) continue;
      throw CheckpointError(
          is_zero ? fmt::format("{}: '{}' is not zero, but the model has no such bias", path(), found->second)
                  : fmt::format("{}: '{}' and '{}' differ, but in the model they are one weight; untie it",
                                path(), found->second, same));
    }
  }
}

bool WeightSource::read(int parameter, const tensor::Part& part, std::span<float> values) const {
  ensure(part.count() == std::ssize(values), "a part of a parameter needs memory of its size");
  if (is_new(parameter)) return false;
  for (const Piece& piece : nth(mapping_.pieces, parameter)) {
    const auto here = tensor::Part::range(piece.first, piece.shape.count());
    std::vector<float> in_our_order;
    tensor::for_common_runs(here, part, [&](const tensor::CommonRun& run) {
      float* to = values.data() + run.in_b;
      if (piece.is_as_here()) return store_->read(tensors_.at(piece.name), run.in_a, run.count, to);
      // Neighbours here lie far apart there.
      if (in_our_order.empty()) in_our_order = read_piece(piece);
      std::copy_n(in_our_order.begin() + run.in_a, run.count, to);
    });
  }
  return true;
}

uint64_t WeightSource::contents_hash(const checkpoint::BeforeRead& before_read) const {
  uint64_t hash = 0;
  std::vector<float> values;
  for (const auto& [name, found] : tensors_) {
    const int64_t count = store_->entries().find(found)->second.shape.count();
    hash = hash_combine(hash, hash64(name));
    for (int64_t done = 0; done < count; done += kComparedElements) {
      if (before_read) before_read();
      values.resize(static_cast<size_t>(std::min(kComparedElements, count - done)));
      store_->read(found, done, static_cast<int64_t>(values.size()), values.data());
      hash = hash_combine(hash, hash64(values.data(), values.size() * sizeof(float)));
    }
  }
  return hash;
}

/// A piece in lockstep's order.
std::vector<float> WeightSource::read_piece(const Piece& piece) const {
  const auto count = static_cast<size_t>(piece.shape.count());
  std::vector<float> there(count), here(count);
  store_->read(tensors_.at(piece.name), 0, piece.shape.count(), there.data());
  to_here(piece, there.data(), here.data());
  return here;
}

}  // namespace lockstep::exchange
