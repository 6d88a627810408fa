#include "fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "lockstep/error.h"

namespace lockstep::fuzz {

const std::string& file_of(std::string_view bytes) {
  static const int file = memfd_create("input", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (ftruncate(file, 0) != 0 ||
      pwrite(file, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    std::perror("fuzz: cannot write the input to memory");
    std::abort();
  }
  return path;
}

namespace {

/// The option --write-seeds=FOLDER: writes them, and ends.
void write_seeds(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const std::string& seed : seeds()) {
    std::ofstream file(folder / ("seed-" + std::to_string(number++)), std::ios::binary);
    file.write(seed.data(), static_cast<std::streamsize>(seed.size()));
    file.close();
    // A seed that is refused would leave most of the parser unseen.
    parse(seed);
  }
  std::exit(0);
}

}  // namespace
}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  constexpr std::string_view kOption = "--write-seeds=";
  for (int i = 1; i < *count; ++i)
    if (const std::string_view argument = (*arguments)[i]; argument.starts_with(kOption))
      lockstep::fuzz::write_seeds(argument.substr(kOption.size()));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  try {
    lockstep::fuzz::parse({reinterpret_cast<const char*>(bytes), size});
  } catch (const lockstep::InternalError& error) {
    throw;  // "should not happen" did
  } catch (const lockstep::Error&) {
  }
  return 0;
}
