#include "net/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/communicator.h"
#include "lockstep/error.h"
#include "tensor/part.h"
#include "train/loop/trainer.h"
#include "train/worker/model_state.h"
#include "train/worker/worker.h"

namespace lockstep::net {
namespace {

using train::Worker;

/// What a rank owns of a tensor of optimizer state.
struct StatePart {
  std::string name;
  int64_t of = 0;
  tensor::Part part;
  std::vector<float> values;
};

struct TrainedRank {
  Trained trained;
  std::vector<StatePart> states;
};

StatePart part_of(const Worker& worker, const checkpoint::NamedTensor& tensor) {
  const auto* data = static_cast<const float*>(train::shown(worker, tensor).data);
  return {.name = tensor.name,
          .of = tensor.shape.count(),
          .part = tensor.part,
          .values = {data, data + tensor.count()}};
}

/// Of all ranks together; what nobody owns is no number.
std::map<std::string, std::vector<float>> whole_states(const std::vector<TrainedRank>& ranks) {
  std::map<std::string, std::vector<float>> whole;
  for (const TrainedRank& rank : ranks)
    for (const StatePart& part : rank.states) {
      auto& values = whole[part.name];
      values.resize(static_cast<size_t>(part.of), std::numeric_limits<float>::quiet_NaN());
      tensor::copy_common(values.data(), tensor::Part::range(0, part.of), part.values.data(), part.part,
                          sizeof(float));
    }
  return whole;
}

void train_rank(const config::RunConfig& config, const RankFacts& facts, int rank, comm::Communicator& world,
                TrainedRank& result) {
  Trained& trained = result.trained;
  train::WorkerOptions options{.rank = rank,
                               .world_size = facts.ranks,
                               .shared_memory = facts.shared_memory,
                               .hosts = facts.hosts,
                               .device = facts.device};
  if (facts.lanes_at_once)
    options.asynchronous =
        device::AsyncCpuOptions{.jitter_seed = static_cast<uint64_t>(rank) + 1, .max_jitter_us = 50};
  Worker worker(config, options);
  // They need not agree on what they run: threads of a process run the same.
  worker.connect(world);
  train::TrainerEvents events;
  events.on_step = [&](const train::StepRecord& record) {
    trained.losses.push_back(record.loss);
    trained.norms.push_back(record.gradient_norm);
  };
  events.on_evaluation = [&](const train::EvaluationRecord& record) { trained.eval_loss = record.loss; };
  train::Trainer trainer(worker, world, events, {.output_directory = "", .stop_requested = {}});
  trainer.prepare();
  trained.skipped_steps = trainer.run().skipped_steps;
  trained.hashes = train::tensor_hashes(worker, world);
  if (facts.ranks > 1 && config.parallel.reduction == layout::Reduction::reproducible) return;
  for (const auto& tensor : train::optimizer_tensors(worker))
    result.states.push_back(part_of(worker, tensor));
  for (size_t p = 0; p < worker.compiled().graph().parameters.size(); ++p)
    trained.parameters.push_back(train::gather_parameter(worker, world, static_cast<int>(p)));
}

std::string difference(const std::string& what, const std::vector<double>& one,
                       const std::vector<double>& other) {
  if (one.size() != other.size())
    return fmt::format("{} of {} steps, and of {}", what, one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i)
    if (std::bit_cast<uint64_t>(one[i]) != std::bit_cast<uint64_t>(other[i]) &&
        !(one[i] != one[i] && other[i] != other[i]))
      return fmt::format("{} of step {}: {} and {}", what, i + 1, one[i], other[i]);
  return "";
}

}  // namespace

std::string difference_of_steps(const Trained& one, const Trained& other) {
  if (auto text = difference("loss", one.losses, other.losses); !text.empty()) return text;
  return difference("norm", one.norms, other.norms);
}

std::string difference(const Trained& one, const Trained& other) {
  if (auto text = difference_of_steps(one, other); !text.empty()) return text;
  if (one.hashes.size() != other.hashes.size())
    return fmt::format("{} tensors and {}", one.hashes.size(), other.hashes.size());
  for (size_t i = 0; i < one.hashes.size(); ++i)
    if (one.hashes[i] != other.hashes[i]) return "tensor " + one.hashes[i].first;
  return difference("loss of the evaluation", {one.eval_loss}, {other.eval_loss});
}

Trained train_here(const config::RunConfig& config, const RankFacts& facts, Trained* until_failure) {
  const auto ranks = static_cast<size_t>(facts.ranks);
  auto communicators = comm::make_local_communicators(facts.ranks);
  std::vector<std::exception_ptr> errors(ranks);
  std::vector<TrainedRank> trained(ranks);
  std::vector<std::thread> threads;
  std::exception_ptr first;
  std::mutex mutex;
  for (size_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        train_rank(config, facts, static_cast<int>(rank), *communicators[rank], trained[rank]);
      } catch (const std::exception& error) {
        {
          const std::scoped_lock lock(mutex);
          if (!first) first = std::current_exception();
        }
        communicators[rank]->abort(error.what());
      }
    });
  for (auto& thread : threads) thread.join();
  if (first) {
    // Others may have been stopped before they saw the last step.
    if (until_failure != nullptr)
      *until_failure = std::ranges::max_element(trained, {}, [](const TrainedRank& of_rank) {
                         return of_rank.trained.losses.size();
                       })->trained;
    std::rethrow_exception(first);
  }
  for (size_t rank = 1; rank < ranks; ++rank)
    if (const auto text = difference(trained[0].trained, trained[rank].trained); !text.empty())
      throw InternalError(fmt::format("rank {} differs from rank 0: {}", rank, text));
  trained[0].trained.states = whole_states(trained);
  return std::move(trained[0].trained);
}

}  // namespace lockstep::net
