#include "src/ops/host/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace m3::ops {

namespace {

constexpr float lowest = -std::numeric_limits<float>::infinity();

// Descending by value, ties by the lower id.
bool ahead(const Candidate& a, const Candidate& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }
bool by_id(const Candidate& a, const Candidate& b) { return a.id < b.id; }

// Calls apply(id, times) once for every different id of the histories. Counts are zero before and after.
template <typename Apply>
void for_each_counted(std::initializer_list<std::span<const std::int32_t>> histories, std::size_t vocab,
                      std::uint32_t* counts, const Apply& apply) {
  for (const auto history : histories) {
    for (const std::int32_t id : history) {
      if (id >= 0 && static_cast<std::size_t>(id) < vocab) ++counts[id];
    }
  }
  for (const auto history : histories) {
    for (const std::int32_t id : history) {
      if (id < 0 || static_cast<std::size_t>(id) >= vocab || counts[id] == 0) continue;
      apply(static_cast<std::size_t>(id), counts[id]);
      counts[id] = 0;
    }
  }
}

void penalise(std::span<float> logits, const SamplingRow& row, std::uint32_t* counts) {
  if (row.repetition_penalty != 1) {
    for_each_counted({row.prompt_ids, row.output_ids}, logits.size(), counts, [&](std::size_t id, std::uint32_t) {
      logits[id] = logits[id] > 0 ? logits[id] / row.repetition_penalty : logits[id] * row.repetition_penalty;
    });
  }
  if (row.presence_penalty != 0 || row.frequency_penalty != 0) {
    for_each_counted({row.output_ids}, logits.size(), counts, [&](std::size_t id, std::uint32_t times) {
      logits[id] -= row.presence_penalty + row.frequency_penalty * static_cast<float>(times);
    });
  }
  for (const SamplingRow::Bias& bias : row.logit_bias) {
    if (bias.id >= 0 && static_cast<std::size_t>(bias.id) < logits.size()) {
      logits[static_cast<std::size_t>(bias.id)] += bias.value;
    }
  }
}

// Words of `allowed` may end before the vocabulary does: ids past them are not allowed.
void mask(std::span<float> logits, std::span<const std::uint32_t> allowed) {
  for (std::size_t word = 0; word * 32 < logits.size(); ++word) {
    const std::uint32_t bits = word < allowed.size() ? allowed[word] : 0;
    if (bits == 0xffffffffu) continue;
    const std::size_t end = std::min(logits.size(), word * 32 + 32);
    for (std::size_t id = word * 32; id < end; ++id) {
      if ((bits >> (id % 32) & 1u) == 0) logits[id] = lowest;
    }
  }
}

bool drawable(float logit) { return std::abs(logit) <= std::numeric_limits<float>::max(); }

std::int32_t largest(std::span<const float> logits) {
  // Eight independent maxima, so that the compiler vectorises; then the first id that holds the maximum.
  constexpr std::size_t lanes = 8;
  std::array<float, lanes> best;
  best.fill(lowest);
  std::size_t id = 0;
  for (; id + lanes <= logits.size(); id += lanes) {
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const float value = logits[id + lane];
      best[lane] = (value > best[lane]) & (value <= std::numeric_limits<float>::max()) ? value : best[lane];
    }
  }
  float maximum = *std::max_element(best.begin(), best.end());
  for (; id < logits.size(); ++id) {
    if (drawable(logits[id]) && logits[id] > maximum) maximum = logits[id];
  }
  if (maximum == lowest) return -1;
  for (id = 0; id < logits.size(); ++id) {
    if (logits[id] == maximum) break;
  }
  return static_cast<std::int32_t>(id);
}

// The `k` highest of the row, ties to the lower id, in no particular order.
std::span<Candidate> take_top(std::span<const float> logits, std::size_t k, Candidate* candidates) {
  std::size_t count = 0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (!drawable(logits[id])) continue;
    const Candidate entry{logits[id], static_cast<std::int32_t>(id)};
    if (count < k) {
      candidates[count++] = entry;
      // A heap with the last one in front, unless the whole row is taken: then ids stay ascending.
      if (count == k && k < logits.size()) std::make_heap(candidates, candidates + count, ahead);
    } else if (entry.value > candidates[0].value) {
      std::pop_heap(candidates, candidates + count, ahead);
      candidates[count - 1] = entry;
      std::push_heap(candidates, candidates + count, ahead);
    }
  }
  return {candidates, count};
}

// The shortest run from the highest weight down whose sum reaches top_p of the whole; at least one.
std::span<Candidate> take_nucleus(std::span<Candidate> candidates, float top_p) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.value;
  // Weights below this sum to less than the part that may be left out, so the run ends before them.
  const double least = (1 - double{top_p}) * total / static_cast<double>(candidates.size());
  const auto end = std::remove_if(candidates.begin(), candidates.end(),
                                  [&](const Candidate& candidate) { return candidate.value < least; });
  candidates = candidates.first(static_cast<std::size_t>(end - candidates.begin()));
  const auto behind = [](const Candidate& a, const Candidate& b) { return ahead(b, a); };
  std::make_heap(candidates.begin(), candidates.end(), behind);
  double sum = 0;
  std::size_t remaining = candidates.size();
  while (remaining > 0) {
    std::pop_heap(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(remaining), behind);
    sum += candidates[--remaining].value;
    if (sum >= double{top_p} * total) break;
  }
  return candidates.subspan(remaining);
}

}  // namespace

double uniform_draw(std::uint64_t seed, std::uint32_t sample, std::int64_t position) {
  const auto place = static_cast<std::uint64_t>(position);
  std::array<std::uint32_t, 4> counter = {static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(place >> 32),
                                          sample, 0};
  std::array<std::uint32_t, 2> key = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  const std::uint64_t bits = (std::uint64_t{counter[0]} << 32 | counter[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

std::int32_t sample_row(std::span<float> logits, const SamplingRow& row, const SamplerScratch& scratch) {
  penalise(logits, row, scratch.counts);
  if (!row.allowed.empty()) mask(logits, row.allowed);
  const std::int32_t best = largest(logits);
  if (best < 0 || row.temperature <= 0) return best;

  const std::size_t k = row.top_k > 0 ? std::min(logits.size(), static_cast<std::size_t>(row.top_k)) : logits.size();
  std::span<Candidate> candidates = take_top(logits, k, scratch.candidates);
  const float maximum = logits[static_cast<std::size_t>(best)];
  for (Candidate& candidate : candidates) candidate.value = std::exp((candidate.value - maximum) / row.temperature);
  if (row.top_p < 1) candidates = take_nucleus(candidates, row.top_p);
  if (row.min_p > 0) {  // the highest weight is exp(0) = 1
    const auto end = std::remove_if(candidates.begin(), candidates.end(),
                                    [&](const Candidate& candidate) { return candidate.value < row.min_p; });
    candidates = candidates.first(static_cast<std::size_t>(end - candidates.begin()));
  }
  if (row.top_k > 0 || row.top_p < 1) std::sort(candidates.begin(), candidates.end(), by_id);

  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.value;
  double remaining = uniform_draw(row.seed, row.sample, row.position) * total;
  std::int32_t drawn = best;
  for (const Candidate& candidate : candidates) {
    if (candidate.value <= 0) continue;
    drawn = candidate.id;
    remaining -= candidate.value;
    if (remaining < 0) break;
  }
  return drawn;
}

}  // namespace m3::ops
