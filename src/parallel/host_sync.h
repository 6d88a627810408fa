#pragma once

#include <vector>

#include "layout/batch_division.h"
#include "parallel/gradient_sync.h"

namespace lockstep::parallel {

/// The workers of a stage by host, ascending; hosts in the order of their first workers.
using HostWorkers = std::vector<std::vector<int>>;

/// `hosts`: of each rank. `first_rank`: of the stage's worker 0.
HostWorkers workers_by_host(const std::vector<int>& hosts, int first_rank, int workers);

/// Whether there is something to sum within a host and something across hosts.
bool sums_across_hosts(const HostWorkers& hosts);

/// Whether sums within hosts are nodes of the canonical tree, and those of two hosts are added where the tree
/// adds them: so it is if ranks are numbered host by host, each worker has as many leaves, and each host the
/// same power of two of workers, of which the last host may have fewer.
bool hosts_follow_tree(const HostWorkers& hosts, const layout::BatchDivision& division);

/// Groups of a program in which this rank takes part: of its host's workers, which share memory, and of the
/// workers that have the same place on other hosts; -1 if the rank sums nothing across hosts.
struct HostGroups {
  int host = -1, across = -1;
};
/// Adds these groups, of all hosts and places of a stage, to the program. `name`: what their names begin
/// with. `worker`: the number of this rank in the stage; -1 if it is of another stage.
HostGroups add_host_groups(program::Program& program, const std::string& name, const HostWorkers& hosts,
                           int first_rank, int worker);

/// An all-reduce of a bucket: within each host, through shared memory; then across hosts, where the first
/// worker of each host sums the first part of the bucket with the first workers of the others, the second
/// worker the second part, and so on, for as many parts as the smallest host has workers; and back within
/// each host. So a host sends and receives the bucket once, whatever the number of its workers. Drawn for two
/// hosts of two workers, a and b, c and d:
///
///     within     a+b | a+b       c+d | c+d
///     across     a sums the left half with c, b the right half with d, around a ring or along the tree
///     within     a <-> b, c <-> d: each gets the half that it lacks
///
/// `ordered`: along the canonical tree. REQUIRES: then, hosts_follow_tree.
void write_host_all_reduce(const BucketSync& sync, const HostWorkers& hosts, const HostGroups& groups,
                           bool ordered);

}  // namespace lockstep::parallel
