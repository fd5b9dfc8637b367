#include "src/cli/chat_session.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/media/references.h"

namespace m3::cli {

namespace {

constexpr std::size_t file_limit = std::size_t{256} << 20;

constexpr std::string_view help_text =
    "/new                  begin anew; system prompt and tools stay\n"
    "/system [TEXT|off]    show, set or take away the system prompt\n"
    "/thinking [MODE]      show or set: enabled, adaptive, disabled\n"
    "/tools [FILE|off]     show, read (a JSON list) or take away tools\n"
    "/image FILE           a picture for the next question; /image off takes it back\n"
    "/video FILE           a video for it; /video off takes it back\n"
    "/regenerate           another reply to the last question\n"
    "/undo                 take the last question and its reply back\n"
    "/save FILE            write the conversation, as a /v1/chat/completions body\n"
    "/load FILE            go on with one\n"
    "/help                 this list\n"
    "/quit                 end; so do /exit, Ctrl-D, and Ctrl-C twice\n"
    "Ctrl-C stops a reply. A \\ at a line's end continues it. A message that begins with / is written with //.";

std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin));
}

// As a shell would read it, since terminals paste names for one: quotes around it, a backslash before a character, ~/
// in front. A file whose name is the text itself comes first.
std::string file_name(const std::string& text, std::string_view command) {
  if (text.empty()) fail("{}: give the name of a file", command);
  std::error_code ignored;
  if (std::filesystem::exists(text, ignored)) return text;
  std::string name;
  const char quote = text.front() == '"' || text.front() == '\'' ? text.front() : '\0';
  if (quote != '\0' && text.size() > 2 && text.back() == quote) {
    name = text.substr(1, text.size() - 2);
  } else {
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\\' && i + 1 < text.size()) ++i;
      name += text[i];
    }
  }
  const char* home = std::getenv("HOME");
  return name.starts_with("~/") && home != nullptr ? home + name.substr(1) : name;
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

}  // namespace

std::string ChatSession::prompt() const {
  const auto open = conversation_.open_calls();
  return open.empty() ? "> " : fmt::format("result of {}> ", printable(open.front().name));
}

bool ChatSession::handle(const std::string& line) try {
  if (line.starts_with("/") && !line.starts_with("//")) return command(line);
  const std::string text = line.starts_with("//") ? line.substr(1) : line;
  if (!conversation_.open_calls().empty()) {
    give_result(text);
  } else if (!trimmed(text).empty()) {
    ask(text);
  }
  return true;
} catch (const Error& error) {
  view_.note(error.what());
  return true;
}

void ChatSession::ask(const std::string& question) {
  const chat::Conversation before = conversation_;
  const std::vector<chat::Conversation::Attachment> shown = std::exchange(attachments_, {});
  conversation_.add_user(question, shown);
  const auto take_back = [&] {
    conversation_ = before;
    attachments_ = shown;
    if (!shown.empty()) view_.note("(what was attached stays so for the next question; /image off takes it back)");
  };
  try {
    if (!reply()) take_back();
  } catch (const Error& error) {
    view_.note(error.what());
    take_back();
  }
}

void ChatSession::give_result(const std::string& result) {
  conversation_.add_result(result);
  if (conversation_.open_calls().empty()) reply();
}

// False: there was no reply at all, by an error.
bool ChatSession::reply() {
  const ChatReply reply = answer_(conversation_);
  view_.end_reply();
  const bool stopped = reply.finish == FinishReason::cancelled;
  const bool failed = reply.finish == FinishReason::error;
  if (failed) {
    view_.note(reply.error);
    return false;
  }
  // Calls cut off by a limit are as unfinished as stopped ones.
  conversation_.add_reply(reply.output, stopped || reply.finish == FinishReason::length);
  if (stopped) view_.note("(stopped)");
  if (reply.finish == FinishReason::length) {
    view_.note(reply.output.content.empty() && !reply.output.reasoning.empty()
                   ? "(the token limit ended the reply within its reasoning)"
                   : "(the token limit ended the reply)");
  }
  if (const auto open = conversation_.open_calls(); !open.empty()) {
    view_.note(fmt::format("(type what {} gives back{})", open.size() == 1 ? "the tool" : "each tool",
                           open.size() == 1 ? "" : ", in this order"));
  }
  return true;
}

void ChatSession::regenerate() {
  const chat::Conversation before = conversation_;
  if (!conversation_.drop_reply()) return view_.note("there is no question yet");
  try {
    if (!reply()) conversation_ = before;
  } catch (const Error&) {
    conversation_ = before;
    throw;
  }
}

void ChatSession::change_system(const std::string& text) {
  if (text.empty()) {
    const std::string now = conversation_.system();
    return view_.note(now.empty() ? "no system prompt" : printable(now));
  }
  conversation_.set_system(text == "off" ? "" : text);
  view_.note(text == "off" ? "no system prompt" : "system prompt set");
}

void ChatSession::change_thinking(const std::string& word) {
  if (!word.empty()) {
    const auto mode = chat::find_thinking_mode(word);
    if (!mode) fail("/thinking {}: write enabled, adaptive or disabled", word);
    conversation_.set_thinking(mode);
  }
  view_.note(
      fmt::format("thinking: {}", thinking_mode_name(conversation_.thinking().value_or(chat::ThinkingMode::adaptive))));
}

void ChatSession::change_tools(const std::string& path) {
  if (path == "off") {
    conversation_.set_tools("[]", path);
  } else if (!path.empty()) {
    const std::string file = file_name(path, "/tools");
    conversation_.set_tools(read_text_input(file, file_limit), file);
  }
  const std::vector<std::string> names = conversation_.tool_names();
  view_.note(names.empty() ? "no tools" : "tools: " + printable(joined(names)));
}

void ChatSession::save(const std::string& path) {
  const std::string file = file_name(path, "/save");
  std::error_code ignored;
  if (std::filesystem::is_regular_file(file, ignored) && std::filesystem::file_size(file, ignored) > 0) {
    try {
      chat::Conversation::parse(read_text_file(file, file_limit), file);
    } catch (const Error&) {
      fail("{} is there and holds no conversation; choose another name", file);
    }
  }
  AtomicFile out(file);
  out.write(conversation_.text());
  out.commit();
  view_.note(fmt::format("{} messages saved to {}", conversation_.size(), file));
}

void ChatSession::load(const std::string& path) {
  const std::string file = file_name(path, "/load");
  conversation_ = chat::Conversation::parse(read_text_input(file, file_limit), file);
  view_.note(fmt::format("{} messages loaded from {}", conversation_.size(), file));
}

void ChatSession::attach(const std::string& path, bool video) {
  if (path == "off") {
    const bool some = !attachments_.empty();
    attachments_.clear();
    return view_.note(some ? "detached" : "nothing is attached");
  }
  const std::string url = media::file_url(file_name(path, video ? "/video" : "/image"));
  look_({video, url});
  attachments_.push_back({video, url});
  view_.note(attachments_.size() == 1 ? "(goes with the next question)"
                                      : fmt::format("({} go with the next question)", attachments_.size()));
}

bool ChatSession::command(const std::string& line) {
  const std::size_t space = line.find_first_of(" \t\n");
  const std::string name = line.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : trimmed(line.substr(space));
  const bool takes_text = name == "/system" || name == "/thinking" || name == "/tools" || name == "/save" ||
                          name == "/load" || name == "/image" || name == "/video";
  if (!takes_text && !rest.empty()) fail("{}: takes nothing behind it ({})", name, rest);
  if (name == "/quit" || name == "/exit") return false;
  if (name == "/help") {
    view_.note(help_text);
  } else if (name == "/new") {
    conversation_.clear();
    attachments_.clear();
    view_.note("a new conversation");
  } else if (name == "/system") {
    change_system(rest);
  } else if (name == "/thinking") {
    change_thinking(rest);
  } else if (name == "/tools") {
    change_tools(rest);
  } else if (name == "/regenerate") {
    regenerate();
  } else if (name == "/undo") {
    view_.note(conversation_.undo() ? "the last question is taken back" : "there is no question yet");
  } else if (name == "/image" || name == "/video") {
    attach(rest, name == "/video");
  } else if (name == "/save") {
    save(rest);
  } else if (name == "/load") {
    load(rest);
  } else {
    fail("{}: unknown command; /help lists them", name);
  }
  return true;
}

}  // namespace m3::cli
