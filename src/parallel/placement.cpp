#include "parallel/placement.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "lockstep/error.h"
#include "step/step_scalars.h"

namespace lockstep {

ByteSpan intersection(const ByteSpan& a, const ByteSpan& b) {
  const int64_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
  return begin < end ? ByteSpan{begin, end} : ByteSpan{};
}

int64_t size_bytes_of(const std::vector<SavedPart>& share) {
  int64_t bytes = 0;
  for (const auto& part : share) bytes += part.bytes.size();
  return bytes;
}

Placement::Placement(const Graph& graph, const Partition& partition, const PlacementOptions& options)
    : graph_(graph), partition_(partition), options_(options), homes_(graph.parameters.size()) {
  ensure(!options.reversed || std::has_single_bit(static_cast<unsigned>(options.workers)),
         "bits of workers are reversed where these are a power of two");
  constexpr int64_t kChunkBytes = kNormChunk * static_cast<int64_t>(sizeof(float));
  int64_t dealt = 0;
  for (size_t s = 0; s < partition.buckets.size(); ++s) {
    const Bucket& bucket = partition.buckets[s];
    std::vector<int64_t> borders;
    for (const auto& entry : bucket.entries) {
      if (entry.use != 0) continue;
      homes_[static_cast<size_t>(entry.parameter)] = {static_cast<int>(s), entry.offset_bytes};
      const int64_t size_bytes = entry.count * static_cast<int64_t>(sizeof(float));
      for (int64_t at = 0; at < size_bytes; at += kChunkBytes) borders.push_back(entry.offset_bytes + at);
    }
    first_extra_.push_back(static_cast<int>(dealt % options.workers));
    dealt += static_cast<int64_t>(borders.size());
    borders.push_back(bucket.owned_bytes);
    borders_.push_back(std::move(borders));
  }
}

int Placement::position_of(int worker) const {
  if (!options_.reversed) return worker;
  int position = 0;
  for (int bit = 1; bit < options_.workers; bit *= 2) position = 2 * position + ((worker & bit) != 0 ? 1 : 0);
  return position;
}

ByteSpan Placement::updated(int segment, int first, int last) const {
  const auto s = static_cast<size_t>(segment);
  if (!options_.shard_optimizer) return {0, partition_.buckets[s].owned_bytes};
  const auto& borders = borders_[s];
  const int chunks = static_cast<int>(borders.size()) - 1, workers = options_.workers;
  // Positions from first_extra_ on, around, have one chunk more.
  const int extra = chunks % workers, from = first_extra_[s], to = from + extra;
  const auto begin_of = [&](int position) {
    const int wrapped = std::max(0, std::min(position, to - workers));
    const int straight = std::max(0, std::min(position, std::min(to, workers)) - from);
    return borders[static_cast<size_t>(position * (chunks / workers) + wrapped + straight)];
  };
  return {begin_of(first), begin_of(last)};
}

ByteSpan Placement::updated_by(int segment, int worker) const {
  const int position = position_of(worker);
  return updated(segment, position, position + 1);
}

std::vector<ByteSpan> Placement::gradients(int segment, int first, int last) const {
  const Bucket& bucket = partition_.buckets[static_cast<size_t>(segment)];
  std::vector<ByteSpan> spans{updated(segment, first, last)};
  for (const auto& entry : bucket.entries) {
    if (entry.use == 0) continue;
    const Home& home = homes_[static_cast<size_t>(entry.parameter)];
    const ByteSpan part = intersection(updated(home.segment, first, last),
                                       {home.offset, home.offset + size_bytes_of(entry.parameter)});
    if (!part.empty())
      spans.push_back({entry.offset_bytes + part.begin - home.offset, entry.offset_bytes + part.end - home.offset});
  }
  std::erase_if(spans, [](const ByteSpan& span) { return span.empty(); });
  return spans;
}

ByteSpan Placement::owned(int parameter, int worker) const {
  const Home& home = homes_[static_cast<size_t>(parameter)];
  const ByteSpan part = intersection(updated_by(home.segment, worker),
                                     {home.offset, home.offset + size_bytes_of(parameter)});
  return part.empty() ? ByteSpan{} : ByteSpan{part.begin - home.offset, part.end - home.offset};
}

int64_t Placement::size_bytes_of(int parameter) const {
  return graph_.parameters[static_cast<size_t>(parameter)].spec.shape.count() * size_of(DType::float32);
}

int Placement::slots_of(int parameter) const {
  return graph_.parameters[static_cast<size_t>(parameter)].spec.role == ParameterRole::weight ? options_.state_slots : 0;
}

std::vector<std::vector<SavedPart>> Placement::shares() const {
  const auto workers = static_cast<size_t>(options_.workers);
  const int count = static_cast<int>(graph_.parameters.size());
  const auto bytes_with = [&](int p) {
    return size_bytes_of(p) * (options_.shard_optimizer ? 1 : 1 + slots_of(p));
  };
  std::vector<int> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return bytes_with(a) > bytes_with(b); });
  std::vector<int64_t> bytes(workers, 0);
  std::vector<int> saver(static_cast<size_t>(count));
  for (const int p : order) {
    const auto worker = std::min_element(bytes.begin(), bytes.end()) - bytes.begin();
    bytes[static_cast<size_t>(worker)] += bytes_with(p);
    saver[static_cast<size_t>(p)] = static_cast<int>(worker);
  }

  std::vector<std::vector<SavedPart>> shares(workers);
  for (int p = 0; p < count; ++p)
    shares[static_cast<size_t>(saver[static_cast<size_t>(p)])].push_back({p, -1, {0, size_bytes_of(p)}});
  for (size_t worker = 0; worker < workers; ++worker)
    for (int p = 0; p < count; ++p) {
      const bool saves = options_.shard_optimizer || saver[static_cast<size_t>(p)] == static_cast<int>(worker);
      const ByteSpan part = saves ? owned(p, static_cast<int>(worker)) : ByteSpan{};
      for (int slot = 0; slot < slots_of(p) && !part.empty(); ++slot) shares[worker].push_back({p, slot, part});
    }
  return shares;
}

}  // namespace lockstep
