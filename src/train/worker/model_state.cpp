#include "train/worker/model_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>

#include "base/clock.h"
#include "base/ensure.h"
#include "base/hash.h"
#include "base/index.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/state_hash.h"
#include "comm/gather_texts.h"

namespace lockstep::train {
namespace {

std::string state_name(const compile::CompiledRun& compiled, const config::RunConfig& config, int parameter,
                       int slot) {
  const model::Parameter& of = compiled.graph().parameter(parameter);
  const auto rates = optim::rates_of(config.optimizer, config.group_rates, of.name, of.spec.is_norm_or_bias);
  return of.name + "." + std::string(optim::state_slot_name(config.optimizer, slot, rates.matrix));
}

/// Of a part that is a residual.
checkpoint::TensorRecord residual_record(const compile::CompiledRun& compiled,
                                         const layout::SavedPart& part) {
  const model::Parameter& of = compiled.graph().parameter(part.parameter);
  return {
      checkpoint::to_text(checkpoint::ResidualName{.parameter = of.name, .use = part.use, .leaf = part.leaf}),
      DType::float32, of.spec.shape};
}

std::vector<checkpoint::TensorChunks> hashes_of(const Worker& worker,
                                                const std::vector<checkpoint::NamedTensor>& tensors) {
  std::vector<checkpoint::TensorChunks> hashes;
  for (const auto& tensor : tensors) hashes.push_back(checkpoint::hashed_chunks_of(shown(worker, tensor)));
  return hashes;
}

/// COLLECTIVE: every rank's parts together, or those of the ranks that `counts` names.
std::vector<checkpoint::TensorChunks> gather(
    comm::Communicator& world, const std::vector<checkpoint::TensorChunks>& own,
    const std::function<bool(int rank)>& counts = [](int) { return true; }) {
  std::vector<checkpoint::TensorChunks> all;
  const std::vector<std::string> texts = comm::gather_texts(world, checkpoint::to_text(own), comm::kPatience);
  for (int rank = 0; rank < static_cast<int>(texts.size()); ++rank) {
    if (!counts(rank)) continue;
    for (auto& part : checkpoint::tensor_chunks_from_text(nth(texts, rank))) all.push_back(std::move(part));
  }
  return all;
}

/// COLLECTIVE: the parameters of a replica whose stages hold them; at a server, of the first replica. Of
/// those that several stages hold, the bits that all of them have; where these differ, a hash that no tensor
/// has.
std::vector<checkpoint::TensorChunks> gather_stages(const Worker& worker, comm::Communicator& world) {
  const layout::Ownership& ownership = worker.compiled().ownership();
  const int replica = worker.is_worker() ? ownership.replica_of(worker.rank()) : 0;
  auto all = gather(world, hashes_of(worker, parameter_tensors(worker)), [&](int rank) {
    return ownership.is_worker(rank) && ownership.replica_of(rank) == replica;
  });
  std::ranges::stable_sort(all, {}, &checkpoint::TensorChunks::name);
  std::vector<checkpoint::TensorChunks> once;
  for (auto& tensor : all) {
    if (once.empty() || once.back().name != tensor.name) {
      once.push_back(std::move(tensor));
    } else if (once.back().hashes != tensor.hashes) {
      for (size_t chunk = 0; chunk < tensor.hashes.size(); ++chunk)
        once.back().hashes[chunk] = hash_combine(once.back().hashes[chunk], tensor.hashes[chunk]);
    }
  }
  return once;
}

/// Of rank 0 for servers, which hold none of them.
std::vector<checkpoint::TensorChunks> frozen_chunks(const Worker& worker) {
  if (worker.rank() != 0) return {};
  auto tensors = parameter_tensors(worker);
  std::erase_if(tensors, [&](const auto& tensor) {
    const auto& parameters = worker.compiled().graph().parameters;
    return !std::ranges::find(parameters, tensor.name, &model::Parameter::name)->frozen;
  });
  return hashes_of(worker, tensors);
}

/// COLLECTIVE where parameters lie on several ranks: those that a worker, with the other stages of its
/// replica, or all servers together hold.
std::vector<checkpoint::TensorChunks> parameter_chunks(const Worker& worker, comm::Communicator& world) {
  const layout::Ownership& ownership = worker.compiled().ownership();
  if (ownership.stages() > 1) return gather_stages(worker, world);
  auto own = hashes_of(worker, parameter_tensors(worker));
  if (!ownership.has_servers()) return own;
  // What a rank holds whole it answers for by itself. Frozen parameters are on workers alone.
  auto parts = gather(world, worker.is_worker() ? frozen_chunks(worker) : own);
  return worker.is_worker() ? own : parts;
}

/// COLLECTIVE where optimizer state lies on several ranks.
std::vector<checkpoint::TensorChunks> state_chunks(const Worker& worker, comm::Communicator& world) {
  const layout::Ownership& ownership = worker.compiled().ownership();
  auto own = hashes_of(worker, optimizer_tensors(worker));
  if (world.size() == 1 || (ownership.stages() == 1 && !ownership.has_owners())) return own;
  // Without owners each replica has all of it.
  return gather(world, own, [&](int rank) {
    return ownership.has_owners() || ownership.replica_of(rank) == ownership.replica_of(worker.rank());
  });
}

/// COLLECTIVE where residuals lie on several ranks.
std::vector<checkpoint::TensorChunks> residual_chunks(const Worker& worker, comm::Communicator& world) {
  if (!worker.compiled().keeps_residuals()) return {};
  auto own = hashes_of(worker, residual_tensors(worker));
  return world.size() == 1 ? own : gather(world, own);
}

/// Ranks that hold tensors of a kind number their shards in order.
template <class Holds>
checkpoint::CheckpointShare::Shard shard_of(const std::vector<std::vector<layout::SavedPart>>& shares,
                                            int rank, const Holds& holds) {
  checkpoint::CheckpointShare::Shard shard;
  for (size_t r = 0; r < shares.size(); ++r) {
    if (std::none_of(shares[r].begin(), shares[r].end(), holds)) continue;
    ++shard.count;
    if (static_cast<int>(r) == rank) shard.index = shard.count;
  }
  return shard;
}

/// Of a rank that owns some of the parameters, all that it holds; others have nothing that is theirs alone.
checkpoint::NamedTensor tensor_of(const Worker& worker, const HeldParameter& held) {
  const auto& parameter = worker.compiled().graph().parameter(held.parameter);
  return {parameter.name, DType::float32, parameter.spec.shape, held.data, held.part};
}

/// What nobody else brings when a job goes on: frozen parameters have no owner.
std::vector<checkpoint::NamedTensor> owned_tensors(const Worker& worker) {
  std::vector<checkpoint::NamedTensor> tensors;
  if (!worker.compiled().ownership().owns(worker.rank())) {
    for (const HeldParameter& held : worker.held_parameters())
      if (worker.compiled().graph().parameter(held.parameter).frozen)
        tensors.push_back(tensor_of(worker, held));
    return tensors;
  }
  tensors = parameter_tensors(worker);
  for (auto& tensor : optimizer_tensors(worker)) tensors.push_back(std::move(tensor));
  return tensors;
}

}  // namespace

OwnedState::OwnedState(const Worker& worker) : learning_since_(worker.learning_since()) {
  for (auto& tensor : owned_tensors(worker)) {
    const auto* data = static_cast<const std::byte*>(shown(worker, tensor).data);
    parts_.push_back({tensor, {data, data + tensor.size_bytes()}});
  }
}

void OwnedState::restore(Worker& worker) const {
  const auto tensors = owned_tensors(worker);
  ensure(tensors.size() == parts_.size(), "a rank goes on with as many tensors as it had");
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i];
    const Part& part = parts_[i];
    ensure(tensor.name == part.tensor.name && tensor.part == part.tensor.part,
           "a rank goes on with the tensors that it had");
    worker.window().write(const_cast<void*>(tensor.data), tensor.size_bytes(), [&](void* values) {
      std::memcpy(values, part.contents.data(), part.contents.size());
    });
  }
  worker.learn_since(learning_since_);
}

std::vector<checkpoint::NamedTensor> parameter_tensors(const Worker& worker) {
  std::vector<checkpoint::NamedTensor> tensors;
  for (const HeldParameter& held : worker.held_parameters()) tensors.push_back(tensor_of(worker, held));
  return tensors;
}

std::vector<checkpoint::TensorRecord> parameter_records(const compile::CompiledRun& compiled) {
  std::vector<checkpoint::TensorRecord> records;
  for (const auto& parameter : compiled.graph().parameters)
    records.push_back({parameter.name, DType::float32, parameter.spec.shape});
  return records;
}

std::vector<checkpoint::NamedTensor> optimizer_tensors(const Worker& worker) {
  std::vector<checkpoint::NamedTensor> tensors;
  const auto& optimizer = worker.config().optimizer;
  const auto& parameters = worker.compiled().graph().parameters;
  const auto& places = worker.programs().step.parameters;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].has_state() || places[p].owned.empty()) continue;
    for (int slot = 0; slot < optim::state_slots(optimizer); ++slot)
      tensors.push_back({state_name(worker.compiled(), worker.config(), static_cast<int>(p), slot),
                         DType::float32, parameters[p].spec.shape,
                         worker.state_data(static_cast<int>(p), slot), places[p].owned});
  }
  return tensors;
}

std::vector<checkpoint::TensorRecord> optimizer_records(const compile::CompiledRun& compiled,
                                                        const config::RunConfig& config) {
  std::vector<checkpoint::TensorRecord> records;
  const auto& parameters = compiled.graph().parameters;
  for (size_t p = 0; p < parameters.size(); ++p)
    for (int slot = 0; slot < compiled.state_slot_count(); ++slot)
      if (parameters[p].has_state())
        records.push_back({state_name(compiled, config, static_cast<int>(p), slot), DType::float32,
                           parameters[p].spec.shape});
  return records;
}

std::vector<checkpoint::NamedTensor> residual_tensors(const Worker& worker) {
  std::vector<checkpoint::NamedTensor> tensors;
  const program::Program& step = worker.programs().step;
  for (const layout::SavedPart& saved : nth(worker.compiled().checkpoint_shares(), worker.rank())) {
    if (!saved.is_residual()) continue;
    const auto& place = step.parameter(saved.parameter);
    const auto& [segment, offset] = nth(place.uses, saved.use);
    const auto [name, dtype, shape, part] = residual_record(worker.compiled(), saved);
    tensors.push_back(
        {name, dtype, shape,
         worker.memory().at(step, step.residual_range(segment, saved.leaf, offset, place.size_bytes))});
  }
  return tensors;
}

std::vector<checkpoint::TensorRecord> residual_records(const compile::CompiledRun& compiled) {
  std::vector<checkpoint::TensorRecord> records;
  for (const auto& share : compiled.checkpoint_shares())
    for (const layout::SavedPart& saved : share)
      if (saved.is_residual()) records.push_back(residual_record(compiled, saved));
  return records;
}

checkpoint::CheckpointShare checkpoint_share(const compile::CompiledRun& compiled,
                                             const config::RunConfig& config, int rank, std::byte* snapshot) {
  const auto& shares = compiled.checkpoint_shares();
  checkpoint::CheckpointShare share;
  for (const layout::SavedPart& saved : nth(shares, rank)) {
    const auto& parameter = compiled.graph().parameter(saved.parameter);
    const std::string name = saved.is_residual() ? residual_record(compiled, saved).name
                             : saved.is_parameter()
                                 ? parameter.name
                                 : state_name(compiled, config, saved.parameter, saved.slot);
    auto& tensors = saved.is_parameter() ? share.parameters : share.state;
    tensors.push_back({name, DType::float32, parameter.spec.shape, snapshot, saved.part});
    snapshot += tensors.back().size_bytes();
  }
  share.model = shard_of(shares, rank, [](const layout::SavedPart& part) { return part.is_parameter(); });
  share.optimizer =
      shard_of(shares, rank, [](const layout::SavedPart& part) { return !part.is_parameter(); });
  return share;
}

checkpoint::NamedTensor shown(const Worker& worker, checkpoint::NamedTensor tensor) {
  tensor.data = worker.window().read(tensor.data, tensor.size_bytes());
  return tensor;
}

namespace {

/// COLLECTIVE: all elements of a parameter, or of a slot of its state, of which this rank has those of
/// `here`. REQUIRES: what any two ranks have is equal, or one lies within the other, or they are apart.
std::vector<float> gather_elements(const Worker& worker, comm::Communicator& world,
                                   const HeldParameter& here) {
  const model::Parameter& parameter = worker.compiled().graph().parameter(here.parameter);
  const int64_t count = parameter.spec.shape.count();
  std::vector<std::pair<tensor::Part, int>> held;  // with ranks
  for (const auto& text : comm::gather_texts(world, tensor::to_text(here.part), comm::kPatience))
    held.emplace_back(tensor::part_from_text(text), static_cast<int>(held.size()));
  // Few large ones if these have everything. Of those that are alike, the first rank's.
  std::ranges::stable_sort(held, std::greater(), [](const auto& one) { return one.first.count(); });
  std::vector<tensor::Part> chosen;
  std::vector<float> values(static_cast<size_t>(count)), packed;
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream("parameter");
  for (const auto& [part, rank] : held) {
    const auto is_among = [&](const tensor::Part& one) { return one.contains(part); };
    if (part.empty() || std::ranges::any_of(chosen, is_among)) continue;
    chosen.push_back(part);
    packed.resize(static_cast<size_t>(part.is_range() ? 0 : part.count()));
    float* to = part.is_range() ? values.data() + part.first() : packed.data();
    if (world.rank() == rank)
      std::memcpy(to, worker.window().read(here.data, here.size_bytes()),
                  static_cast<size_t>(here.size_bytes()));
    world.broadcast(to, 4 * part.count(), rank, *stream);
    world.synchronize(*stream, deadline_in(comm::kPatience));
    if (!part.is_range())
      tensor::copy_common(values.data(), tensor::Part::range(0, count), to, part, sizeof(float));
  }
  ensure(
      !tensor::tiling_fault(count, chosen),
      fmt::format("every element of '{}' lies on some rank, and the ranks' parts are equal, nested or apart",
                  parameter.name));
  return values;
}

}  // namespace

std::vector<float> gather_parameter(const Worker& worker, comm::Communicator& world, int parameter) {
  // Also where nothing of it lies: what completes a step is communication of all ranks.
  worker.finish_step();
  HeldParameter here{parameter, {}, nullptr};
  for (const HeldParameter& held : worker.held_parameters())
    if (held.parameter == parameter) here = held;
  return gather_elements(worker, world, here);
}

HeldParameter held_average(const Worker& worker, int parameter) {
  const auto& place = nth(worker.programs().step.parameters, parameter);
  if (place.owned.empty()) return {parameter, {}, nullptr};
  return {parameter, place.owned,
          worker.state_data(parameter, optim::state_slots(worker.config().optimizer) - 1)};
}

std::vector<float> gather_average(const Worker& worker, comm::Communicator& world, int parameter) {
  worker.finish_step();
  return gather_elements(worker, world, held_average(worker, parameter));
}

void replace_parameter(Worker& worker, comm::Communicator& world, int parameter,
                       std::span<const float> values) {
  worker.finish_step();
  const int64_t count = worker.compiled().graph().parameter(parameter).spec.shape.count();
  std::vector<float> all(static_cast<size_t>(count));
  if (world.rank() == 0) {
    ensure(values.size() == all.size(), "a parameter is replaced by as many values");
    std::ranges::copy(values, all.begin());
  }
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream("parameter");
  world.broadcast(all.data(), 4 * count, 0, *stream);
  world.synchronize(*stream, deadline_in(comm::kPatience));
  for (const HeldParameter& held : worker.held_parameters())
    if (held.parameter == parameter)
      worker.window().write(held.data, held.size_bytes(), [&](void* to) {
        tensor::copy_common(to, held.part, all.data(), tensor::Part::range(0, count), sizeof(float));
      });
}

std::vector<std::pair<std::string, uint64_t>> tensor_hashes(const Worker& worker, comm::Communicator& world) {
  auto hashes = checkpoint::fold_parts(parameter_chunks(worker, world));
  for (const auto chunks_of : {state_chunks, residual_chunks})
    for (auto& hash : checkpoint::fold_parts(chunks_of(worker, world))) hashes.push_back(std::move(hash));
  return hashes;
}

uint64_t parameters_hash_of(const Worker& worker) {
  ensure(worker.holds_all(), "the hash of all parameters is told by who holds them");
  return checkpoint::fold_tensors(checkpoint::fold_parts(hashes_of(worker, parameter_tensors(worker))));
}

uint64_t parameters_hash_of(const Worker& worker, comm::Communicator& world) {
  if (worker.compiled().ownership().stages() == 1) return worker.is_worker() ? parameters_hash_of(worker) : 0;
  return checkpoint::fold_tensors(checkpoint::fold_parts(gather_stages(worker, world)));
}

uint64_t state_hash_of(const Worker& worker, comm::Communicator& world) {
  return checkpoint::fold_tensors(tensor_hashes(worker, world));
}

}  // namespace lockstep::train
