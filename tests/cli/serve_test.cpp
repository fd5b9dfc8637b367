// m3 serve as a program: what it prints, and how it ends.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <utility>

#include "tests/support/temporary_directory.h"
#include "tests/support/test_server.h"

namespace m3::cli {
namespace {

class Serving {
 public:
  explicit Serving(std::vector<std::string> args, const char* program = M3_PROGRAM) {
    args.insert(args.begin(), {"serve", std::string(M3_MODELS) + "/m3-tiny-chat", "--host", "127.0.0.1", "--port", "0",
                               "--max-model-len", "512", "--max-num-seqs", "4"});
    child_ = ::fork();
    if (child_ != 0) return;
    if (std::freopen((files_ / "stderr").c_str(), "w", stderr) == nullptr) ::_exit(99);
    std::vector<char*> argv = {const_cast<char*>(program)};
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    ::execv(program, argv.data());
    ::_exit(98);
  }
  ~Serving() {
    if (child_ > 0) end(SIGKILL);
  }
  // Nothing before the child has opened its file.
  std::string words() const {
    return std::filesystem::exists(files_ / "stderr") ? test::read_file(files_ / "stderr") : "";
  }
  // 0 if it never was ready.
  std::uint16_t port() const {
    std::string text;
    if (!test::eventually([&] {
          text = words();
          return text.find("ready at ") != std::string::npos;
        }))
      return 0;
    return static_cast<std::uint16_t>(std::stoi(text.substr(text.rfind(':') + 1)));
  }
  int end(int signal) {
    ::kill(child_, signal);
    return wait();
  }
  // For an end of its own.
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(child_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  test::TemporaryDirectory files_;
  pid_t child_ = -1;
};

// The log's lines, which come from several threads and in any order; the others are for people.
std::vector<test::Json> log_lines(const std::string& words) {
  std::vector<test::Json> out;
  std::istringstream lines(words);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('{')) out.push_back(test::Json::parse(line));
  }
  return out;
}

TEST(Serve, StartsAnswersAndEndsWithZero) {
  Serving serving({"--log-format", "json"});
  const std::uint16_t port = serving.port();
  ASSERT_NE(port, 0) << serving.words();
  test::HttpClient client(port);
  const auto reply =
      client.request("POST", "/v1/completions", R"({"prompt": "A secret word", "max_tokens": 3, "temperature": 0})",
                     {"X-Request-Id: test-1"});
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(serving.end(SIGTERM), 0);
  const std::string words = serving.words();
  EXPECT_NE(words.find("context 512 tokens"), std::string::npos) << words;
  EXPECT_EQ(words.find("secret"), std::string::npos) << words;  // no prompt in a log
  const auto lines = log_lines(words);
  const auto logged =
      std::ranges::find_if(lines, [](const test::Json& line) { return line.value("request_id", "") == "test-1"; });
  ASSERT_NE(logged, lines.end()) << words;
  EXPECT_EQ(logged->value("message", ""), "request");
  EXPECT_EQ(logged->value("status", 0), 200);
  EXPECT_TRUE(logged->contains("seconds")) << logged->dump();
}

// Whoever watches the process must see that it ended, and everybody who waits must hear why.
TEST(Serve, EndsWithOneAndALineWhenTheEngineFails) {
  Serving serving({"--log-format", "json"}, M3_FAILING_PROGRAM);
  const std::uint16_t port = serving.port();
  ASSERT_NE(port, 0) << serving.words();
  test::Json body = {{"prompt", {1, 2, 3}}, {"max_tokens", 500}, {"ignore_eos", true}, {"stream", true}};
  test::HttpClient probe(port), streamed(port), waiting(port);
  EXPECT_EQ(probe.request("GET", "/health").status, 200);
  streamed.send(test::request_bytes("POST", "/v1/completions", body.dump()));
  ASSERT_EQ(streamed.receive_head().status, 200);
  body["stream"] = false;
  waiting.send(test::request_bytes("POST", "/v1/completions", body.dump()));
  std::string error;
  while (const auto event = streamed.next_event()) {
    if (event->find("\"error\"") != std::string::npos) error = *event;
  }
  EXPECT_NE(error.find("step 20 is one too many"), std::string::npos) << error;
  EXPECT_GE(waiting.receive().status, 500);
  EXPECT_NE(probe.request("GET", "/health").status, 200);  // 503, or closed already
  EXPECT_EQ(serving.wait(), 1);
  const auto lines = log_lines(serving.words());
  EXPECT_EQ(std::ranges::count_if(lines,
                                  [](const test::Json& line) {
                                    return line.value("level", "") == "error" &&
                                           line.value("message", "") == "the engine failed" &&
                                           line.value("why", "").find("step 20 is one too many") != std::string::npos;
                                  }),
            1)
      << serving.words();
}

TEST(Serve, TakesLaunchScriptsMadeForVllm) {
  Serving serving({"--trust-remote-code",
                   "--dtype",
                   "bfloat16",
                   "--tensor-parallel-size",
                   "1",
                   "--enforce-eager",
                   "--gpu-memory-utilization",
                   "0.5",
                   "--kv-cache-dtype",
                   "auto",
                   "--block-size",
                   "128",
                   "--enable-chunked-prefill",
                   "--enable-prefix-caching",
                   "--enable-auto-tool-choice",
                   "--tool-call-parser",
                   "minimax_m3",
                   "--reasoning-parser",
                   "minimax_m3",
                   "--served-model-name",
                   "M3",
                   "--disable-log-requests",
                   "--enable-expert-parallel",
                   "--attention-backend",
                   "TRITON_ATTN",
                   "-dp",
                   "1",
                   "--max_num_batched_tokens=256",
                   "--kv-cache-memory-bytes",
                   "64M",
                   "--language-model-only",
                   "--uvicorn-log-level",
                   "warning"});
  const std::uint16_t port = serving.port();
  ASSERT_NE(port, 0) << serving.words();
  const auto models = test::HttpClient(port).request("GET", "/v1/models");
  EXPECT_EQ(test::Json::parse(models.body).at("data").at(0).value("id", ""), "M3");
  const test::Json part = {{"type", "image_url"}, {"image_url", "data:,x"}};
  const test::Json body = {{"messages", {{{"role", "user"}, {"content", test::Json::array({part})}}}}};
  const auto picture = test::HttpClient(port).request("POST", "/v1/chat/completions", body.dump());
  EXPECT_EQ(picture.status, 400);
  EXPECT_NE(picture.body.find("messages[0].content[0]: pictures are not taken here"), std::string::npos)
      << picture.body;
  EXPECT_NE(serving.words().find("m3: note: without effect here: --enable-expert-parallel, --attention-backend\n"),
            std::string::npos)
      << serving.words();
  EXPECT_EQ(serving.end(SIGTERM), 0);
}

}  // namespace
}  // namespace m3::cli
