#include "data/check.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "data/file_attempts.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

/// Looks at all samples. Errors of another kind than damage, such as a disk that is gone, are thrown.
void look_at_samples(const Dataset& data, int threads, FoundDamage& found) {
  std::atomic<int64_t> next = 0;
  std::exception_ptr error;
  std::mutex mutex;
  const auto work = [&] {
    try {
      for (int64_t sample = next++; sample < data.size(); sample = next++)
        if (auto damage = data.find_damage(sample)) found.add(std::move(*damage));
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = data.size();
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

CheckedPart check_part(const char* name, const Dataset& data, int threads) {
  CheckedPart part{.name = name, .description = data.description(), .samples = data.size(), .damaged = {}};
  FoundDamage found;
  look_at_samples(data, threads, found);
  part.damaged = found.take();
  std::ranges::sort(part.damaged, {}, &SampleDamage::sample);
  return part;
}

}  // namespace

int64_t CheckedData::damaged() const {
  auto count = static_cast<int64_t>(on_opening.size());
  for (const auto& part : parts) count += static_cast<int64_t>(part.damaged.size());
  return count;
}

CheckedData check_data(DataOptions options, int threads) {
  if (threads == 0) threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  options.on_damage = DamagePolicy::skip;
  options.found = std::make_shared<FoundDamage>();
  CheckedData checked;
  DatasetPair data;
  try {
    data = open_datasets(options);
    checked.on_opening = options.found->take();
  } catch (const ListedDamage&) {
    checked.on_opening = options.found->take();
  } catch (const DataError& error) {
    checked.on_opening = options.found->take();
    checked.on_opening.push_back({.file = "", .sample = -1, .byte = -1, .what = error.what()});
  }
  // Files that train and evaluate are opened twice if they are damaged.
  std::set<std::tuple<std::string, int64_t, int64_t, std::string>> seen;
  std::erase_if(checked.on_opening, [&](const SampleDamage& each) {
    return !seen.insert({each.file, each.sample, each.byte, each.what}).second;
  });
  if (data.train) checked.parts.push_back(check_part("train", *data.train, threads));
  if (data.eval) checked.parts.push_back(check_part("eval", *data.eval, threads));
  return checked;
}

}  // namespace lockstep::data
