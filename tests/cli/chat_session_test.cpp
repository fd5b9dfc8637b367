// The chat's logic, with a model that says what the test wants, and what of it is shown.
#include "src/cli/chat_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <fstream>

#include "src/base/error.h"
#include "tests/support/temporary_directory.h"

namespace m3::cli {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

struct Written {
  std::string text;
  FinishReason finish = FinishReason::stop;
};

class Session : public testing::Test {
 protected:
  // What the session showed since the last call.
  std::string shown() { return std::exchange(shown_, ""); }

  std::deque<Written> replies_;
  std::vector<chat::ChatRequest> requests_;
  std::vector<std::string> looked_;  // at these
  std::string shown_;
  ChatView view_{[this](std::string_view text) { shown_ += text; },
                 {.terminal = true, .color = false, .reasoning = true}};
  ChatSession session_{chat::Conversation(),
                       [this](const chat::Conversation& conversation) {
                         const chat::ChatRequest request = conversation.request();
                         requests_.push_back(request);
                         if (replies_.empty()) fail("the prompt has too many tokens");
                         const Written next = replies_.front();
                         replies_.pop_front();
                         ReplyReader reader(request);
                         Event event;
                         event.text = next.text;
                         event.finish = next.finish;
                         if (next.finish == FinishReason::error) event.error = "logits are not finite";
                         for (const auto& part : reader.take(event)) view_.show(part);
                         return reader.reply();
                       },
                       [this](const chat::Conversation::Attachment& attached) {
                         looked_.push_back(attached.url);
                         if (attached.url.find("bad") != std::string::npos) fail("not a picture: a PDF file");
                       },
                       view_};
  test::TemporaryDirectory files_;
};

constexpr const char* call =
    "Let me see.]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke "
    "name=\"get_weather\">]<]minimax[>[<city>Rome]<]minimax[>["
    "</city>]<]minimax[>[<days>2]<]minimax[>[</days>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>";
constexpr const char* tools =
    R"([{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties":
       {"city": {"type": "string"}, "days": {"type": "integer"}}}}}])";

TEST_F(Session, AQuestionIsAnswered) {
  replies_ = {{"<mm:think>greet</mm:think>\n\nHello!"}};
  EXPECT_TRUE(session_.handle("Hi"));
  EXPECT_EQ(shown(), "greet\n\nHello!\n");
  EXPECT_EQ(session_.conversation().size(), 2u);
  EXPECT_EQ(session_.prompt(), "> ");
  EXPECT_TRUE(session_.handle("   "));
  EXPECT_EQ(requests_.size(), 1u);
}

TEST_F(Session, CallsAskForResults) {
  replies_ = {{call}, {"Sunny."}};
  test::write_file(files_ / "tools.json", tools);
  session_.handle("/tools " + (files_ / "tools.json").string());
  EXPECT_EQ(shown(), "tools: get_weather\n");
  session_.handle("Weather in Rome?");
  EXPECT_THAT(shown(), HasSubstr("Let me see.\n→ get_weather\n  city: Rome\n  days: 2\n"));
  EXPECT_EQ(session_.prompt(), "result of get_weather> ");
  session_.handle("24 degrees");
  EXPECT_EQ(shown(), "Sunny.\n");
  EXPECT_EQ(session_.prompt(), "> ");
  EXPECT_EQ(requests_.back().messages.items().size(), 3u);
}

TEST_F(Session, StoppedAndCutRepliesAreSaidSo) {
  replies_ = {
      {"One two", FinishReason::cancelled}, {"<mm:think>long", FinishReason::length}, {call, FinishReason::length}};
  session_.handle("count");
  EXPECT_EQ(shown(), "One two\n(stopped)\n");
  session_.handle("think");
  EXPECT_THAT(shown(), HasSubstr("(the token limit ended the reply within its reasoning)"));
  session_.handle("call");
  EXPECT_THAT(shown(), HasSubstr("(the token limit ended the reply)"));
  EXPECT_EQ(session_.prompt(), "> ");  // a call that was cut off waits for nothing
}

TEST_F(Session, AFailedQuestionIsTakenBack) {
  session_.handle("too long");
  EXPECT_EQ(shown(), "the prompt has too many tokens\n");
  EXPECT_EQ(session_.conversation().size(), 0u);
  replies_ = {{"x", FinishReason::error}};
  session_.handle("again");
  EXPECT_THAT(shown(), HasSubstr("logits are not finite"));
  EXPECT_EQ(session_.conversation().size(), 0u);
}

TEST_F(Session, PicturesGoWithTheNextQuestion) {
  test::write_file(files_ / "a.png", "x");
  test::write_file(files_ / "b.mp4", "y");
  session_.handle("/image " + (files_ / "none.png").string());
  EXPECT_THAT(shown(), HasSubstr("No such file"));
  session_.handle("/image " + (files_ / "a.png").string());
  session_.handle("/video " + (files_ / "b.mp4").string());
  EXPECT_THAT(shown(), HasSubstr("2 go with the next question"));
  session_.handle("what");  // fails: both stay
  EXPECT_THAT(shown(), HasSubstr("/image off"));
  EXPECT_EQ(session_.conversation().size(), 0u);
  replies_ = {{"A dog."}, {"Yes."}, {"No."}};
  session_.handle("what");
  ASSERT_EQ(requests_.back().media.size(), 2u);
  EXPECT_FALSE(requests_.back().media[0].video);
  EXPECT_TRUE(requests_.back().media[1].video);
  EXPECT_EQ(requests_.back().media[1].path, "messages[0].content[1]");
  session_.handle("sure?");  // the conversation has them, the question has none of its own
  EXPECT_EQ(requests_.back().media.size(), 2u);
  EXPECT_EQ(session_.conversation().body()["messages"][2]["content"].get<std::string>(), "sure?");
  // Saved and read again, they are still there.
  session_.handle("/save " + (files_ / "c.json").string());
  session_.handle("/load " + (files_ / "c.json").string());
  session_.handle("/image " + (files_ / "a.png").string());
  shown();
  session_.handle("/image off");
  EXPECT_EQ(shown(), "detached\n");
  session_.handle("and?");
  EXPECT_EQ(requests_.back().media.size(), 2u);
}

TEST_F(Session, WhatCannotBeShownIsNotAttached) {
  test::write_file(files_ / "bad.png", "x");
  session_.handle("/image " + (files_ / "bad.png").string());
  EXPECT_EQ(shown(), "not a picture: a PDF file\n");
  replies_ = {{"Fine."}};
  session_.handle("what");
  EXPECT_TRUE(requests_.back().media.empty());
}

TEST_F(Session, FilesAreNamedAsAShellWould) {
  test::write_file(files_ / "a b's.png", "x");
  const std::string folder = files_.path().string();
  const char* const home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  ::setenv("HOME", folder.c_str(), 1);
  const std::string names[] = {folder + "/a b's.png",     "\"" + folder + "/a b's.png\"",
                               folder + "/a\\ b\\'s.png", "~/a b's.png",
                               "\"~/a b's.png\"",         "~/a\\ b's.png"};
  for (const std::string& name : names) {
    session_.handle("/image " + name);
    EXPECT_THAT(shown(), HasSubstr("next question")) << name;
  }
  home == nullptr ? ::unsetenv("HOME") : ::setenv("HOME", before.c_str(), 1);
  EXPECT_EQ(looked_, std::vector<std::string>(std::size(names), "file://" + folder + "/a%20b's.png"));
  session_.handle("/image \"" + folder + "/none.png\"");
  EXPECT_THAT(shown(), HasSubstr("none.png: No such file"));
}

TEST_F(Session, RegenerateAndUndo) {
  session_.handle("/regenerate");
  session_.handle("/undo");
  EXPECT_EQ(shown(), "there is no question yet\nthere is no question yet\n");
  replies_ = {{"first"}, {"second"}};
  session_.handle("q");
  session_.handle("/regenerate");
  EXPECT_THAT(shown(), EndsWith("second\n"));
  EXPECT_EQ(session_.conversation().body()["messages"][1]["content"], "second");
  session_.handle("/regenerate");  // fails: the reply there was stays
  EXPECT_EQ(session_.conversation().body()["messages"][1]["content"], "second");
  session_.handle("/undo");
  EXPECT_EQ(session_.conversation().size(), 0u);
}

TEST_F(Session, SystemThinkingAndNew) {
  session_.handle("/system Be brief.");
  session_.handle("/thinking disabled");
  replies_ = {{"</mm:think>x"}};
  session_.handle("q");
  EXPECT_EQ(requests_.back().mode(), chat::ThinkingMode::disabled);
  EXPECT_EQ(requests_.back().messages.items().size(), 2u);
  session_.handle("/new");
  shown();
  session_.handle("/system");
  session_.handle("/thinking");
  EXPECT_EQ(shown(), "Be brief.\nthinking: disabled\n");
  session_.handle("/system off");
  session_.handle("/thinking sometimes");
  EXPECT_EQ(shown(), "no system prompt\n/thinking sometimes: write enabled, adaptive or disabled\n");
}

TEST_F(Session, SaveAndLoad) {
  replies_ = {{"Hello!"}};
  session_.handle("Hi");
  const std::string file = (files_ / "chat.json").string();
  session_.handle("/save " + file);
  EXPECT_THAT(shown(), EndsWith("2 messages saved to " + file + "\n"));
  session_.handle("/new");
  session_.handle("/load " + file);
  EXPECT_THAT(shown(), EndsWith("2 messages loaded from " + file + "\n"));
  EXPECT_EQ(session_.conversation().body()["messages"][1]["content"], "Hello!");
  session_.handle("/save " + file);  // its own file may be written again
  EXPECT_THAT(shown(), HasSubstr("saved"));
  test::write_file(files_ / "letter.txt", "Dear");
  session_.handle("/save " + (files_ / "letter.txt").string());
  EXPECT_THAT(shown(), HasSubstr("holds no conversation"));
  EXPECT_EQ(test::read_file(files_ / "letter.txt"), "Dear");
  session_.handle("/load " + (files_ / "letter.txt").string());
  session_.handle("/load " + (files_ / "absent").string());
  session_.handle("/save " + (files_ / "no" / "folder").string());
  session_.handle("/save");
  EXPECT_EQ(session_.conversation().size(), 2u);
  EXPECT_EQ(std::ranges::count(shown(), '\n'), 4);  // one line each
}

TEST_F(Session, Commands) {
  EXPECT_TRUE(session_.handle("/help"));
  EXPECT_THAT(shown(), HasSubstr("/regenerate"));
  EXPECT_TRUE(session_.handle("/hlep"));
  EXPECT_EQ(shown(), "/hlep: unknown command; /help lists them\n");
  EXPECT_TRUE(session_.handle("/new please"));
  EXPECT_EQ(shown(), "/new: takes nothing behind it (please)\n");
  replies_ = {{"yes"}};
  EXPECT_TRUE(session_.handle("//usr/bin is a folder?"));
  EXPECT_EQ(session_.conversation().body()["messages"][0]["content"], "/usr/bin is a folder?");
  EXPECT_TRUE(session_.handle("/image off"));
  EXPECT_EQ(shown(), "yes\nnothing is attached\n");
  EXPECT_FALSE(session_.handle("/quit"));
  EXPECT_FALSE(session_.handle("/exit"));
}

TEST_F(Session, TheModelCannotSteerTheTerminal) {
  replies_ = {
      {"a\x1b[2J\x07 b\xc2\x9b"
       "c"}};
  session_.handle("q");
  EXPECT_EQ(shown(),
            "a\xef\xbf\xbd[2J\xef\xbf\xbd b\xef\xbf\xbd"
            "c\n");
}

TEST(ChatView, PlainTextIsTheAnswerAlone) {
  std::string out;
  ChatView view([&](std::string_view text) { out += text; }, {});
  using Kind = chat::ParseEventKind;
  view.show({Kind::reasoning, "hm"});
  view.show({Kind::content, "Yes."});
  view.show({Kind::call, "f", 0});
  view.show({Kind::arguments, R"({"a": )", 0});
  view.show({Kind::arguments, "1}", 0});
  view.show({Kind::call, "g", 1});
  view.show({Kind::arguments, "{}", 1});
  view.end_reply();
  EXPECT_EQ(out, "Yes.\nf({\"a\": 1})\ng({})\n");
}

TEST(ChatView, ReasoningIsDimmed) {
  std::string out;
  ChatView view([&](std::string_view text) { out += text; }, {.terminal = true, .color = true, .reasoning = true});
  using Kind = chat::ParseEventKind;
  view.show({Kind::reasoning, "\nhm"});
  view.show({Kind::reasoning, "m"});
  view.show({Kind::content, "\n\nYes.\n\nNo."});
  view.end_reply();
  EXPECT_EQ(out, "\x1b[2mhmm\x1b[0m\n\nYes.\n\nNo.\n");
}

TEST(ChatView, LongArgumentsAreIndented) {
  EXPECT_EQ(argument_lines(R"({"path": "a.txt", "text": "one\ntwo", "n": [1, 2], "o": {"k": null}})"),
            "  path: a.txt\n  text:\n    one\n    two\n  n: [1,2]\n  o: {\"k\":null}\n");
  EXPECT_EQ(argument_lines("{}"), "");
}

}  // namespace
}  // namespace m3::cli
