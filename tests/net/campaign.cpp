// Tries random models and layouts for as long as it is told:
//   net_campaign --seed 7 --cases 1000 [--first 0] [--gpu] [--seconds 600]
//   net_campaign --case 1234567890        one case, by the seed that a failure prints
//   net_campaign --show 1234567890        its config and layout alone

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "net/case_generator.h"
#include "net/check.h"

namespace lockstep::net {
namespace {

struct Options {
  uint64_t seed = 1;
  int64_t first = 0, cases = 100, seconds = 0;
  bool gpu = false, one = false, show = false, verbose = false;
};

Options parse(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto number = [&] { return i + 1 < count ? std::strtoull(words[++i], nullptr, 0) : 0; };
    if (word == "--seed") options.seed = number();
    if (word == "--first") options.first = static_cast<int64_t>(number());
    if (word == "--cases") options.cases = static_cast<int64_t>(number());
    if (word == "--seconds") options.seconds = static_cast<int64_t>(number());
    if (word == "--verbose") options.verbose = true;
    if (word == "--gpu") options.gpu = true;
    if (word == "--case") options.one = true, options.seed = number();
    if (word == "--show") options.one = options.show = true, options.seed = number();
  }
  return options;
}

std::string described(const Case& test_case) {
  return fmt::format("{}# {}{}{}\n", config_text(test_case), command_of(test_case),
                     test_case.shared_memory ? ", through shared memory" : "",
                     test_case.on_gpu ? ", on the emulated GPU" : "");
}

int run_one(const Options& options) {
  const Case test_case = generate_case(options.seed, {.on_gpu = options.gpu});
  fmt::print("{}", described(test_case));
  if (options.show) return 0;
  const auto finding = check_case(test_case);
  if (!finding) return fmt::print("equal\n"), 0;
  fmt::print("{}: {}\n", name_of(finding->kind), finding->what);
  return 1;
}

int run_many(const Options& options) {
  const auto began = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  int64_t tried = 0, found = 0, compared = 0, tensors = 0, sharp = 0;
  for (int64_t i = options.first; i < options.first + options.cases; ++i) {
    if (options.seconds > 0 && seconds() > static_cast<double>(options.seconds)) break;
    const uint64_t seed = seed_of_case(options.seed, i);
    const Case test_case = generate_case(seed, {.on_gpu = options.gpu});
    ++tried;
    if (options.verbose) fmt::print(stderr, "{} {}\n", i, seed);
    OracleReport oracle;
    const auto finding = check_case(test_case, &oracle);
    compared += oracle.compared ? 1 : 0;
    tensors += oracle.tensor_count;
    sharp += oracle.sharp_tensors;
    if (!finding) continue;
    ++found;
    fmt::print("case {} (number {}), {}: {}: {}\n", seed, i, layout::to_string(test_case.layout),
               name_of(finding->kind), finding->what);
    std::fflush(stdout);
  }
  fmt::print("seed {}: {} cases from {}, {} wrong, {:.1f} s\n", options.seed, tried, options.first, found, seconds());
  fmt::print("{} compared with the oracle, {} tensors, {} of them to a hundredth of their change\n", compared, tensors,
             sharp);
  return found > 0 ? 1 : 0;
}

}  // namespace
}  // namespace lockstep::net

int main(int count, char** words) {
  const auto options = lockstep::net::parse(count, words);
  return options.one ? lockstep::net::run_one(options) : lockstep::net::run_many(options);
}
