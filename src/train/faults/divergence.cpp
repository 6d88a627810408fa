#include "train/faults/divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <map>
#include <set>

#include "base/ensure.h"
#include "base/hash.h"
#include "base/host_name.h"
#include "base/index.h"
#include "base/text.h"
#include "comm/agreement.h"
#include "comm/gather_texts.h"
#include "layout/norm_chunks.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

/// COLLECTIVE: every rank's values, by rank.
template <class Value>
std::vector<std::vector<Value>> gather(comm::Communicator& world, const std::vector<Value>& own) {
  const std::string bytes(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(Value));
  std::vector<std::vector<Value>> all;
  for (const auto& text : comm::gather_texts(world, bytes, comm::kPatience)) {
    all.emplace_back(text.size() / sizeof(Value));
    if (!text.empty()) std::memcpy(all.back().data(), text.data(), text.size());
  }
  return all;
}

/// Who holds what, of ranks that should hold the same; the others' hashes are empty.
struct Parties {
  std::vector<int> replicas;
  std::vector<int> suspects;  ///< ranks that do not hold what most hold; without a majority, all of them
  int reference = 0;          ///< the lowest rank of the majority; without one, of all
  bool majority = false;
};

Parties find_parties(const std::vector<std::vector<uint64_t>>& hashes) {
  Parties parties;
  for (int rank = 0; rank < static_cast<int>(hashes.size()); ++rank)
    if (!nth(hashes, rank).empty()) parties.replicas.push_back(rank);
  if (!parties.replicas.empty()) parties.reference = parties.replicas.front();
  std::map<std::vector<uint64_t>, std::vector<int>> holders;
  for (const int rank : parties.replicas) holders[nth(hashes, rank)].push_back(rank);
  for (const auto& [held, ranks] : holders)
    if (2 * ranks.size() > parties.replicas.size())
      parties.majority = true, parties.reference = ranks.front();
  for (const int rank : parties.replicas)
    if (!parties.majority || nth(hashes, rank) != nth(hashes, parties.reference))
      parties.suspects.push_back(rank);
  return parties;
}

/// "ranks 2 (host a) and 5 (host b)"; of many, the first ones.
std::string name_ranks(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  constexpr size_t kMostNamed = 8;
  std::vector<std::string> names;
  for (const int rank : ranks) {
    if (names.size() == kMostNamed) break;
    names.push_back(fmt::format("{} (host {})", rank, nth(hosts, rank)));
  }
  std::string last;
  if (ranks.size() > kMostNamed) {
    last = fmt::format(" and {} more", ranks.size() - kMostNamed);
  } else if (names.size() > 1) {
    last = " and " + names.back();
    names.pop_back();
  }
  return fmt::format("rank{} {}{}", ranks.size() == 1 ? "" : "s", join(names, ", "), last);
}

struct DifferingElement {
  int64_t index = -1;  ///< -1: none any more
  float reference = 0, suspect = 0;
};

/// COLLECTIVE: the first element of `tensor` that differs between two ranks. Hashes of ever smaller parts are
/// compared, so that a tensor of any size takes a few small messages.
DifferingElement find_element(comm::Communicator& world, const checkpoint::NamedTensor& tensor, int reference,
                              int suspect) {
  constexpr int64_t kParts = 256;
  const auto* values = static_cast<const float*>(tensor.data);
  int64_t begin = 0, end = tensor.shape.count();
  while (end - begin > kParts) {
    const int64_t each = (end - begin + kParts - 1) / kParts;
    std::vector<uint64_t> own;
    for (int64_t at = begin; at < end && values != nullptr; at += each)
      own.push_back(hash64(values + at, static_cast<size_t>(std::min(each, end - at)) * sizeof(float)));
    const auto all = gather(world, own);
    const auto& expected = nth(all, reference);
    const auto part = std::mismatch(expected.begin(), expected.end(), nth(all, suspect).begin()).first;
    if (part == expected.end()) return {};
    begin += (part - expected.begin()) * each;
    end = std::min(begin + each, end);
  }
  std::vector<uint32_t> bits;
  if (values != nullptr) {
    bits.resize(static_cast<size_t>(end - begin));
    std::memcpy(bits.data(), values + begin, bits.size() * sizeof(uint32_t));
  }
  const auto all = gather(world, bits);
  const auto& expected = nth(all, reference);
  const auto [ours, theirs] = std::mismatch(expected.begin(), expected.end(), nth(all, suspect).begin());
  if (ours == expected.end()) return {};
  return {begin + (ours - expected.begin()), std::bit_cast<float>(*ours), std::bit_cast<float>(*theirs)};
}

std::string describe(const DifferingElement& element, const checkpoint::NamedTensor& tensor, int suspect,
                     const std::string& others) {
  if (element.index < 0)
    return fmt::format("first: {} on rank {}; the update since then has overwritten it", tensor.name,
                       suspect);
  const auto one = std::bit_cast<uint32_t>(element.suspect),
             other = std::bit_cast<uint32_t>(element.reference);
  const uint32_t flipped = one ^ other;
  return fmt::format("first: {}, element {}: {} (0x{:08x}) on rank {}, {} (0x{:08x}) on {}; {}", tensor.name,
                     element.index, element.suspect, one, suspect, element.reference, other, others,
                     std::has_single_bit(flipped) ? fmt::format("bit {} differs", std::countr_zero(flipped))
                                                  : fmt::format("{} bits differ", std::popcount(flipped)));
}

/// "rank 2 (host c) holds other bits than the other 3 in 1 of 30 tensors"; `verb` is "hold" or "read".
std::string tell_parties(const Parties& parties, const std::vector<std::string>& hosts,
                         const std::string& verb, const std::string& how_many) {
  const size_t others = parties.replicas.size() - parties.suspects.size();
  if (parties.majority)
    return fmt::format("{} {}{} other bits than the other {} in {}", name_ranks(parties.suspects, hosts),
                       verb, parties.suspects.size() == 1 && verb == "hold" ? "s" : "", others, how_many);
  return fmt::format("{} differ in {}; {} may be the damaged one, since no state has a majority",
                     name_ranks(parties.suspects, hosts), how_many,
                     parties.suspects.size() == 2 ? "either" : "each");
}

std::string advice_about(const Parties& parties) {
  const bool one = parties.suspects.size() == 1;
  return fmt::format("\nThe memory or a processor of {} is suspect: test {}, or leave {} out.",
                     one ? "this rank's host" : "these ranks' hosts", one ? "it" : "them",
                     one ? "it" : "them");
}

uint64_t hash_of(const std::vector<uint64_t>& digests) {
  return digests.empty() ? 0 : hash64(digests.data(), digests.size() * sizeof(uint64_t));
}

}  // namespace

ReplicaComparison::ReplicaComparison(const Worker& worker) : worker_(worker) {
  const auto& compiled = worker.compiled();
  const auto add = [this](const std::vector<checkpoint::TensorRecord>& all,
                          const std::vector<checkpoint::NamedTensor>& held) {
    size_t next = 0;  // of those that are held, in the same order
    for (const auto& record : all) {
      ensure(record.dtype == DType::float32, "the replicas' state is compared as float32");
      const bool is_here = next < held.size() && held[next].name == record.name;
      tensors_.push_back(is_here ? held[next++]
                                 : checkpoint::NamedTensor{record.name, record.dtype, record.shape});
    }
  };
  add(parameter_records(compiled),
      worker.is_worker() ? parameter_tensors(worker) : std::vector<checkpoint::NamedTensor>{});
  // What one rank alone holds has nothing to be compared with.
  if (!compiled.ownership().has_owners())
    add(optimizer_records(compiled, worker.config()), optimizer_tensors(worker));
  if (worker_.is_worker()) hashes_.resize(tensors_.size());
}

checkpoint::NamedTensor ReplicaComparison::shown_here(size_t tensor) const {
  return tensors_[tensor].data != nullptr ? shown(worker_, tensors_[tensor]) : tensors_[tensor];
}

uint64_t ReplicaComparison::hash() {
  if (!worker_.is_worker()) return 0;
  uint64_t hash = tensors_.size();
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (tensors_[t].data == nullptr) continue;
    hashes_[t] = hash64(shown(worker_, tensors_[t]).data, static_cast<size_t>(tensors_[t].size_bytes()));
    hash = hash_combine(hash, hashes_[t]);
  }
  return std::max<uint64_t>(hash, 1);
}

uint64_t ReplicaComparison::see_step() {
  digests_ = worker_.parameter_digests();
  return hash_of(digests_);
}

bool ReplicaComparison::all_equal(comm::Communicator& world) {
  hash();
  // Each rank has zero for what it does not hold.
  std::vector<uint64_t> own = hashes_;
  own.insert(own.end(), digests_.begin(), digests_.end());
  const auto all = gather(world, own);
  size_t most = 0;
  for (const auto& of_rank : all) most = std::max(most, of_rank.size());
  for (size_t t = 0; t < most; ++t) {
    uint64_t expected = 0;
    for (const auto& of_rank : all) {
      if (t >= of_rank.size() || of_rank[t] == 0) continue;
      if (expected == 0) expected = of_rank[t];
      if (of_rank[t] != expected) return false;
    }
  }
  return true;
}

std::string ReplicaComparison::locate_read(comm::Communicator& world) const {
  if (!worker_.compiled().digests_parameters()) return "";
  const auto hosts = comm::gather_texts(world, host_name(), comm::kPatience);
  const auto digests = gather(world, digests_);
  for (int stage = 0; stage < worker_.compiled().ownership().stages(); ++stage)
    if (std::string what = locate_read(hosts, of_stage(digests, stage)); !what.empty()) return what;
  return "";
}

std::vector<std::vector<uint64_t>> ReplicaComparison::of_stage(const std::vector<std::vector<uint64_t>>& all,
                                                               int stage) const {
  const layout::Ownership& ownership = worker_.compiled().ownership();
  std::vector<std::vector<uint64_t>> result(all.size());
  for (int replica = 0; replica < ownership.replicas(); ++replica) {
    const int rank = ownership.rank_of(stage, replica);
    nth(result, rank) = nth(all, rank);
  }
  return result;
}

std::string ReplicaComparison::locate_read(const std::vector<std::string>& hosts,
                                           const std::vector<std::vector<uint64_t>>& digests) const {
  const Parties parties = find_parties(digests);
  const auto& graph = worker_.compiled().graph();
  const layout::NormChunks chunks = layout::norm_chunks_of(graph);
  const auto& expected = nth(digests, parties.reference);
  std::set<int> parameters;
  int64_t first = -1;
  for (const int suspect : parties.suspects)
    for (int64_t chunk = 0; chunk < static_cast<int64_t>(expected.size()); ++chunk)
      if (nth(nth(digests, suspect), chunk) != nth(expected, chunk)) {
        const int parameter = chunks.parameter_of(chunk);
        if (first < 0) first = chunk;
        parameters.insert(parameter);
      }
  if (first < 0) return "";
  const int parameter = chunks.parameter_of(first);
  const int64_t begin = (first - nth(chunks.first, parameter)) * layout::kNormChunk;
  const auto owner = std::find_if(parties.suspects.begin(), parties.suspects.end(), [&](int rank) {
    return worker_.compiled().ownership().owned(parameter, rank).contains(tensor::Part::range(begin, 1));
  });
  return tell_parties(parties, hosts, "read",
                      fmt::format("{} of {} parameters", parameters.size(), graph.parameters.size())) +
         fmt::format("\n  first: {}, between elements {} and {}; {}", graph.parameter(parameter).name, begin,
                     std::min(begin + layout::kNormChunk, graph.parameter(parameter).spec.shape.count()) - 1,
                     owner == parties.suspects.end()
                         ? "their owner's values have overwritten them since"
                         : fmt::format("rank {} owns them and sends its result to all workers", *owner)) +
         advice_about(parties);
}

std::string ReplicaComparison::locate(comm::Communicator& world) const {
  const auto hosts = comm::gather_texts(world, host_name(), comm::kPatience);
  const auto hashes = gather(world, hashes_);
  const layout::Ownership& ownership = worker_.compiled().ownership();
  for (int stage = 0; stage < ownership.stages(); ++stage)
    if (std::string what = locate(world, hosts, of_stage(hashes, stage)); !what.empty()) return what;
  // What several stages hold is equal there, too.
  for (size_t t = 0; t < tensors_.size() && ownership.ties_stages(); ++t) {
    std::vector<std::vector<uint64_t>> of_tensor(hashes.size());
    for (size_t rank = 0; rank < hashes.size(); ++rank)
      if (hashes[rank][t] != 0) {
        of_tensor[rank].assign(tensors_.size(), 0);
        of_tensor[rank][t] = hashes[rank][t];
      }
    if (std::string what = locate(world, hosts, of_tensor); !what.empty()) return what;
  }
  return "";
}

std::string ReplicaComparison::locate(comm::Communicator& world, const std::vector<std::string>& hosts,
                                      const std::vector<std::vector<uint64_t>>& hashes) const {
  const Parties parties = find_parties(hashes);
  const auto hash_of = [&](int rank, size_t tensor) { return nth(hashes, rank)[tensor]; };
  size_t first = tensors_.size(), differing = 0;
  int suspect = -1;
  for (size_t t = 0; t < tensors_.size(); ++t)
    for (const int rank : parties.replicas) {
      if (hash_of(rank, t) == hash_of(parties.reference, t)) continue;
      if (differing++ == 0) first = t, suspect = rank;
      break;
    }
  if (suspect < 0) return "";

  std::string text =
      tell_parties(parties, hosts, "hold", fmt::format("{} of {} tensors", differing, tensors_.size()));
  const auto element = find_element(world, shown_here(first), parties.reference, suspect);
  text += "\n  " + describe(element, tensors_[first], suspect,
                            parties.majority ? "the others" : fmt::format("rank {}", parties.reference));
  return text + advice_about(parties);
}

}  // namespace lockstep::train
