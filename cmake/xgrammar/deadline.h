// Asked for by the parts of xgrammar's compiler and matcher that can take long (cmake/M3Xgrammar.cmake).
#pragma once

#include <cstdint>

namespace xgrammar {

// Throws XGrammarError where set_deadline()'s time has come (hooks.h).
void check_deadline();

// What this thread may still do (WorkLimit in hooks.h).
extern __thread std::int64_t work_left;
[[noreturn]] void work_is_spent();

inline void count_work(std::int64_t units) {
  if ((work_left -= units) < 0) work_is_spent();
}

}  // namespace xgrammar
