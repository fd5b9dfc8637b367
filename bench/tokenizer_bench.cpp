// Encoding, decoding and loading. M3_BENCH_TOKENIZER names a tokenizer.json (or its directory) and M3_BENCH_TEXT a text
// file; tools/tokenizer/bench.py sets both and runs the `tokenizers` package on the same. Without them only the splitting
// of a built-in text is measured.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "src/base/mapped_file.h"
#include "src/tokenizer/known_patterns.h"
#include "src/tokenizer/tokenizer.h"

namespace m3 {
namespace {

std::string sample_text() {
  std::string text;
  while (text.size() < 1'000'000) {
    text +=
        "The Straße's 1234 houses, they'll say: \"Ça va?\" - 今天天气很好!\n\n\tint main() { return x[0] == 0x1F; "
        "}\r\n";
  }
  return text;
}

const std::string& bench_text() {
  static const std::string text = [] {
    const char* path = std::getenv("M3_BENCH_TEXT");
    return path == nullptr ? sample_text() : read_text_file(path, std::size_t{1} << 30);
  }();
  return text;
}

std::string tokenizer_path() {
  const char* path = std::getenv("M3_BENCH_TOKENIZER");
  return path == nullptr ? "" : path;
}

const Tokenizer* bench_tokenizer(benchmark::State& state) {
  static const std::optional<Tokenizer> tokenizer =
      tokenizer_path().empty() ? std::nullopt : std::optional(Tokenizer::load(tokenizer_path()));
  if (!tokenizer) state.SkipWithError("M3_BENCH_TOKENIZER names no tokenizer.json");
  return tokenizer ? &*tokenizer : nullptr;
}

void count_bytes(benchmark::State& state, std::size_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * static_cast<std::int64_t>(bytes));
}

void tokenizer_split(benchmark::State& state) {
  for (auto _ : state) {
    std::size_t pieces = 0;
    for_each_known_piece(KnownPattern::o200k_slash, bench_text(), [&](std::size_t, std::size_t) { ++pieces; });
    benchmark::DoNotOptimize(pieces);
  }
  count_bytes(state, bench_text().size());
}
BENCHMARK(tokenizer_split);

void tokenizer_encode(benchmark::State& state) {
  const Tokenizer* tokenizer = bench_tokenizer(state);
  if (tokenizer == nullptr) return;
  std::size_t tokens = 0;
  for (auto _ : state) tokens = tokenizer->encode(bench_text(), {.parse_special = true}).size();
  count_bytes(state, bench_text().size());
  state.counters["tokens"] = static_cast<double>(tokens);
}
BENCHMARK(tokenizer_encode)->Unit(benchmark::kMillisecond);

// Every piece for the first time: what a short prompt after the start costs for each byte.
void tokenizer_encode_cold(benchmark::State& state) {
  if (bench_tokenizer(state) == nullptr) return;
  const std::string text = bench_text().substr(0, 100'000);
  for (auto _ : state) {
    state.PauseTiming();
    const std::optional<Tokenizer> fresh = Tokenizer::load(tokenizer_path());
    state.ResumeTiming();
    benchmark::DoNotOptimize(fresh->encode(text));
  }
  count_bytes(state, text.size());
}
BENCHMARK(tokenizer_encode_cold)->Unit(benchmark::kMillisecond)->Iterations(5);

void tokenizer_encode_one_letter(benchmark::State& state) {
  const Tokenizer* tokenizer = bench_tokenizer(state);
  if (tokenizer == nullptr) return;
  const std::string text(static_cast<std::size_t>(state.range(0)), 'a');
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer->encode(text));
  count_bytes(state, text.size());
}
BENCHMARK(tokenizer_encode_one_letter)->Arg(1000)->Arg(1'000'000)->Arg(10'000'000)->Unit(benchmark::kMillisecond);

void tokenizer_decode(benchmark::State& state) {
  const Tokenizer* tokenizer = bench_tokenizer(state);
  if (tokenizer == nullptr) return;
  const auto ids = tokenizer->encode(bench_text());
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer->decode(ids));
  count_bytes(state, bench_text().size());
}
BENCHMARK(tokenizer_decode)->Unit(benchmark::kMillisecond);

void tokenizer_load(benchmark::State& state) {
  if (tokenizer_path().empty()) return state.SkipWithError("M3_BENCH_TOKENIZER names no tokenizer.json");
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(tokenizer_path()));
}
BENCHMARK(tokenizer_load)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace m3

BENCHMARK_MAIN();
