// Runs all checks for the instruction sets that are named, or for all that this processor runs.
#include <cstdlib>

#include "check.hpp"
#include "pool.hpp"

namespace modulm {
Pool& pool() { std::abort(); }  // the checks bring their own

std::vector<Check>& Registered::all() {
  static std::vector<Check> checks;
  return checks;
}
}

int main(int count, char** words) {
  using namespace modulm;
  Isas isas;
  std::printf("instruction sets:");
  for (const Isa isa : kIsas) {
    bool is_named = false;
    for (int i = 1; i < count; ++i) is_named |= std::strcmp(words[i], name_of(isa)) == 0;
    if (count == 1 ? !can_run(isa) : !is_named) continue;
    isas.push_back(isa);
    std::printf(" %s", name_of(isa));
  }
  std::printf("\n");
  if (isas.empty()) return 2;
  int failures = 0;
  for (const Check check : Registered::all()) failures += check(isas);
  return failures == 0 ? 0 : 1;
}
