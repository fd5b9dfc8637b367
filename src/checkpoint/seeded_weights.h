// "m3 seeded weights v1": weights and token ids as a pure function of (seed, tensor name, element index), bit-equal
// to tools/goldens/seeded_weights.py, so that a test case stores no weights.
//
//   key(name)  = fnv1a64(name) xor (seed · G mod 2^64)              G = 0x9E3779B97F4A7C15
//   z(i)       = splitmix64 finaliser of (key + (i + 1) · G)        i row-major, from 0
//   value(i)   = float(int64(z >> 40) − 2^23) · float(bound / 2^23)
//   bound      = 0.25 for *norm.weight, 0.05 for e_score_correction_bias, sqrt(3) for embed_tokens.weight,
//                sqrt(3 / K) for every other matrix [N, K] and vector [K], times the gain of the name's suffix where one is given
//   centre     = 1 for the weights of the vision tower's layer norms, added in fp32; 0 for all else
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/random_fill.h"

namespace m3 {

// Gains by a suffix of whole components ("lm_head.weight"); at most one may match a name.
using SeededGains = std::map<std::string, double>;

std::uint64_t seeded_key(std::string_view name, std::uint64_t seed);

// The bound of a published tensor name; `columns` is the matrix's K (any for the named exceptions).
double seeded_bound(std::string_view name, std::int64_t columns, const SeededGains& gains = {});

float seeded_centre(std::string_view name);

// Whether the tensor stays F32 (router gate, correction bias, patch embedding); all others are BF16.
bool seeded_stays_float(std::string_view name);

std::vector<std::int32_t> seeded_tokens(std::uint64_t seed, std::int64_t count, int vocab_size);

}  // namespace m3
