// What this program adds to xgrammar's core (hooks.cpp).
#pragma once

#include <xgrammar/compiler.h>

#include <functional>
#include <string>

namespace xgrammar {

// The last warning of this thread since it was cleared: it says that a part of a grammar is ignored.
std::string& last_warning();

// Computes a grammar's masks, state by state, as long as `go_on` says so; the others are computed when they are needed.
void fill_mask_cache(const CompiledGrammar& grammar, const std::function<bool()>& go_on);

// States of the grammar's automata: what its masks cost is proportional to them.
std::size_t count_states(const CompiledGrammar& grammar);

}  // namespace xgrammar
