#include "data/allocation_counter.h"

#include <cstdlib>
#include <new>

namespace lockstep::test {

std::atomic<int64_t> allocation_count{0};

}  // namespace lockstep::test

void* operator new(size_t size) {
  ++lockstep::test::allocation_count;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
