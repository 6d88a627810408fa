#include "checkpoint/checkpoint_share.h"

#include <fmt/format.h>

#include "checkpoint/state_hash.h"
#include "checkpoint/strict_json.h"

namespace lockstep::checkpoint {
namespace {

using Json = nlohmann::json;

ExitCode code_of(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  return own != nullptr ? own->code() : ExitCode::internal;
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::vector<TensorChunks> hashes_of(std::span<const NamedTensor> tensors) {
  std::vector<TensorChunks> hashes;
  for (const auto& tensor : tensors) hashes.push_back(hashed_chunks_of(tensor));
  return hashes;
}

/// "rank 2: cannot write ..."; empty where all ranks wrote what they had to.
SaveOutcome first_failure(int64_t step, const ShareReports& reports) {
  SaveOutcome outcome{.step = step};
  int failed = 0;
  for (const auto& [rank, report] : reports) {
    if (report.error.empty() || failed++ > 0) continue;
    outcome.error = reports.size() == 1 ? report.error : fmt::format("rank {}: {}", rank, report.error);
    outcome.code = report.code;
  }
  if (failed > 1) outcome.error += fmt::format(" (and {} more rank{})", failed - 1, failed == 2 ? "" : "s");
  return outcome;
}

void fill_in(Manifest& manifest, const ShareReports& reports) {
  std::vector<TensorChunks> parameters, all;
  for (const auto& [rank, report] : reports) {
    manifest.files.insert(manifest.files.end(), report.files.begin(), report.files.end());
    parameters.insert(parameters.end(), report.parameter_hashes.begin(), report.parameter_hashes.end());
    all.insert(all.end(), report.state_hashes.begin(), report.state_hashes.end());
  }
  all.insert(all.end(), parameters.begin(), parameters.end());
  manifest.params_hash = fold_tensors(fold_parts(std::move(parameters)));
  manifest.state_hash = fold_tensors(fold_parts(std::move(all)));
}

}  // namespace

std::string to_text(const ShareReport& report) {
  Json files = Json::array();
  for (const auto& file : report.files) files.push_back(to_text(file));
  return dump({{"files", files},
               {"parameters", to_text(report.parameter_hashes)},
               {"state", to_text(report.state_hashes)},
               {"error", report.error},
               {"code", static_cast<int>(report.code)}});
}

ShareReport share_report_from_text(std::string_view text) {
  const Json json = parse_strict_json(text, "report of a shard");
  ShareReport report;
  for (const auto& file : json.at("files"))
    report.files.push_back(file_record_from_text(file.get_ref<const std::string&>()));
  report.parameter_hashes = tensor_chunks_from_text(json.at("parameters").get_ref<const std::string&>());
  report.state_hashes = tensor_chunks_from_text(json.at("state").get_ref<const std::string&>());
  report.error = json.at("error").get<std::string>();
  report.code = static_cast<ExitCode>(json.at("code").get<int>());
  return report;
}

ShareReport write_share(CheckpointWriter& writer, const CheckpointShare& share) noexcept {
  ShareReport report;
  try {
    const auto& [parameters, state, model, optimizer] = share;
    if (model.index > 0)
      report.files.push_back(writer.write_shard(FileKind::model, model.index, model.count, parameters));
    if (optimizer.index > 0)
      report.files.push_back(
          writer.write_shard(FileKind::optimizer, optimizer.index, optimizer.count, state));
    report.parameter_hashes = hashes_of(parameters);
    report.state_hashes = hashes_of(state);
  } catch (const std::exception& error) {
    report = {};
    report.error = error.what();
    report.code = code_of(error);
  }
  return report;
}

std::string to_text(const SaveOutcome& outcome) {
  return dump({{"step", outcome.step},
               {"path", outcome.path},
               {"error", outcome.error},
               {"code", static_cast<int>(outcome.code)}});
}

SaveOutcome save_outcome_from_text(std::string_view text) {
  const Json json = parse_strict_json(text, "outcome of a save");
  return {.step = json.at("step").get<int64_t>(),
          .path = json.at("path").get<std::string>(),
          .error = json.at("error").get<std::string>(),
          .code = static_cast<ExitCode>(json.at("code").get<int>())};
}

SaveOutcome conclude_save(CheckpointWriter& writer, Manifest manifest, const ShareReports& reports,
                          int keep) noexcept {
  SaveOutcome outcome = first_failure(manifest.step, reports);
  const int64_t best_step = manifest.keeps_best ? manifest.best_step : -1;
  if (!outcome.error.empty()) {
    writer.abandon();
    return outcome;
  }
  try {
    fill_in(manifest, reports);
    outcome.path = writer.commit(std::move(manifest));
  } catch (const NotDurableError& error) {
    // Older ones are kept: they may be all that a power failure leaves.
    outcome.path = error.path;
    outcome.error = error.what();
    outcome.code = error.code();
    return outcome;
  } catch (const std::exception& error) {
    writer.abandon();
    outcome.error = error.what();
    outcome.code = code_of(error);
    return outcome;
  }
  try {
    writer.prune(keep, best_step);
  } catch (const std::exception& error) {
    outcome.error = fmt::format("older checkpoints were not deleted: {}", error.what());
    outcome.code = code_of(error);
  }
  return outcome;
}

}  // namespace lockstep::checkpoint
