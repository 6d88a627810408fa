#include "net/training.h"

#include <fmt/format.h>

#include <bit>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/communicator.h"
#include "lockstep/error.h"
#include "train/loop/trainer.h"
#include "train/worker/model_state.h"
#include "train/worker/worker.h"

namespace lockstep::net {
namespace {

using train::Worker;

Trained train_rank(const config::RunConfig& config, const RankFacts& facts, int rank,
                   comm::Communicator& world) {
  Trained trained;
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
  if (facts.ranks > 1 && config.parallel.reduction == layout::Reduction::reproducible) return trained;
  for (size_t p = 0; p < worker.compiled().graph().parameters.size(); ++p)
    trained.parameters.push_back(train::gather_parameter(worker, world, static_cast<int>(p)));
  return trained;
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

std::string difference(const Trained& one, const Trained& other) {
  if (auto text = difference("loss", one.losses, other.losses); !text.empty()) return text;
  if (auto text = difference("norm", one.norms, other.norms); !text.empty()) return text;
  if (one.hashes.size() != other.hashes.size())
    return fmt::format("{} tensors and {}", one.hashes.size(), other.hashes.size());
  for (size_t i = 0; i < one.hashes.size(); ++i)
    if (one.hashes[i] != other.hashes[i]) return "tensor " + one.hashes[i].first;
  return difference("loss of the evaluation", {one.eval_loss}, {other.eval_loss});
}

Trained train_here(const config::RunConfig& config, const RankFacts& facts) {
  const auto ranks = static_cast<size_t>(facts.ranks);
  auto communicators = comm::make_local_communicators(facts.ranks);
  std::vector<std::exception_ptr> errors(ranks);
  std::vector<Trained> trained(ranks);
  std::vector<std::thread> threads;
  std::exception_ptr first;
  std::mutex mutex;
  for (size_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        trained[rank] = train_rank(config, facts, static_cast<int>(rank), *communicators[rank]);
      } catch (const std::exception& error) {
        {
          const std::scoped_lock lock(mutex);
          if (!first) first = std::current_exception();
        }
        communicators[rank]->abort(error.what());
      }
    });
  for (auto& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
  for (size_t rank = 1; rank < ranks; ++rank)
    if (const auto text = difference(trained[0], trained[rank]); !text.empty())
      throw InternalError(fmt::format("rank {} differs from rank 0: {}", rank, text));
  return std::move(trained[0]);
}

}  // namespace lockstep::net
