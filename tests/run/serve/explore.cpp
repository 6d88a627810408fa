#include "run/serve/explore.h"

#include <deque>
#include <random>
#include <unordered_map>
#include <vector>

#include "base/index.h"
#include "lockstep/error.h"

namespace lockstep::run {
namespace {

using Kind = Happening::Kind;

struct Origin {
  uint64_t before;  // hash
  Happening happening;
};
using Origins = std::unordered_map<uint64_t, Origin>;

std::string history(const Origins& origins, uint64_t first, uint64_t last) {
  std::vector<Happening> backward;
  for (uint64_t hash = last; hash != first;) {
    const Origin& origin = origins.at(hash);
    backward.push_back(origin.happening);
    hash = origin.before;
  }
  std::string text;
  for (size_t i = backward.size(); i-- > 0;) text += describe(backward[i]) + '\n';
  return text;
}

}  // namespace

Found explore(const Scene& scene) {
  Found found;
  const World start(scene);
  const uint64_t first = start.hash();
  std::deque<std::pair<uint64_t, World>> frontier{{first, start}};
  Origins origins{{first, {}}};
  while (!frontier.empty()) {
    const auto [hash, world] = std::move(frontier.front());
    frontier.pop_front();
    ++found.states;
    std::string last;
    try {
      bool ends = true;
      for (const Happening& happening : world.candidates()) {
        last = describe(happening) + '\n';
        World after = world;
        if (!after.happen(happening)) continue;
        ends = false;
        const uint64_t hash_after = after.hash();
        if (origins.try_emplace(hash_after, Origin{hash, happening}).second)
          frontier.emplace_back(hash_after, std::move(after));
      }
      last.clear();
      if (!ends) continue;
      ++found.ends;
      world.check_end();
    } catch (const Error& error) {
      found.wrong = history(origins, first, hash) + last + error.what();
      return found;
    }
  }
  return found;
}

Found wander(const Scene& scene, uint64_t seed) {
  Found found;
  std::mt19937_64 random(seed);
  const auto draw = [&](size_t count) { return static_cast<size_t>(random() % count); };
  const auto delays = [&](size_t count) {
    std::vector<size_t> all(count);
    for (size_t& delay : all) delay = 1 + draw(3) * draw(8);
    return all;
  };
  const std::vector<size_t> workers = delays(static_cast<size_t>(scene.terms.workers));
  const std::vector<size_t> servers = delays(scene.terms.ranges.size());
  const auto delay = [&](const Happening& happening) {
    return (happening.worker < 0 ? 1 : nth(workers, happening.worker)) *
           (happening.server < 0 ? 1 : nth(servers, happening.server));
  };
  World world(scene);
  try {
    for (std::vector<Happening> candidates = world.candidates(); !candidates.empty();) {
      const size_t i = draw(candidates.size());
      const Happening happening = candidates[i];
      const bool is_rare = happening.kind == Kind::worker_dies || happening.kind == Kind::stop_is_asked;
      // Others wait for their turn; what is rare need not happen at all.
      if (!is_rare && draw(delay(happening)) != 0) continue;
      if ((is_rare && draw(20'000) != 0) || !world.happen(happening)) {
        candidates.erase(candidates.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      ++found.states;
      candidates = world.candidates();
    }
    ++found.ends;
    world.check_end();
  } catch (const Error& error) {
    found.wrong = "after " + std::to_string(found.states) + " happenings: " + error.what();
  }
  return found;
}

}  // namespace lockstep::run
