// m3 run as a chat at a terminal: a pseudo-terminal in the place of a person.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "tests/support/temporary_directory.h"

namespace m3::cli {
namespace {

using test::TemporaryDirectory;

const std::string model = std::string(M3_MODELS) + "/m3-tiny-chat";

class Terminal {
 public:
  explicit Terminal(std::vector<std::string> args) {
    winsize size{.ws_row = 40, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
    child_ = ::forkpty(&descriptor_, nullptr, nullptr, &size);
    if (child_ != 0) return;
    ::setenv("TERM", "xterm", 1);
    ::setenv("LC_ALL", "C.UTF-8", 1);
    std::vector<char*> argv = {const_cast<char*>(M3_PROGRAM)};
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    ::execv(M3_PROGRAM, argv.data());
    ::_exit(98);
  }
  ~Terminal() {
    if (!ended_) ::kill(child_, SIGKILL);
    if (!ended_) ::waitpid(child_, nullptr, 0);
    ::close(descriptor_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& text) {
    ASSERT_EQ(::write(descriptor_, text.data(), text.size()), ssize_t(text.size()));
  }
  // Reads until `text` has come behind what earlier calls waited for, and returns what came up to it. A program that
  // hangs fails the test after two minutes.
  std::string until(const std::string& text) {
    const auto start = std::chrono::steady_clock::now();
    while (screen_.find(text, seen_) == std::string::npos) {
      if (std::chrono::steady_clock::now() - start > std::chrono::minutes(2) || !read_more()) {
        ADD_FAILURE() << "no \"" << text << "\" in:\n" << screen_.substr(seen_);
        return "";
      }
    }
    const std::size_t end = screen_.find(text, seen_) + text.size();
    return screen_.substr(std::exchange(seen_, end), end - seen_);
  }
  // Reads until `count` more bytes have come, whatever they say.
  void more(std::size_t count) {
    const auto start = std::chrono::steady_clock::now();
    const std::size_t end = seen_ + count;
    while (screen_.size() < end) {
      if (std::chrono::steady_clock::now() - start > std::chrono::minutes(2) || !read_more()) {
        ADD_FAILURE() << "no " << count << " bytes more in:\n" << screen_.substr(seen_);
        return;
      }
    }
    seen_ = end;
  }
  int wait() {
    while (read_more()) {}
    int status = 0;
    ::waitpid(child_, &status, 0);
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string rest() const { return screen_.substr(seen_); }

 private:
  bool read_more() {
    pollfd input{descriptor_, POLLIN, 0};
    if (::poll(&input, 1, 1000) == 0) return true;
    char buffer[4096];
    const ssize_t count = ::read(descriptor_, buffer, sizeof buffer);
    if (count <= 0) return false;
    screen_.append(buffer, static_cast<std::size_t>(count));
    return true;
  }

  int descriptor_ = -1;
  pid_t child_ = -1;
  bool ended_ = false;
  std::string screen_;
  std::size_t seen_ = 0;
};

// `\r` is what the Enter key sends.
TEST(Terminal, AChatFromTheFirstQuestionToTheEnd) {
  const TemporaryDirectory files;
  const std::string file = (files / "chat.json").string();
  Terminal terminal({"run", model, "--ignore-eos", "--max-tokens", "8000", "--temperature", "0"});
  terminal.until("/help lists commands");
  terminal.until("> ");
  terminal.type("Wie heißt du?\r");
  terminal.more(150);  // some of an endless reply
  terminal.type("\x03");
  terminal.until("(stopped)");
  terminal.until("> ");
  terminal.type("/save " + file + "\r");
  terminal.until("2 messages saved");
  terminal.type("/new\r");
  terminal.until("a new conversation");
  terminal.type("/load " + file + "\r");
  terminal.until("2 messages loaded");
  const auto saved = nlohmann::json::parse(test::read_file(file));
  EXPECT_EQ(saved["messages"][0]["content"], "Wie heißt du?");
  EXPECT_GT(saved["messages"][1].dump().size(), 60u);
  terminal.type("/quit\r");
  EXPECT_EQ(terminal.wait(), 0);
}

TEST(Terminal, CtrlCTwiceOrCtrlDEnds) {
  Terminal first({"run", model});
  first.until("> ");
  first.type("half a line");
  first.until("half a line");
  first.type("\x03");  // takes the line away
  first.until("> ");
  first.type("\x03");
  first.until("Ctrl-C again");
  first.until("> ");
  first.type("\x03");
  EXPECT_EQ(first.wait(), 130);
  Terminal second({"run", model});
  second.until("> ");
  second.type("\x04");
  EXPECT_EQ(second.wait(), 0);
}

TEST(Terminal, LinesAreEditedRecalledAndContinued) {
  const TemporaryDirectory files;
  const std::string file = (files / "chat.json").string();
  Terminal terminal({"run", model, "--max-tokens", "1"});
  terminal.until("> ");
  terminal.type("/system ünï\x7f\x7fn\x02\x02 x\r");  // backspace twice, and two steps to the left
  terminal.until("system prompt set");
  terminal.until("> ");
  terminal.type("one\\\r");
  terminal.until("… ");
  terminal.type("two\r");
  terminal.until("token limit");
  terminal.until("> ");
  terminal.type("\x1b[200~three\rfour\rfi\x1b[201~ve\r");  // a paste, then typing
  terminal.until("token limit");
  terminal.until("> ");
  terminal.type("\x1b[A\r");  // the arrow up
  terminal.until("token limit");
  terminal.until("> ");
  terminal.type("/save " + file + "\r");
  terminal.until("saved");
  const auto messages = nlohmann::json::parse(test::read_file(file))["messages"];
  std::vector<std::string> said;
  for (const auto& message : messages) {
    if (message["role"] != "assistant") said.push_back(message["content"]);
  }
  EXPECT_EQ(said, (std::vector<std::string>{"xün", "one\ntwo", "three\nfour\nfive", "five"}));
  terminal.type("\x04");
  EXPECT_EQ(terminal.wait(), 0);
}

TEST(Terminal, ABadRequestIsOneLineAndTheChatGoesOn) {
  Terminal terminal({"run", model, "--max-model-len", "60", "--max-tokens", "1"});
  terminal.until("> ");
  terminal.type(
      "one two three four five six seven eight nine ten one two three four five six seven eight nine ten one "
      "two three four\r");
  terminal.until("the context holds 60");
  terminal.until("> ");
  terminal.type("/tools /nowhere\r");
  terminal.until("cannot open /nowhere");
  terminal.until("> ");
  terminal.type("/quit\r");
  EXPECT_EQ(terminal.wait(), 0);
}

}  // namespace
}  // namespace m3::cli
