// Many clients at once on the checkpoint that ships: every greedy reply equals the one computed alone, whatever the
// others do (streaming, leaving, sending rubbish, reading slowly), and nothing grows.
//
// 30 seconds with 64 clients; `make load-test` runs ten minutes of it (M3_LOAD_SECONDS, M3_LOAD_CLIENTS).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "tests/support/test_server.h"

namespace m3::server {
namespace {

using test::HttpClient;
using test::HttpResponse;
using test::Json;
using test::TestServer;
using test::under_sanitizer;

int setting(const char* name, int otherwise) {
  const char* given = std::getenv(name);
  return given != nullptr ? std::atoi(given) : otherwise;
}

std::size_t descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

std::size_t resident_megabytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096 >> 20;
}

const std::vector<std::string> beginnings = {
    "Once upon a time",        "The old man looked at the sea and", "\"Come here,\" said", "It was a dark night when",
    "The captain of the ship", "In the garden there was",           "She had never seen",  "My dear friend, I write"};

struct Case {
  std::string path;
  Json body;
  std::string expected;
};

// The text of a reply to either API, thoughts included.
std::string text_of(const std::string& reply) {
  const Json choice = Json::parse(reply).at("choices").at(0);
  if (choice.contains("text")) return choice["text"];
  const Json& part = choice.contains("delta") ? choice["delta"] : choice["message"];
  std::string text;
  for (const char* name : {"reasoning_content", "content"}) {
    if (part.contains(name) && part[name].is_string()) text += part[name].get<std::string>();
  }
  return text;
}

std::string text_of(const HttpResponse& response, bool stream) {
  if (!stream) return text_of(response.body);
  std::string text;
  for (const std::string& event : response.events()) {
    if (event != "[DONE]") text += text_of(event);
  }
  return text;
}

// A sanitizer makes tokens many times dearer.
constexpr unsigned longest_reply = under_sanitizer ? 16 : 90, longest_prompt = under_sanitizer ? 60 : 300;

// Prompts and lengths at random, each computed alone: greedy, or with a seed.
std::vector<Case> make_cases(const TestServer& server) {
  std::mt19937 random(5);
  std::vector<Case> cases;
  for (std::size_t i = 0; i < 32; ++i) {
    Case one;
    const bool chat = i % 4 == 3;
    one.path = chat ? "/v1/chat/completions" : "/v1/completions";
    one.body = {{"max_tokens", 1 + random() % longest_reply}, {"temperature", 0}};
    if (i % 3 == 2) one.body.update({{"temperature", 1}, {"seed", 17 + i}});
    std::string prompt = beginnings[random() % beginnings.size()];
    for (std::size_t words = random() % 3 == 0 ? random() % longest_prompt : 0; words > 0; --words) prompt += " and on";
    if (chat) {
      one.body["messages"] = {{{"role", "user"}, {"content", prompt}}};
    } else {
      one.body["prompt"] = prompt;
    }
    one.expected = text_of(server.json(one.path, one.body).dump());
    cases.push_back(std::move(one));
  }
  return cases;
}

struct Counts {
  std::atomic<int> whole = 0, left = 0, refused = 0;
};

// One visit of one client.
void visit(const TestServer& server, const std::vector<Case>& cases, std::mt19937& random, Counts& counts) {
  Case one = cases[random() % cases.size()];
  const bool stream = random() % 2 == 0;
  one.body["stream"] = stream;
  switch (random() % 8) {
    case 0: {  // leaves in the middle
      HttpClient client = server.connect();
      one.body["stream"] = true;
      one.body["max_tokens"] = 500;
      client.send(test::request_bytes("POST", one.path, one.body.dump()));
      client.receive_head();
      for (unsigned i = random() % 4; i > 0; --i) client.next_event();
      ++counts.left;
      return;
    }
    case 1: {  // sends rubbish
      const std::string bodies[] = {"{", "{\"prompt\": 5}", "{\"prompt\": \"a\", \"n\": 0}", "\xff\xfe"};
      const HttpResponse response = server.connect().request("POST", "/v1/completions", bodies[random() % 4]);
      EXPECT_EQ(response.status, 400);
      ++counts.refused;
      return;
    }
    case 2: {  // reads slowly
      HttpClient client = server.connect(test::patience, 4096);
      one.body["stream"] = true;
      client.send(test::request_bytes("POST", one.path, one.body.dump()));
      ASSERT_EQ(client.receive_head().status, 200);
      std::string text;
      while (const auto event = client.next_event()) {
        if (*event == "[DONE]") break;
        text += text_of(*event);
        std::this_thread::sleep_for(std::chrono::milliseconds(random() % 10));
      }
      EXPECT_EQ(text, one.expected);
      ++counts.whole;
      return;
    }
    default: {
      const HttpResponse response = server.post(one.path, one.body);
      ASSERT_EQ(response.status, 200) << response.body;
      EXPECT_TRUE(response.whole);
      EXPECT_EQ(text_of(response, stream), one.expected);
      ++counts.whole;
    }
  }
}

TEST(Load, NothingIsLostOrMixed) {
  const int seconds = setting("M3_LOAD_SECONDS", 30), clients = setting("M3_LOAD_CLIENTS", 64);
  EngineOptions engine;
  engine.max_num_seqs = 24;  // fewer than clients, so that some wait
  engine.cache_bytes = setting("M3_LOAD_CACHE_MB", 48) * (std::int64_t{1} << 20);  // so little that some are pre-empted
  TestServer server({}, engine);
  const std::vector<Case> cases = make_cases(server);
  EXPECT_TRUE(test::eventually([&] { return server.server().generations().size() == 0; }));
  const std::size_t descriptors_before = descriptors();
  Counts counts;
  const auto start = std::chrono::steady_clock::now();
  const auto half = start + std::chrono::milliseconds(500 * seconds), end = start + std::chrono::seconds(seconds);
  std::atomic<std::size_t> half_memory = 0;
  std::vector<std::thread> threads;
  std::vector<int> visits(static_cast<std::size_t>(clients));
  for (int i = 0; i < clients; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<unsigned>(i));
      do {
        visit(server, cases, random, counts);
        ++visits[static_cast<std::size_t>(i)];
        if (half_memory == 0 && std::chrono::steady_clock::now() > half) half_memory = resident_megabytes();
      } while (std::chrono::steady_clock::now() < end && !testing::Test::HasFailure());
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_TRUE(test::eventually([&] {
    const Statistics now = server.server().model().engine->statistics();
    return now.running == 0 && now.waiting == 0 && now.pages_used == 0;
  }));
  EXPECT_TRUE(test::eventually([&] { return server.server().generations().size() == 0; }));
  EXPECT_TRUE(test::eventually([&] { return descriptors() <= descriptors_before; }))
      << descriptors() << " after " << descriptors_before;
  const std::size_t memory = resident_megabytes();
  // A sanitizer keeps what was freed.
  if (seconds >= 30 && !under_sanitizer) {
    EXPECT_LT(memory, half_memory + half_memory / 20 + 8) << "megabytes, from " << half_memory;
  }
  const auto [least, most] = std::ranges::minmax(visits);
  if (seconds >= 300) {
    const int mean = (counts.whole + counts.left + counts.refused) / clients;
    EXPECT_GT(3 * least, mean) << "a client got less than a third of the others' progress";
  }
  const Statistics statistics = server.server().model().engine->statistics();
  std::printf(
      "load: %d whole, %d left, %d refused in %d s by %d clients (%d to %d visits each); %lld tokens, %lld "
      "pre-emptions; "
      "%zu MB at half, %zu MB; %zu descriptors before, %zu after\n",
      counts.whole.load(), counts.left.load(), counts.refused.load(), seconds, clients, least, most,
      static_cast<long long>(statistics.generated_tokens), static_cast<long long>(statistics.preemptions),
      half_memory.load(), memory, descriptors_before, descriptors());
}

}  // namespace
}  // namespace m3::server
