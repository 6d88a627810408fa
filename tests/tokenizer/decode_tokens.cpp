// Writes to the standard output the text that tokens stand for, by lockstep's own decoder:
//   tokenizer_decode TOKENIZER.JSON TOKENS       (unsigned integers of four bytes, without a header)

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "lockstep/error.h"
#include "tokenizer/tokenizer_file.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const auto tokenizer = lockstep::tokenizer::read_tokenizer(argv[1]);
    std::ifstream file(argv[2], std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    std::vector<int32_t> tokens(bytes.size() / sizeof(int32_t));
    std::copy_n(bytes.data(), tokens.size() * sizeof(int32_t), reinterpret_cast<char*>(tokens.data()));
    const std::string text = tokenizer.decode(tokens);
    return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0 ? 0
                                                                                                       : 1;
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 65;
  }
}
