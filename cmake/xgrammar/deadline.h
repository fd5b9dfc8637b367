// Asked for by the parts of xgrammar's compiler that can take long (cmake/M3Xgrammar.cmake).
#pragma once

namespace xgrammar {

// Throws XGrammarError where set_deadline()'s time has come (hooks.h).
void check_deadline();

}  // namespace xgrammar
