#include "layout/placement.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/index.h"
#include "layout/norm_chunks.h"
#include "lockstep/error.h"

namespace lockstep::layout {

int reversed_bits(int worker, int workers) {
  int position = 0;
  for (int bit = 1; bit < workers; bit *= 2) position = 2 * position + ((worker & bit) != 0 ? 1 : 0);
  return position;
}

int64_t size_bytes_of(const std::vector<SavedPart>& share) {
  int64_t bytes = 0;
  for (const auto& part : share) bytes += part.bytes.size();
  return bytes;
}

namespace {

/// Cuts a bucket at `borders`, ascending, from its begin to its end, into one shard for each position.
/// `before`: bytes that the positions have so far; those of the shards are added.
std::vector<int64_t> cut(const std::vector<int64_t>& borders, std::vector<int64_t>& before) {
  const size_t count = before.size();
  const auto mean = static_cast<double>(std::accumulate(before.begin(), before.end(), borders.back())) /
                    static_cast<double>(count);
  // What is missing to the mean, where anything is: together that is as much as the bucket, or more.
  double missing = 0;
  for (const int64_t bytes : before) missing += std::max(0.0, mean - static_cast<double>(bytes));
  const double scale = missing > 0 ? static_cast<double>(borders.back()) / missing : 0;
  std::vector<int64_t> cuts{0};
  double wanted = 0;
  for (size_t position = 0; position < count; ++position) {
    wanted += scale * std::max(0.0, mean - static_cast<double>(before[position]));
    int64_t end = borders.back();
    if (position + 1 < count) {
      const auto above =
          std::lower_bound(borders.begin(), borders.end(), wanted,
                           [](int64_t border, double at) { return static_cast<double>(border) < at; });
      end = above == borders.end() ? borders.back() : *above;
      if (above != borders.begin() &&
          wanted - static_cast<double>(*std::prev(above)) < static_cast<double>(end) - wanted)
        end = *std::prev(above);
    }
    cuts.push_back(end);
    before[position] += end - cuts[position];
  }
  return cuts;
}

}  // namespace

Placement::Placement(const model::Graph& graph, const model::Partition& partition,
                     const PlacementOptions& options)
    : graph_(graph), partition_(partition), options_(options), homes_(graph.parameters.size()) {
  ensure(!options.reversed || std::has_single_bit(static_cast<unsigned>(options.workers)),
         "bits of workers are reversed where these are a power of two");
  constexpr int64_t kChunkBytes = kNormChunk * static_cast<int64_t>(sizeof(float));
  std::vector<int64_t> bytes(static_cast<size_t>(options.workers), 0);
  for (size_t s = 0; s < partition.buckets.size(); ++s) {
    const model::Bucket& bucket = partition.buckets[s];
    std::vector<int64_t> borders;
    for (const auto& entry : bucket.entries) {
      if (entry.use != 0) continue;
      nth(homes_, entry.parameter) = {static_cast<int>(s), entry.offset_bytes};
      const int64_t size_bytes = entry.count * static_cast<int64_t>(sizeof(float));
      for (int64_t at = 0; at < size_bytes; at += kChunkBytes) borders.push_back(entry.offset_bytes + at);
    }
    borders.push_back(bucket.owned_bytes);
    if (options.shard_optimizer) cuts_.push_back(cut(borders, bytes));
  }
}

int Placement::position_of(int worker) const {
  return options_.reversed ? reversed_bits(worker, options_.workers) : worker;
}

ByteSpan Placement::updated(int segment, int first, int last) const {
  const auto s = static_cast<size_t>(segment);
  if (!options_.shard_optimizer) return {0, partition_.buckets[s].owned_bytes};
  return {nth(cuts_[s], first), nth(cuts_[s], last)};
}

ByteSpan Placement::updated_by(int segment, int worker) const {
  const int position = position_of(worker);
  return updated(segment, position, position + 1);
}

std::vector<ByteSpan> Placement::gradients(int segment, int first, int last) const {
  const model::Bucket& bucket = partition_.bucket(segment);
  std::vector<ByteSpan> spans{updated(segment, first, last)};
  for (const auto& entry : bucket.entries) {
    if (entry.use == 0) continue;
    const Home& home = nth(homes_, entry.parameter);
    const ByteSpan part = intersection(updated(home.segment, first, last),
                                       {home.offset, home.offset + size_bytes_of(entry.parameter)});
    if (!part.empty())
      spans.push_back(
          {entry.offset_bytes + part.begin - home.offset, entry.offset_bytes + part.end - home.offset});
  }
  std::erase_if(spans, [](const ByteSpan& span) { return span.empty(); });
  return spans;
}

ByteSpan Placement::owned(int parameter, int worker) const {
  const Home& home = nth(homes_, parameter);
  const ByteSpan part =
      intersection(updated_by(home.segment, worker), {home.offset, home.offset + size_bytes_of(parameter)});
  return part.empty() ? ByteSpan{} : ByteSpan{part.begin - home.offset, part.end - home.offset};
}

int64_t Placement::size_bytes_of(int parameter) const {
  return graph_.parameter(parameter).spec.shape.count() * size_of(DType::float32);
}

int Placement::slots_of(int parameter) const {
  return graph_.parameter(parameter).spec.role == ops::ParameterRole::weight ? options_.state_slots : 0;
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
    nth(bytes, worker) += bytes_with(p);
    nth(saver, p) = static_cast<int>(worker);
  }

  std::vector<std::vector<SavedPart>> shares(workers);
  for (int p = 0; p < count; ++p) nth(shares, nth(saver, p)).push_back({p, -1, {0, size_bytes_of(p)}});
  for (size_t worker = 0; worker < workers; ++worker)
    for (int p = 0; p < count; ++p) {
      const bool saves = options_.shard_optimizer || nth(saver, p) == static_cast<int>(worker);
      const ByteSpan part = saves ? owned(p, static_cast<int>(worker)) : ByteSpan{};
      for (int slot = 0; slot < slots_of(p) && !part.empty(); ++slot)
        shares[worker].push_back({p, slot, part});
    }
  return shares;
}

}  // namespace lockstep::layout
