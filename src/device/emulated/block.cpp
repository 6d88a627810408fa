#include "device/emulated/block.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <numeric>
#include <vector>

#include "base/ensure.h"
#include "base/index.h"
#include "lockstep/error.h"

namespace lockstep::device::emulated {
namespace {

constexpr int kWarp = 32;
constexpr size_t kStackBytes = 64 * 1024;

enum class Wait { none, block, warp };

struct Copy {
  void* to;
  const void* from;
  size_t size_bytes;
  int group;

  void run() const {
    if (from == nullptr) {
      std::memset(to, 0, size_bytes);
    } else {
      std::memcpy(to, from, size_bytes);
    }
  }
};

/// One thread of a block, and of later blocks: starting a stack is what costs most. From its start on it
/// changes places by setjmp and longjmp, which make no system calls.
struct Fiber {
  Thread thread;
  int number = 0;
  bool started = false, finished = false;
  Wait wait = Wait::none;
  unsigned mask = 0;  // of the lanes it waits for
  uint64_t exchanges =
      0;  // how often it gave a value: two slots alternate, so that one meeting each suffices
  std::vector<Copy> copies;  // that wait to be waited for
  int copies_started = 0, copy_groups = 0;
  jmp_buf place;
  ucontext_t context;
  std::unique_ptr<std::byte[]> stack;
};

struct Warp {
  WordsOfWarp slots[2];
};

class Runner {
 public:
  Block block;
  std::deque<Fiber> pool;      // as many as any block so far had threads
  std::vector<Fiber*> fibers;  // those of the running block
  std::vector<Warp> warps;
  std::vector<std::byte> shared;
  Fiber* current = nullptr;
  const std::function<void()>* kernel = nullptr;
  std::exception_ptr error;
  jmp_buf scheduler;

  void run_block(unsigned turn);
  void yield(Wait wait, unsigned mask) {
    current->wait = wait;
    current->mask = mask;
    if (_setjmp(current->place) == 0) _longjmp(scheduler, 1);
  }

 private:
  void resume(Fiber& fiber);
  bool release();
};

thread_local Runner* runner = nullptr;

void start_fiber() {
  while (true) {
    try {
      (*runner->kernel)();
    } catch (...) {
      runner->error = std::current_exception();
    }
    runner->current->finished = true;
    if (_setjmp(runner->current->place) == 0) _longjmp(runner->scheduler, 1);
  }
}

void Runner::resume(Fiber& fiber) {
  current = &fiber;
  if (_setjmp(scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, start_fiber, 0);
  setcontext(&fiber.context);
}

/// Lets go on whoever has met everyone that it waits for.
bool Runner::release() {
  bool any = false, all_at_block = true;
  for (const auto* fiber : fibers)
    all_at_block = all_at_block && (fiber->finished || fiber->wait == Wait::block);
  if (all_at_block) {
    for (auto* fiber : fibers)
      if (!fiber->finished) fiber->wait = Wait::none, any = true;
    return any;
  }
  for (size_t first = 0; first < fibers.size(); first += kWarp) {
    const size_t last = std::min(first + kWarp, fibers.size());
    for (size_t f = first; f < last; ++f) {
      if (fibers[f]->finished || fibers[f]->wait != Wait::warp) continue;
      const unsigned mask = fibers[f]->mask;
      bool met = true;
      for (size_t g = first; g < last; ++g)
        if (mask >> (g - first) & 1u)
          met = met && (fibers[g]->finished || (fibers[g]->wait == Wait::warp && fibers[g]->mask == mask));
      if (!met) continue;
      for (size_t g = first; g < last; ++g)
        if (mask >> (g - first) & 1u) fibers[g]->wait = Wait::none;
      any = true;
    }
  }
  return any;
}

void Runner::run_block(unsigned turn) {
  for (auto* fiber : fibers) {
    fiber->finished = false;
    fiber->wait = Wait::none;
    fiber->exchanges = 0;
    fiber->copies.clear();
    fiber->copies_started = fiber->copy_groups = 0;
  }
  // Threads take turns in another order each time: a step that is coprime to their number visits all of them.
  const auto count = static_cast<unsigned>(fibers.size());
  for (size_t unfinished = count; unfinished > 0; ++turn) {
    unsigned step = turn * 7 % count + 1;
    while (std::gcd(step, count) != 1) ++step;
    for (unsigned i = 0, at = turn * 13 % count; i < count; ++i, at = (at + step) % count) {
      auto& fiber = *fibers[at];
      if (fiber.finished || fiber.wait != Wait::none) continue;
      resume(fiber);
      if (error) std::rethrow_exception(error);
    }
    unfinished = 0;
    for (const auto* fiber : fibers) unfinished += !fiber->finished;
    if (unfinished > 0 && !release())
      throw InternalError(
          "a kernel's threads wait at different barriers: some of a block or of a warp do not come");
  }
}

}  // namespace

void run_grid(Index blocks, Index threads, size_t shared_bytes, const std::function<void()>& kernel) {
  const size_t count = size_t{threads.x} * threads.y * threads.z;
  ensure(runner == nullptr, "kernels launch no kernels");
  // Kept between launches: stacks are most of the cost.
  static thread_local Runner own;
  Runner& run = own;
  run.kernel = &kernel;
  run.error = nullptr;
  while (run.pool.size() < count)
    run.pool.emplace_back().stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  run.fibers.clear();
  for (size_t f = 0; f < count; ++f) run.fibers.push_back(&run.pool[f]);
  run.warps.resize((count + kWarp - 1) / kWarp);
  run.shared.resize(shared_bytes + 128);
  for (size_t f = 0; f < count; ++f) {
    auto& fiber = run.pool[f];
    fiber.number = static_cast<int>(f);
    const auto n = static_cast<unsigned>(f);
    fiber.thread.thread = {n % threads.x, n / threads.x % threads.y, n / threads.x / threads.y};
  }
  void* aligned = run.shared.data();
  size_t space = run.shared.size();
  run.block.dynamic_shared = static_cast<std::byte*>(std::align(128, shared_bytes, aligned, space));
  run.block.blocks = blocks;
  run.block.threads = threads;
  runner = &run;
  try {
    unsigned turn = 0;
    for (unsigned z = 0; z < blocks.z; ++z)
      for (unsigned y = 0; y < blocks.y; ++y)
        for (unsigned x = 0; x < blocks.x; ++x) {
          run.block.block = {x, y, z};
          // What a block before left there must not be relied on.
          std::fill(run.shared.begin(), run.shared.end(), std::byte{0xff});
          run.run_block(turn++);
        }
  } catch (...) {
    // Whoever was left in the middle starts anew next time.
    for (auto& fiber : run.pool) fiber.started = false;
    runner = nullptr;
    throw;
  }
  runner = nullptr;
}

const Block& current_block() { return runner->block; }
const Thread& current_thread() { return runner->current->thread; }
int lane() { return runner->current->number % kWarp; }
void meet_block() { runner->yield(Wait::block, 0); }
void meet_warp(unsigned mask) { runner->yield(Wait::warp, mask); }

bool in_kernel() { return runner != nullptr; }
void end_kernel(std::exception_ptr error) {
  runner->error = std::move(error);
  runner->current->finished = true;
  _longjmp(runner->scheduler, 1);
}

uint64_t exchange_bits(unsigned mask, uint64_t value, int source) {
  Fiber& fiber = *runner->current;
  auto& slots = nth(runner->warps, fiber.number / kWarp).slots[fiber.exchanges++ % 2];
  nth(slots, lane())[0] = value;
  meet_warp(mask);
  ensure(source >= 0 && source < kWarp && (mask >> source & 1u),
         "a thread asks for the value of a lane that gives none");
  return nth(slots, source)[0];
}

const WordsOfWarp& exchange_words(const Words& words) {
  Fiber& fiber = *runner->current;
  auto& slots = nth(runner->warps, fiber.number / kWarp).slots[fiber.exchanges++ % 2];
  nth(slots, lane()) = words;
  meet_warp(~0u);
  return slots;
}

void start_copy(void* to, const void* from, size_t size_bytes) {
  Fiber& fiber = *runner->current;
  const Copy copy{to, from, size_bytes, fiber.copy_groups};
  if ((fiber.number + fiber.copies_started++) % 2 == 0) {
    copy.run();
  } else {
    fiber.copies.push_back(copy);
  }
}

void end_group_of_copies() { ++runner->current->copy_groups; }

void wait_for_copies(int groups_left) {
  Fiber& fiber = *runner->current;
  std::erase_if(fiber.copies, [&](const Copy& copy) {
    const bool due = copy.group < fiber.copy_groups - groups_left;
    if (due) copy.run();
    return due;
  });
}

}  // namespace lockstep::device::emulated
