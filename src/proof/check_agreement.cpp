#include <fmt/format.h>

#include <iterator>
#include <map>
#include <utility>

#include "proof/check_structure.h"

namespace lockstep::proof {
namespace {

bool is_alone(const program::Program& program, const program::Group& group) {
  return group.members == program::Members::run(program.rank, 1);
}

/// Communicators are made for one group after the other, by all ranks together: members or not. A group of
/// the rank alone takes nobody else, and may be another one on each rank.
void check_same_groups(const program::Program& first, const program::Program& own, int rank,
                       Findings& findings) {
  if (own.groups.size() != first.groups.size())
    return findings.add(kStructure, rank, -1,
                        fmt::format("it has {} groups, but rank 0 has {}; every rank must list all groups",
                                    own.groups.size(), first.groups.size()));
  for (size_t g = 0; g < own.groups.size(); ++g) {
    const program::Group &a = own.groups[g], &b = first.groups[g];
    if (a.name != b.name)
      return findings.add(
          kStructure, rank, -1,
          fmt::format(
              "group {} is '{}', but '{}' on rank 0; all ranks must list the same groups in the same order",
              g, a.name, b.name));
    if (a.members != b.members && !(is_alone(own, a) && is_alone(first, b)))
      findings.add(kStructure, rank, -1,
                   fmt::format("group '{}' has members {} here and {} on rank 0", a.name,
                               program::to_text(a.members), program::to_text(b.members)));
    if (a.transport != b.transport)
      findings.add(kStructure, rank, -1,
                   fmt::format("the transport of group '{}' is '{}' here and '{}' on rank 0", a.name,
                               program::name_of(a.transport), program::name_of(b.transport)));
  }
}

void check_same_settings(const program::Program& first, const program::Program& own, int rank,
                         Findings& findings) {
  if (own.replicas < 0 || own.replicas > own.world_size || own.replicas != first.replicas)
    findings.add(kStructure, rank, -1,
                 fmt::format("each stage has {} of {} ranks, but {} on rank 0", own.replicas, own.world_size,
                             first.replicas));
  if (own.name != first.name || own.reduction != first.reduction || own.wire != first.wire ||
      own.error_feedback != first.error_feedback || own.leaves != first.leaves ||
      own.micro_batches_per_leaf != first.micro_batches_per_leaf)
    findings.add(
        kStructure, rank, -1,
        "name, reduction, wire, error feedback, leaves or micro-batches per leaf differ from rank 0's");
}

using Parameters = std::map<std::string_view, const program::ParameterPlace*>;

void check_buckets(const Parameters& parameters, Findings& findings) {
  struct Stretch {
    int64_t end;
    std::string_view parameter;
  };
  std::map<int, std::map<int64_t, Stretch>> buckets;  // by segment, by begin
  for (const auto& [name, place] : parameters)
    for (const auto& use : place->uses) {
      if (place->is_frozen()) continue;
      auto& bucket = buckets[use.segment];
      const int64_t end = use.bucket_offset + place->size_bytes;
      const auto next = bucket.lower_bound(use.bucket_offset);
      const bool hits_next = next != bucket.end() && next->first < end;
      const bool hits_previous = next != bucket.begin() && std::prev(next)->second.end > use.bucket_offset;
      if (hits_next || hits_previous)
        findings.add(
            kStructure, -1, -1,
            fmt::format("gradients of '{}' and '{}' share bytes of segment {}'s bucket", name,
                        hits_next ? next->second.parameter : std::prev(next)->second.parameter, use.segment));
      bucket.emplace(use.bucket_offset, Stretch{end, name});
    }
}

/// Whoever computes a leaf has its residuals, and nobody else.
void check_residuals(std::span<const program::Program> programs, Findings& findings) {
  std::map<std::pair<int, int>, int> ranks;  // by segment and leaf
  for (size_t r = 0; r < programs.size(); ++r)
    for (const program::ResidualPlace& place : programs[r].residuals)
      for (int leaf = place.first_leaf; leaf < place.first_leaf + place.leaves; ++leaf) {
        const auto [known, is_new] = ranks.try_emplace({place.segment, leaf}, static_cast<int>(r));
        if (!is_new)
          findings.add(kStructure, static_cast<int>(r), -1,
                       fmt::format("it has residuals of leaf {} of segment {}, and so has rank {}", leaf,
                                   place.segment, known->second));
      }
}

}  // namespace

void check_agreement(std::span<const program::Program> programs, Findings& findings) {
  Parameters parameters;
  for (size_t r = 0; r < programs.size(); ++r) {
    const int rank = static_cast<int>(r);
    check_same_settings(programs[0], programs[r], rank, findings);
    check_same_groups(programs[0], programs[r], rank, findings);
    for (const program::ParameterPlace& place : programs[r].parameters) {
      const program::ParameterPlace* known = parameters.emplace(place.name, &place).first->second;
      if (known->size_bytes != place.size_bytes || known->uses != place.uses)
        findings.add(kStructure, rank, -1,
                     fmt::format("parameter '{}' has another size or other uses than elsewhere", place.name));
      if ((known->whole_scratch != 0) != (place.whole_scratch != 0))
        findings.add(kStructure, rank, -1,
                     fmt::format("parameter '{}' is updated as a whole {}", place.name,
                                 place.whole_scratch != 0 ? "only here" : "elsewhere, but not here"));
    }
  }
  check_buckets(parameters, findings);
  check_residuals(programs, findings);
}

}  // namespace lockstep::proof
