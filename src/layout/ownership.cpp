#include "layout/ownership.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>

#include "base/ensure.h"
#include "base/index.h"
#include "layout/norm_chunks.h"

namespace lockstep::layout {

int reversed_bits(int worker, int workers) {
  int position = 0;
  for (int bit = 1; bit < workers; bit *= 2) position = 2 * position + ((worker & bit) != 0 ? 1 : 0);
  return position;
}

int64_t size_bytes_of(const std::vector<SavedPart>& share) {
  int64_t bytes = 0;
  for (const auto& saved : share) bytes += 4 * saved.part.count();
  return bytes;
}

namespace {

/// Cuts a bucket at `borders`, ascending, from its begin to its end, into one shard for each position.
/// `before`: bytes that the positions have so far; those of the shards are added.
std::vector<int64_t> cut(const std::vector<int64_t>& borders, std::vector<int64_t>& before) {
  const size_t count = before.size();
  const auto mean = static_cast<double>(std::accumulate(before.begin(), before.end(), borders.back())) /
                    static_cast<double>(count);
  // What is missing to the mean, if anything is: together that is as much as the bucket, or more.
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

Ownership::Ownership(const model::Graph& graph, const model::Partition& partition,
                     const OwnershipOptions& options)
    : graph_(graph), partition_(partition), options_(options), homes_(graph.parameters.size()) {
  ensure(!options.reversed || (all_workers_own() && std::has_single_bit(static_cast<unsigned>(replicas()))),
         "bits of owners are reversed if all workers own and these are a power of two");
  ensure(options.stages >= 1 && options.workers % options.stages == 0, "each stage has as many workers");
  ensure(has_servers() ? options.owners.first >= options.workers : options.owners.end() <= replicas(),
         "owners are servers, or of the first stage");
  constexpr int64_t kChunkBytes = kNormChunk * static_cast<int64_t>(sizeof(float));
  // By the first owner, so far.
  std::map<int, std::vector<int64_t>> bytes;
  for (size_t s = 0; s < partition.buckets.size(); ++s) {
    const model::Bucket& bucket = partition.buckets[s];
    std::vector<int64_t> borders;
    for (const auto& entry : bucket.entries) {
      if (entry.use != 0) continue;
      nth(homes_, entry.parameter) = {static_cast<int>(s), entry.offset_bytes};
      const int64_t size_bytes = entry.count * static_cast<int64_t>(sizeof(float));
      for (int64_t at = 0; at < size_bytes; at += options.whole ? size_bytes : kChunkBytes)
        borders.push_back(entry.offset_bytes + at);
    }
    borders.push_back(bucket.owned_bytes);
    for (const auto& entry : bucket.frozen)
      if (entry.use == 0) nth(homes_, entry.parameter) = {static_cast<int>(s), entry.offset_bytes};
    if (!has_owners()) continue;
    const RankRange owners = owners_of(static_cast<int>(s));
    auto& before = bytes[owners.first];
    before.resize(static_cast<size_t>(owners.count));
    cuts_.push_back(cut(borders, before));
  }
  has_outer_ties_.assign(partition.segments.size(), 0);
  tied_.assign(partition.segments.size(),
               std::vector<ByteSpan>(static_cast<size_t>(options.stages), ByteSpan{}));
  for (int s = 0; s < static_cast<int>(partition.buckets.size()); ++s) {
    for (const auto& entry : partition.bucket(s).entries)
      if (tie_to_home(s, entry.parameter)) nth(has_outer_ties_, s) = 1;
    for (const auto& entry : partition.bucket(s).frozen) tie_to_home(s, entry.parameter);
  }
}

/// Whether a parameter that a segment uses lies on another stage, of which the segment's then has a copy.
bool Ownership::tie_to_home(int segment, int parameter) {
  const Home& home = nth(homes_, parameter);
  const int stage = stage_of_segment(segment);
  if (stage == stage_of_segment(home.segment)) return false;
  ByteSpan& used = nth(nth(tied_, home.segment), stage);
  const ByteSpan whole{home.offset, home.offset + size_bytes_of(parameter)};
  used = used.empty() ? whole : ByteSpan{std::min(used.begin, whole.begin), std::max(used.end, whole.end)};
  return true;
}

bool Ownership::ties_stages() const {
  return std::ranges::any_of(tied_, [](const auto& stages) {
    return std::ranges::any_of(stages, [](const ByteSpan& used) { return !used.empty(); });
  });
}

bool Ownership::is_tied_first(int segment) const {
  return options_.ties_first && !static_cast<bool>(nth(has_outer_ties_, segment));
}

int64_t Ownership::summed_bytes(int segment) const {
  const model::Bucket& bucket = partition_.bucket(segment);
  return is_tied_first(segment) ? bucket.owned_bytes : bucket.size_bytes;
}

RankRange Ownership::owners_of(int segment) const {
  if (!has_owners() || has_servers()) return owners();
  return {rank_of(stage_of_segment(segment), owners().first), owners().count};
}

bool Ownership::owns(int rank) const {
  return has_owners() && owners().contains(has_servers() ? rank : replica_of(rank));
}

int Ownership::position_of(int owner) const {
  const int number = (has_servers() ? owner : replica_of(owner)) - owners().first;
  return options_.reversed ? reversed_bits(number, owners().count) : number;
}

ByteSpan Ownership::updated(int segment, int first, int last) const {
  if (!has_owners()) return {0, partition_.bucket(segment).owned_bytes};
  const auto& cuts = nth(cuts_, segment);
  return {nth(cuts, first), nth(cuts, last)};
}

ByteSpan Ownership::updated_by(int segment, int rank) const {
  if (!has_owners())
    return computes(segment, rank) ? ByteSpan{0, partition_.bucket(segment).owned_bytes} : ByteSpan{};
  if (!owners_of(segment).contains(rank)) return {};
  const int position = position_of(rank);
  return updated(segment, position, position + 1);
}

ByteSpan Ownership::held(int segment, int rank) const {
  if (!is_worker(rank)) return updated_by(segment, rank);
  return computes(segment, rank) ? ByteSpan{0, partition_.bucket(segment).held_bytes}
                                 : nth(nth(tied_, segment), stage_of(rank));
}

std::vector<ByteSpan> Ownership::gradients(int segment, int first, int last) const {
  const model::Bucket& bucket = partition_.bucket(segment);
  std::vector<ByteSpan> spans{updated(segment, first, last)};
  const bool has_own_alone = is_tied_first(segment);
  for (const auto& entry : bucket.entries) {
    if (entry.use == 0 || has_own_alone) continue;
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

std::vector<ByteSpan> Ownership::held_gradients(int segment, int rank) const {
  if (!is_worker(rank)) return gradients(segment, position_of(rank), position_of(rank) + 1);
  const int64_t size_bytes = computes(segment, rank) ? partition_.bucket(segment).size_bytes : 0;
  return size_bytes > 0 ? std::vector<ByteSpan>{{0, size_bytes}} : std::vector<ByteSpan>{};
}

/// Of bytes of the segment of its first use.
tensor::Part Ownership::part_within(const ByteSpan& bytes, int parameter) const {
  const int64_t begin = nth(homes_, parameter).offset;
  const ByteSpan within{bytes.begin - begin, bytes.end - begin};
  return elements_of(intersection(within, {0, size_bytes_of(parameter)}));
}

tensor::Part Ownership::held_part(int parameter, int rank) const {
  return part_within(held(nth(homes_, parameter).segment, rank), parameter);
}

tensor::Part Ownership::owned(int parameter, int rank) const {
  return part_within(updated_by(nth(homes_, parameter).segment, rank), parameter);
}

int64_t Ownership::owned_bytes(int rank) const {
  int64_t bytes = 0;
  for (int p = 0; p < static_cast<int>(homes_.size()); ++p) bytes += 4 * owned(p, rank).count();
  return bytes;
}

int64_t Ownership::size_bytes_of(int parameter) const {
  return graph_.parameter(parameter).spec.shape.count() * size_of(DType::float32);
}

int Ownership::slots_of(int parameter) const {
  return graph_.parameter(parameter).has_state() ? options_.state_slots : 0;
}

std::vector<int> Ownership::savers_of_parameters() const {
  const auto count = graph_.parameters.size();
  const auto bytes_with = [&](int p) { return size_bytes_of(p) * (has_owners() ? 1 : 1 + slots_of(p)); };
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return bytes_with(a) > bytes_with(b); });
  std::vector<int64_t> bytes(static_cast<size_t>(workers()), 0);
  std::vector<int> saver(count);
  for (const int p : order) {
    const RankRange savers = savers_of_stage(stage_of_segment(nth(homes_, p).segment));
    const auto worker =
        std::min_element(bytes.begin() + savers.first, bytes.begin() + savers.end()) - bytes.begin();
    nth(bytes, worker) += bytes_with(p);
    nth(saver, p) = static_cast<int>(worker);
  }
  return saver;
}

RankRange Ownership::savers_of_stage(int stage) const {
  return {rank_of(stage, 0), options_.savers > 0 ? std::min(options_.savers, replicas()) : replicas()};
}

std::vector<std::vector<SavedPart>> Ownership::shares() const {
  const int count = static_cast<int>(graph_.parameters.size());
  const std::vector<int> saver = savers_of_parameters();
  std::vector<std::vector<SavedPart>> shares(static_cast<size_t>(ranks()));
  for (int rank = 0; rank < ranks(); ++rank) {
    auto& share = nth(shares, rank);
    for (int p = 0; p < count; ++p)
      if (nth(saver, p) == rank)
        share.push_back({p, -1, tensor::Part::whole(graph_.parameter(p).spec.shape)});
    for (int p = 0; p < count; ++p) {
      const tensor::Part part = has_owners() || nth(saver, p) == rank ? owned(p, rank) : tensor::Part();
      for (int slot = 0; slot < slots_of(p) && !part.empty(); ++slot) share.push_back({p, slot, part});
    }
  }
  return shares;
}

std::vector<SavedPart> Ownership::residuals(int rank, const TreeNode& leaves) const {
  std::vector<SavedPart> list;
  for (int s = 0; s < static_cast<int>(partition_.buckets.size()); ++s) {
    if (!computes(s, rank)) continue;
    for (int leaf = leaves.begin; leaf < leaves.end; ++leaf)
      for (const auto& entry : partition_.bucket(s).entries)
        if (entry.offset_bytes < summed_bytes(s))
          list.push_back({.parameter = entry.parameter,
                          .part = tensor::Part::whole(graph_.parameter(entry.parameter).spec.shape),
                          .use = entry.use,
                          .leaf = leaf});
  }
  return list;
}

}  // namespace lockstep::layout
