// What constraints cost: compiling them, and a mask for every token at batch 1, 16 and 64 (processor time of a thread),
// the first visit of every state included.
//   constraint_masks [TOKENIZER [SECONDS [FORWARD]]]     TOKENIZER: a tokenizer.json, or a folder with one; a vocabulary
//   without M3's markers gets them. FORWARD: milliseconds of the forward pass beside which masks are computed.
// With a checkpoint's folder as TOKENIZER it also decodes 16 replies with and without a constraint.
#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "m3/engine.h"
#include "src/chat/messages.h"
#include "src/chat/reply_rules.h"
#include "src/chat/template/json.h"
#include "src/engine/constraint.h"

namespace {

using m3::Constraint;
using m3::TokenId;
using Clock = std::chrono::steady_clock;

// This thread's processor time: masks are computed by one thread, and a busy machine shall not count.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double since(Clock::time_point begun) { return std::chrono::duration<double>(Clock::now() - begun).count(); }

struct Subject {
  std::string name;
  Constraint constraint;
};

const char* const schema_text = R"({"type": "object", "properties": {
  "title": {"type": "string"}, "year": {"type": "integer", "minimum": 1900, "maximum": 2100},
  "rating": {"type": "number", "minimum": 0, "maximum": 10}, "genre": {"enum": ["drama", "comedy", "other"]},
  "cast": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "role": {"type": "string"}},
  "required": ["name", "role"]}}, "summary": {"type": "string", "maxLength": 400}},
  "required": ["title", "year", "genre", "cast", "summary"]})";

std::vector<Subject> subjects(const m3::Tokenizer& tokenizer) {
  const auto request_of = [&](const std::string& fields) {
    const m3::chat::Value body =
        m3::chat::parse_json(R"({"messages": [{"role": "user", "content": "x"}], )" + fields + "}", "body");
    m3::Request request;
    m3::chat::apply_reply_rules(body, m3::chat::parse_chat_request(body), tokenizer, request);
    return request.constraint;
  };
  std::string tools = R"("thinking": {"type": "disabled"}, "tool_choice": "required", "tools": [)";
  for (int i = 0; i < 50; ++i) {
    tools += fmt::format(R"({}{{"type": "function", "function": {{"name": "tool_{}", "parameters": {}}}}})",
                         i > 0 ? ", " : "", i, schema_text);
  }
  return {{"json_object", {Constraint::Kind::json_object, {}, {}}},
          {"json_schema, 8 properties", {Constraint::Kind::json_schema, schema_text, {}}},
          {"a call of one of 50 tools", request_of(tools + "]")},
          {"regex, a date", {Constraint::Kind::regex, "[0-9]{4}-[0-9]{2}-[0-9]{2}", {}}}};
}

// Random tokens that the masks allow; a text that ends begins anew.
struct Walk {
  m3::engine::ConstraintMatcher matcher;
  std::mt19937 random;
};

// `forward`: seconds that a forward pass takes, which masks are computed beside; accepting a token comes behind it.
void measure(const m3::engine::Constraints& constraints, const m3::engine::CompiledConstraint& compiled,
             const std::string& name, double seconds, double forward) {
  const auto words_count = static_cast<std::size_t>(constraints.vocab_size() + 31) / 32;
  for (const int batch : {1, 16, 64}) {
    std::vector<Walk> walks;
    for (int i = 0; i < batch; ++i)
      walks.push_back({constraints.matcher(compiled), std::mt19937(static_cast<unsigned>(i))});
    std::vector<std::uint32_t> words(words_count);
    std::vector<double> times;
    double accepting = 0, waiting = 0;
    const auto begun = Clock::now();
    while (since(begun) < seconds || times.size() < 50) {
      double step = 0;
      for (Walk& walk : walks) {
        const double fill_begun = thread_seconds();
        walk.matcher.fill(words);
        times.push_back(thread_seconds() - fill_begun);
        step += times.back();
        // One of the allowed tokens, found from a random place on.
        const std::size_t from = walk.random() % words_count;
        TokenId token = -1;
        for (std::size_t i = 0; i < words_count && token < 0; ++i) {
          const std::size_t word = (from + i) % words_count;
          if (words[word] != 0)
            token = static_cast<TokenId>(word * 32 + static_cast<std::size_t>(__builtin_ctz(words[word])));
        }
        const double accept_begun = thread_seconds();
        const bool accepted = token >= 0 && walk.matcher.accept(token);
        accepting += thread_seconds() - accept_begun;
        if (!accepted || walk.matcher.is_finished()) walk.matcher = constraints.matcher(compiled);
      }
      waiting += std::max(0.0, step - forward);
    }
    const auto count = static_cast<double>(times.size());
    double filling = 0;
    for (const double time : times) filling += time;
    std::ranges::sort(times);
    fmt::print("{:<28} {:>5}  {:>8.1f}  {:>8.1f}  {:>8.1f}  {:>10.1f}  {:>8.1f}  {:>8.1f}\n", name, batch,
               filling / count * 1e6, times[times.size() / 2] * 1e6, times[times.size() * 99 / 100] * 1e6,
               times.back() * 1e6, accepting / count * 1e6, (accepting + waiting) / count * 1e6);
    std::fflush(stdout);
  }
}

// A tokenizer that has M3's markers: a copy beside it in a temporary folder where it lacks them.
m3::Tokenizer load(const std::string& path) {
  const m3::Tokenizer tokenizer = m3::Tokenizer::load(path);
  if (tokenizer.id_of("]<]minimax[>[") >= 0) return tokenizer;
  std::filesystem::path file = path;
  if (std::filesystem::is_directory(file)) file /= "tokenizer.json";
  nlohmann::json json = nlohmann::json::parse(std::ifstream(file));
  std::int64_t id = tokenizer.vocab_size();
  for (const char* text :
       {"]~b]", "[e~[", "]~!b[", "<tool_call>", "</tool_call>", "]<]minimax[>[", "<mm:think>", "</mm:think>"}) {
    json["added_tokens"].push_back({{"id", id++},
                                    {"content", text},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  }
  const std::filesystem::path copy = std::filesystem::temp_directory_path() / fmt::format("m3-masks-{}.json", getpid());
  std::ofstream(copy) << json.dump();
  const m3::Tokenizer with_markers = m3::Tokenizer::load(copy.string());
  std::filesystem::remove(copy);
  return with_markers;
}

double decode_seconds(m3::Engine& engine, const Constraint& constraint, int replies, std::int64_t tokens) {
  int open = replies;
  std::mutex mutex;
  std::condition_variable done;
  const m3::Statistics before = engine.statistics();
  for (int i = 0; i < replies; ++i) {
    m3::Request request;
    request.prompt = "Once upon a time";
    request.sampling.seed = static_cast<std::uint64_t>(i);
    request.sampling.temperature = 1.0f;
    request.max_tokens = tokens;
    request.constraint = constraint;
    if (constraint.kind == Constraint::Kind::none) request.ignore_eos = true;
    engine.submit(std::move(request), [&](const m3::Event& event) {
      if (event.finish == m3::FinishReason::none) return;
      const std::lock_guard lock(mutex);
      if (--open == 0) done.notify_one();
    });
  }
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return open == 0; });
  const m3::Statistics after = engine.statistics();
  return (after.step_seconds - before.step_seconds) / static_cast<double>(after.steps - before.steps);
}

void run(const std::string& path, double seconds, double forward) {
  const m3::Tokenizer tokenizer = load(path);
  const auto begun = Clock::now();
  m3::engine::Constraints constraints(tokenizer, tokenizer.vocab_size(), {tokenizer.id_of("[e~[")});
  constraints.compile({Constraint::Kind::choice, {}, {"x"}})->wait();
  fmt::print("{}: {} tokens; the vocabulary is ready in {:.2f} s, once\n", path, tokenizer.vocab_size(), since(begun));
  fmt::print(
      "Microseconds a token: a mask, its median, 99 % and worst; taking the drawn token; and what both add to a "
      "step beside a forward pass of {:.1f} ms\n",
      forward * 1e3);
  fmt::print("{:<28} {:>5}  {:>8}  {:>8}  {:>8}  {:>10}  {:>8}  {:>8}\n", "constraint", "batch", "mask", "median",
             "99 %", "worst", "accept", "added");
  for (const Subject& subject : subjects(tokenizer)) {
    const auto compiled = constraints.compile(subject.constraint);
    compiled->wait();
    if (compiled->state() == m3::engine::CompiledConstraint::State::failed) {
      fmt::print("{:<28} {}\n", subject.name, compiled->error());
      continue;
    }
    fmt::print("{:<28} compiled in {:.3f} s, {:.1f} MiB\n", subject.name, compiled->seconds(),
               static_cast<double>(compiled->bytes()) / (1 << 20));
    measure(constraints, *compiled, subject.name, seconds, forward);
  }
  if (!std::filesystem::exists(std::filesystem::path(path) / "config.json")) return;
  m3::EngineOptions options;
  options.checkpoint = path;
  options.max_model_len = 512;
  options.max_num_seqs = 16;
  const auto engine = m3::Engine::load(options);
  const Constraint schema{Constraint::Kind::regex, "[a-z ,.]{400}", {}};
  const Constraint object{Constraint::Kind::json_schema, R"({"type": "string", "minLength": 2000})", {}};
  decode_seconds(*engine, {}, 16, 64);
  // The fastest round counts: other work on a machine only slows.
  constexpr int rounds = 12;
  double plain = 1e9, masked_regex = 1e9, masked_json = 1e9;
  for (int round = 0; round < rounds; ++round) {
    plain = std::min(plain, decode_seconds(*engine, {}, 16, 64));
    masked_regex = std::min(masked_regex, decode_seconds(*engine, schema, 16, 64));
    masked_json = std::min(masked_json, decode_seconds(*engine, object, 16, 64));
  }
  fmt::print(
      "a step of 16 replies, {}, fastest of {} rounds: {:.3f} ms without a constraint; under a regex {:.3f} ms "
      "({:+.1f} "
      "%), under a schema {:.3f} ms ({:+.1f} %)\n",
      engine->info().backend, rounds, plain * 1e3, masked_regex * 1e3, (masked_regex / plain - 1) * 100,
      masked_json * 1e3, (masked_json / plain - 1) * 100);
}

}  // namespace

int main(int count, char** arguments) {
  try {
    run(count > 1 ? arguments[1] : "models/m3-tiny-chat", count > 2 ? std::stod(arguments[2]) : 1.0,
        (count > 3 ? std::stod(arguments[3]) : 5.0) * 1e-3);
  } catch (const std::exception& error) {
    fmt::print(stderr, "constraint_masks: {}\n", error.what());
    return 1;
  }
}
