#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/text.h"
#include "compare/sweep.h"
#include "lockstep/error.h"

namespace lockstep::compare {
namespace {

namespace fs = std::filesystem;

bool is_tried(const CompareRow& row) {
  return row.proof == CompareProof::identical || row.proof == CompareProof::different;
}

}  // namespace

/// Whether bits of the row are compared with those of another layout of the same mathematics.
bool CompareSweep::is_proven(const CompareRow& row) const {
  if (arguments_.proof_steps == 0 || row.layout.has_sessions()) return false;
  return std::ranges::any_of(results_.rows, [&](const CompareRow& other) {
    return other.global_batch == row.global_batch && other.layout != row.layout &&
           !other.layout.has_sessions();
  });
}

void CompareSweep::prove() {
  if (arguments_.proof_steps == 0) return;
  std::vector<int64_t> batches;
  for (CompareRow& row : results_.rows) {
    if (row.layout.has_sessions())
      row.proof = CompareProof::other_mathematics;
    else if (!is_proven(row))
      row.proof_detail = "there is nothing to compare with";
    else if (!is_tried(row) && std::ranges::find(batches, row.global_batch) == batches.end())
      batches.push_back(row.global_batch);
  }
  const auto number = std::ranges::count_if(
      results_.rows, [&](const CompareRow& row) { return is_proven(row) && !is_tried(row); });
  int proven = 0;
  for (const int64_t batch : batches) {
    FirstTraining first;
    std::vector<CompareRow*> rows;
    for (CompareRow& row : results_.rows)
      if (row.global_batch == batch && is_proven(row)) rows.push_back(&row);
    // What others are compared with is not kept: it runs again. Where some are known to be alike, one of
    // them.
    std::ranges::stable_partition(
        rows, [](const CompareRow* row) { return row->proof == CompareProof::identical; });
    CompareRow* reference = nullptr;
    bool compared = false;
    for (CompareRow* row : rows) {
      if (first.training && is_tried(*row)) {
        compared = true;
        continue;
      }
      const bool has_first = first.training.has_value();
      proven += is_tried(*row) ? 0 : 1;
      prove(*row, first, fmt::format("proof {} of {}", proven, number));
      if (!has_first && first.training) reference = row;
      compared =
          compared || (has_first && row->layout != reference->layout && row->proof != CompareProof::failed);
    }
    if (reference == nullptr || compared) continue;
    for (CompareRow* row : rows) {
      if (row->layout != reference->layout) continue;
      row->proof = CompareProof::not_tried;
      row->proof_detail = "there is nothing to compare with: the others failed";
    }
    save();
  }
}

void CompareSweep::prove(CompareRow& row, FirstTraining& first, const std::string& number) {
  const std::string name = layout::to_string(row.layout);
  // The same programs over another link.
  const auto same = std::ranges::find_if(results_.rows, [&](const CompareRow& other) {
    return &other != &row && other.link != row.link && other.layout == row.layout &&
           other.global_batch == row.global_batch && is_tried(other);
  });
  if (first.training && same != results_.rows.end()) {
    row.proof = same->proof;
    row.proof_detail = same->proof_detail;
    row.math_hash = same->math_hash;
    return;
  }
  row.proof_detail.clear();
  jobs::TracedTraining training;
  const std::string folder = folder_of(row, "proof");
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  try {
    use_link(row.link);
    jobs::run_traced(command(row, true),
                     {"--resume", "never", "--stop-after", fmt::to_string(arguments_.proof_steps)}, folder,
                     training, [](pid_t) { leave_if_asked(); });
    row.math_hash = training.report.at("math_hash").get<std::string>();
    // Before bits are: other data, seeds or types would be no fault of the layout's.
    if (first.training && first.math_hash != row.math_hash)
      throw Error(fmt::format("it trains something else than {}: its data, batch, seed, precision, model or "
                              "optimizer differ (math_hash {}, there {})",
                              first.name, row.math_hash, first.math_hash),
                  ExitCode::internal);
    if (first.training) jobs::compare_traces(first.name, *first.training, name, training);
    row.proof = training.difference ? CompareProof::different : CompareProof::identical;
    if (training.difference) row.proof_detail = trim(jobs::describe_difference(training));
  } catch (const nlohmann::json::exception& error) {
    row.proof = CompareProof::failed;
    row.proof_detail = fmt::format("its report in {} is not as expected: {}", folder, error.what());
  } catch (const Error& error) {
    leave_if_asked();
    row.proof = CompareProof::failed;
    row.proof_detail = error.what();
  }
  log_info(fmt::format("{}: {}: {} steps under REPRODUCIBLE: {}", number, name, arguments_.proof_steps,
                       name_of(row.proof)));
  if (!first.training && row.proof == CompareProof::identical)
    first = {.name = name, .math_hash = row.math_hash, .training = std::move(training)};
  save();
}

}  // namespace lockstep::compare
