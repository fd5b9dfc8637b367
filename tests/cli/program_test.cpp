// The program itself: exit codes and lines of tests/data/cli/*.json, and what it writes.
//
// A case: args ({model}, {blind}, {tmp} and {data} stand for paths), exit, and where it has them stdin, files (by name, in {tmp}), stdout and stderr (parts of what is
// written), stdout_is (all of it).
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <csignal>
#include <fstream>
#include <thread>

#include "src/checkpoint/safetensors.h"
#include "tests/support/pictures.h"
#include "tests/support/temporary_directory.h"

namespace m3::cli {
namespace {

using test::TemporaryDirectory;

const std::string model = std::string(M3_MODELS) + "/m3-tiny-chat";

struct Outcome {
  int exit = -1;
  std::string out, err;
};

// Starts the program with files as its three streams.
pid_t start(const std::vector<std::string>& args, const TemporaryDirectory& directory, const std::string& input) {
  test::write_file(directory / "stdin", input);
  const pid_t child = ::fork();
  if (child != 0) return child;
  const auto redirect = [&](const char* name, const char* mode, FILE* stream) {
    if (std::freopen((directory / name).c_str(), mode, stream) == nullptr) ::_exit(99);
  };
  redirect("stdin", "r", stdin);
  redirect("stdout", "w", stdout);
  redirect("stderr", "w", stderr);
  std::vector<char*> argv = {const_cast<char*>(M3_PROGRAM)};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  ::execv(M3_PROGRAM, argv.data());
  ::_exit(98);
}

Outcome wait_for(pid_t child, const TemporaryDirectory& directory) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), test::read_file(directory / "stdout"),
          test::read_file(directory / "stderr")};
}

Outcome run(const std::vector<std::string>& args, const std::string& input = "") {
  const TemporaryDirectory directory;
  return wait_for(start(args, directory, input), directory);
}

std::string fill(std::string text, const std::string& temporary) {
  for (const auto& [key, value] :
       {std::pair<std::string, std::string>{"{model}", model}, {"{tmp}", temporary}, {"{data}", M3_TEST_DATA}}) {
    for (std::size_t at = text.find(key); at != std::string::npos; at = text.find(key))
      text.replace(at, key.size(), value);
  }
  if (text == "{blind}") return test::blind_checkpoint().string();
  return text;
}

class Program : public testing::TestWithParam<nlohmann::json> {};

TEST_P(Program, DoesWhatTheCaseSays) {
  const nlohmann::json& expected = GetParam();
  const TemporaryDirectory files;
  std::vector<std::string> args;
  const nlohmann::json given = expected.value("files", nlohmann::json::object());
  for (const auto& [name, text] : given.items()) test::write_file(files / name, text.get<std::string>());
  for (const auto& arg : expected.at("args")) args.push_back(fill(arg.get<std::string>(), files.path().string()));
  const Outcome outcome = run(args, expected.value("stdin", ""));
  EXPECT_EQ(outcome.exit, expected.at("exit").get<int>()) << outcome.err;
  EXPECT_NE(outcome.out.find(fill(expected.value("stdout", ""), files.path().string())), std::string::npos)
      << outcome.out;
  if (expected.contains("stdout_is")) {
    EXPECT_EQ(outcome.out, expected.at("stdout_is").get<std::string>());
  }
  EXPECT_NE(outcome.err.find(fill(expected.value("stderr", ""), files.path().string())), std::string::npos)
      << outcome.err;
  if (expected.contains("stderr") && outcome.exit != 0) {
    EXPECT_TRUE(outcome.err.starts_with("m3: ")) << outcome.err;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;  // one line for a person
  }
  // Nothing half-written is left behind.
  for (const auto& entry : std::filesystem::directory_iterator(files.path())) {
    if (given.contains(entry.path().filename().string())) continue;
    EXPECT_EQ(entry.path().extension(), ".safetensors");
  }
}

std::vector<nlohmann::json> cases() {
  std::vector<nlohmann::json> all;
  for (const char* name : {"/cli/cases.json", "/cli/chat_cases.json", "/cli/run_cases.json", "/cli/media_cases.json",
                           "/cli/usage_cases.json"}) {
    std::ifstream file(std::string(M3_TEST_DATA) + name);
    for (auto& entry : nlohmann::json::parse(file)) all.push_back(std::move(entry));
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cases, Program, testing::ValuesIn(cases()),
                         [](const auto& tested) { return tested.param.at("name").template get<std::string>(); });

TEST(ProgramOutput, TheSameSeedWritesTheSameText) {
  const std::vector<std::string> args = {"run",          model, "--raw",  "--prompt", "In the garden",
                                         "--max-tokens", "20",  "--seed", "9"};
  const Outcome first = run(args);
  EXPECT_EQ(first.out, run(args).out);
  EXPECT_GT(first.out.size(), 20u);
}

TEST(ProgramOutput, JsonHoldsTextIdsLogprobsAndTimings) {
  const Outcome outcome = run({"run", model, "--raw", "--prompt", "In the garden", "--max-tokens", "7", "--temperature",
                               "0", "--json", "--logprobs", "3"});
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json.at("ids").size(), 7u);
  EXPECT_EQ(json.at("logprobs").size(), 7u);
  EXPECT_EQ(json.at("logprobs")[0].at("top").size(), 3u);
  EXPECT_EQ(json.at("usage").at("completion_tokens"), 7);
  EXPECT_TRUE(json.at("timings").contains("first_token_seconds"));
  const Outcome plain =
      run({"run", model, "--raw", "--prompt", "In the garden", "--max-tokens", "7", "--temperature", "0"});
  EXPECT_EQ(json.at("text").get<std::string>() + "\n", plain.out);
}

TEST(ProgramOutput, TraceTensorsHaveTheDocumentedShapesAndDroppedBlocksAreNotChosen) {
  const TemporaryDirectory files;
  std::string ids;
  for (int i = 0; i < 900; ++i) ids += std::to_string(300 + i * 7 % 3000) + " ";
  const std::string whole = (files / "whole.safetensors").string(), dropped = (files / "dropped.safetensors").string();
  ASSERT_EQ(run({"trace", model, "--token-ids", "-", "--out", whole, "--positions", "899,0"}, ids).exit, 0);
  const TensorFiles trace = TensorFiles::open_file(whole);
  ASSERT_NE(trace.find("logits"), nullptr);
  EXPECT_EQ(trace.find("logits")->shape, (std::vector<std::int64_t>{2, 4096}));
  const StoredTensor* blocks = trace.find("block_ids.1");
  ASSERT_NE(blocks, nullptr);
  EXPECT_EQ(blocks->shape, (std::vector<std::int64_t>{2, 4, 4}));
  const auto* chosen = reinterpret_cast<const std::int32_t*>(blocks->bytes.data());
  EXPECT_EQ(chosen[3], 7);   // position 899: its own block is forced, ascending
  EXPECT_EQ(chosen[16], 0);  // position 0 has one block
  EXPECT_EQ(chosen[17], -1);
  const std::int32_t victim = chosen[0];
  ASSERT_EQ(
      run({"trace", model, "--token-ids", "-", "--out", dropped, "--drop-blocks", std::to_string(victim)}, ids).exit,
      0);
  const TensorFiles second = TensorFiles::open_file(dropped);
  const StoredTensor* others = second.find("block_ids.1");
  ASSERT_NE(others, nullptr);
  for (std::size_t i = 0; i < others->bytes.size() / 4; ++i)
    EXPECT_NE(reinterpret_cast<const std::int32_t*>(others->bytes.data())[i], victim);
}

// What --image and --video store is what --pixels reads, and the tower makes the same of it.
TEST(ProgramOutput, TracedPicturesCanBeTracedAgain) {
  const TemporaryDirectory files;
  const std::string first = (files / "first.safetensors").string(), second = (files / "second.safetensors").string();
  const std::string data = M3_TEST_DATA;
  const Outcome outcome =
      run({"trace", model, "--image", data + "/vision/pictures/rgb-8.png", "--image", data + "/vision/pictures/420.jpg",
           "--video", data + "/vision/videos/h264.mp4", "--mm-processor-kwargs",
           R"({"videos_kwargs": {"max_long_side_pixel": 112}})", "--out", first});
  ASSERT_EQ(outcome.exit, 0) << outcome.err;
  ASSERT_EQ(run({"trace", model, "--pixels", first, "--out", second}).exit, 0);
  const TensorFiles given = TensorFiles::open_file(first), again = TensorFiles::open_file(second);
  const StoredTensor* grid = given.find("grid");
  ASSERT_NE(grid, nullptr);
  EXPECT_EQ(grid->shape, (std::vector<std::int64_t>{3, 3}));
  const auto* sides = reinterpret_cast<const std::int32_t*>(grid->bytes.data());
  EXPECT_EQ(std::vector<std::int32_t>(sides, sides + 3), (std::vector<std::int32_t>{1, 8, 12}));
  std::int64_t patches = 0;
  for (int i = 0; i < 3; ++i) patches += std::int64_t{sides[3 * i]} * sides[3 * i + 1] * sides[3 * i + 2];
  ASSERT_NE(given.find("pixel_values"), nullptr);
  EXPECT_EQ(given.find("pixel_values")->shape, (std::vector<std::int64_t>{patches, 1176}));
  ASSERT_NE(given.find("timestamps"), nullptr);
  EXPECT_EQ(given.find("timestamps")->shape, (std::vector<std::int64_t>{sides[6]}));
  const StoredTensor *features = given.find("features"), *same = again.find("features");
  ASSERT_TRUE(features != nullptr && same != nullptr);
  EXPECT_EQ(features->shape, (std::vector<std::int64_t>{patches / 4, 320}));
  EXPECT_TRUE(std::ranges::equal(features->bytes, same->bytes));
}

// The answer depends on the picture, and the same picture by file and by data: URL is one.
TEST(ProgramOutput, PicturesReachTheModel) {
  const TemporaryDirectory files;
  const auto logprobs = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"run",  model,        "--max-tokens", "2", "--temperature",
                                     "0",    "--json",     "--logprobs",   "0", "--max-picture-patches",
                                     "2048", "--thinking", "disabled"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    return outcome.exit == 0 ? nlohmann::json::parse(outcome.out) : nlohmann::json();
  };
  const std::string png = std::string(M3_TEST_DATA) + "/vision/pictures/rgb-8.png";
  const auto seen = logprobs({"--image", png, "--prompt", "What is it?"});
  const auto other =
      logprobs({"--image", std::string(M3_TEST_DATA) + "/vision/pictures/rgba-8.png", "--prompt", "What is it?"});
  const auto blind = logprobs({"--prompt", "What is it?"});
  EXPECT_EQ(seen["usage"]["prompt_tokens"].get<int>(), blind["usage"]["prompt_tokens"].get<int>() + 24 + 2);
  EXPECT_NE(seen["logprobs"].dump(), other["logprobs"].dump());
  const nlohmann::json parts =
      nlohmann::json::array({{{"type", "image_url"}, {"image_url", {{"url", test::data_url(test::read_file(png))}}}},
                             {{"type", "text"}, {"text", "What is it?"}}});
  test::write_file(files / "body.json", nlohmann::json{{"messages", {{{"role", "user"}, {"content", parts}}}}}.dump());
  EXPECT_EQ(logprobs({"--request", (files / "body.json").string()})["logprobs"].dump(), seen["logprobs"].dump());
}

TEST(ProgramOutput, AFailedTraceLeavesTheEarlierFile) {
  const TemporaryDirectory files;
  const std::string out = (files / "trace.safetensors").string();
  test::write_file(out, "earlier");
  EXPECT_EQ(run({"trace", model, "--token-ids", "-", "--out", out, "--positions", "5"}, "1 2").exit, 2);
  EXPECT_EQ(test::read_file(out), "earlier");
}

TEST(ProgramOutput, AnUnwritableStandardErrorIsNoDeath) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP();
  const pid_t child = ::fork();
  if (child == 0) {
    if (std::freopen("/dev/full", "w", stderr) == nullptr) ::_exit(99);
    ::execl(M3_PROGRAM, M3_PROGRAM, "run", model.c_str(), "--prompt", "a", "--temperature", "9", nullptr);
    ::_exit(98);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

TEST(ProgramOutput, ALinkKeepsItsPlaceAndIdsAreNotOverwritten) {
  const TemporaryDirectory files;
  test::write_file(files / "ids", "1 2 3");
  test::write_file(files / "target.safetensors", "earlier");
  std::filesystem::create_symlink(files / "target.safetensors", files / "link");
  EXPECT_EQ(run({"trace", model, "--token-ids", (files / "ids").string(), "--out", (files / "link").string()}).exit, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(files / "link"));
  EXPECT_NE(test::read_file(files / "target.safetensors"), "earlier");
  EXPECT_EQ(run({"trace", model, "--token-ids", (files / "ids").string(), "--out", (files / "ids").string()}).exit, 2);
  EXPECT_EQ(test::read_file(files / "ids"), "1 2 3");
}

TEST(ProgramOutput, TimingsAreWholeWhenTheReplyIs) {
  for (int i = 0; i < 5; ++i) {
    const auto json =
        nlohmann::json::parse(run({"run", model, "--raw", "--prompt", "Hello", "--max-tokens", "3", "--json"}).out);
    EXPECT_GT(json.at("timings").at("prefill_seconds").get<double>(), 0);
    EXPECT_GT(json.at("timings").at("decode_seconds").get<double>(), 0);
  }
}

TEST(ProgramOutput, AFullDiskIsOneLine) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP();
  const TemporaryDirectory files;
  const pid_t child = ::fork();
  if (child == 0) {
    if (std::freopen("/dev/full", "w", stdout) == nullptr ||
        std::freopen((files / "stderr").c_str(), "w", stderr) == nullptr)
      ::_exit(99);
    ::execl(M3_PROGRAM, M3_PROGRAM, "run", model.c_str(), "--prompt", "a", "--max-tokens", "3", nullptr);
    ::_exit(98);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_NE(test::read_file(files / "stderr").find("cannot write to standard output: No space left on device"),
            std::string::npos);
}

TEST(ProgramOutput, AReaderThatWentAwayIsNoError) {
  const TemporaryDirectory files;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    if (std::freopen((files / "stderr").c_str(), "w", stderr) == nullptr) ::_exit(99);
    ::execl(M3_PROGRAM, M3_PROGRAM, "run", model.c_str(), "--prompt", "a", "--max-tokens", "3", nullptr);
    ::_exit(98);
  }
  ::close(ends[1]);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGPIPE);
  EXPECT_EQ(test::read_file(files / "stderr"), "");
}

// Nothing can be raised where the positions end.
TEST(ProgramOutput, APromptTooLongIsToldWhatHelps) {
  std::string text;
  for (int i = 0; i < 40'000; ++i) text += " a";
  const Outcome beyond = run({"run", model, "--raw"}, text);
  EXPECT_EQ(beyond.exit, 2);
  EXPECT_NE(beyond.err.find("the context holds 32768, of which at least one is for the reply; shorten it\n"),
            std::string::npos)
      << beyond.err;
  const Outcome small = run({"run", model, "--raw", "--max-model-len", "256"}, text);
  EXPECT_NE(small.err.find("shorten it or raise --max-model-len\n"), std::string::npos) << small.err;
}

TEST(ProgramOutput, AMissingModelOfTheEnvironmentIsSaidToBeFromThere) {
  ::setenv("M3_MODEL", "/nowhere/m3", 1);
  const Outcome outcome = run({"run", "--prompt", "hi"});
  ::unsetenv("M3_MODEL");
  EXPECT_EQ(outcome.exit, 1);
  EXPECT_EQ(outcome.err, "m3: M3_MODEL=/nowhere/m3: there is no such directory\n");
}

TEST(ProgramOutput, CtrlCEndsCleanly) {
  const TemporaryDirectory files;
  const pid_t child =
      start({"run", model, "--raw", "--prompt", "Once", "--ignore-eos", "--max-tokens", "16000"}, files, "");
  const auto written = [&] {
    return std::filesystem::exists(files / "stdout") ? std::filesystem::file_size(files / "stdout") : 0;
  };
  // Once text has come, the handler is in place.
  for (int i = 0; i < 1200 && written() < 40; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ::kill(child, SIGINT);
  const Outcome outcome = wait_for(child, files);
  EXPECT_EQ(outcome.exit, 130);
  EXPECT_EQ(outcome.out.back(), '\n');
}

}  // namespace
}  // namespace m3::cli
