#include <numeric>
#include <stdexcept>

#include "fuzz/fuzz.h"
#include "tokenizer/learner.h"
#include "tokenizer/tokenizer_file.h"

namespace lockstep::fuzz {
namespace {

tokenizer::Tokenizer learned() {
  tokenizer::Learner learner;
  learner.read("the cat and the hat and the bat that sat");
  return learner.learn(264);
}

}  // namespace

std::vector<std::string> seeds() {
  return {to_json(learned()), to_json(tokenizer::Tokenizer::of_characters("abc \n")),
          "#version: 0.2\n\xc4\xa0 t\nt h\nth e\n"};
}

void parse(std::string_view bytes) {
  const bool is_json = bytes.starts_with('{');
  const tokenizer::Tokenizer read = is_json ? tokenizer::tokenizer_from_json(bytes, "input")
                                            : tokenizer::tokenizer_from_merges(bytes, "input");
  std::vector<int32_t> all(static_cast<size_t>(read.size()));
  std::iota(all.begin(), all.end(), 0);
  const std::string text = read.decode(all);
  if (read.decode(read.encode(text)) != text) throw std::logic_error("a text is encoded as another one");
}

}  // namespace lockstep::fuzz
