// m3 run without --raw: one question answered, or a chat at a terminal.
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string_view>

#include "src/base/console.h"
#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/chat/conversation.h"
#include "src/cli/chat_model.h"
#include "src/cli/chat_session.h"
#include "src/cli/chat_view.h"
#include "src/cli/line_editor.h"
#include "src/cli/run_command.h"
#include "src/media/references.h"

namespace m3::cli {

namespace {

constexpr std::int64_t sample_answer_tokens = 300;
constexpr std::size_t file_limit = std::size_t{256} << 20;

std::string sample_question(const std::vector<chat::Conversation::Attachment>& shown) {
  if (shown.empty()) return "What can you do?";
  const char* kind = shown.front().video ? "video" : "picture";
  return fmt::format("What is in the {}{}?", kind, shown.size() > 1 ? "s" : "");
}

std::string read_file(const std::string& path) {
  return path == "-" ? read_standard_input(file_limit) : read_text_input(path, file_limit);
}

Json read_schema(const std::string& path) {
  Json schema = Json::parse(read_file(path), nullptr, false);
  if (schema.is_discarded()) fail("--json-schema {}: not valid JSON", path);
  return {{"type", "json_schema"}, {"json_schema", {{"name", "reply"}, {"strict", true}, {"schema", schema}}}};
}

Json tool_choice(const std::string& word) {
  if (word == "auto" || word == "none" || word == "required") return word;
  return {{"type", "function"}, {"function", {{"name", word}}}};
}

// What the options ask for, before any question.
chat::Conversation begin(const CLI::App& command, const RunOptions& options) {
  chat::Conversation conversation;
  if (command.count("--request") > 0) {
    const std::string where = options.request == "-" ? "standard input" : options.request;
    conversation = chat::Conversation::parse(read_file(options.request), where);
  }
  if (command.count("--system") > 0) conversation.set_system(options.system);
  if (command.count("--tools") > 0) conversation.set_tools(read_file(options.tools), options.tools);
  if (command.count("--thinking") > 0) {
    const auto mode = chat::find_thinking_mode(options.thinking);
    if (!mode) fail_usage("--thinking {}: write enabled, adaptive or disabled", options.thinking);
    conversation.set_thinking(mode);
  }
  if (command.count("--thinking-budget") > 0) {
    if (*options.thinking_budget < 0)
      fail_usage("--thinking-budget {}: give a number of tokens from 0", *options.thinking_budget);
    if (conversation.thinking() == chat::ThinkingMode::disabled)
      fail_usage("--thinking-budget: thinking is disabled, so there is nothing to limit");
    conversation.set("thinking_budget", *options.thinking_budget);
  }
  if (options.tool_choice == "required" && conversation.tool_names().empty())
    fail_usage("--tool-choice required needs tools: give --tools FILE");
  if (command.count("--tool-choice") > 0) conversation.set("tool_choice", tool_choice(options.tool_choice));
  if (command.count("--json-schema") > 0) conversation.set("response_format", read_schema(options.json_schema));
  return conversation;
}

Json message_json(const ChatReply& reply) {
  Json message = {{"role", "assistant"}, {"content", nullptr}};
  const bool content = !reply.output.content.empty() || reply.output.calls.empty();
  if (content) message["content"] = reply.output.content;
  if (!reply.output.reasoning.empty()) message["reasoning_content"] = reply.output.reasoning;
  int number = 0;
  for (const chat::ParsedCall& call : reply.output.calls) {
    message["tool_calls"].push_back({{"id", fmt::format("call_{}", ++number)},
                                     {"type", "function"},
                                     {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return message;
}

Json sample_json(const ChatReply& reply, const Json& logprobs, bool with_logprobs) {
  Json sample = {{"message", message_json(reply)},
                 {"finish_reason", reply.finish_name()},
                 {"text", reply.text},
                 {"ids", reply.ids}};
  if (!reply.stop_reason.empty()) sample["stop_reason"] = reply.stop_reason;
  if (with_logprobs) sample["logprobs"] = logprobs;
  sample["usage"] = usage_json(reply.usage);
  return sample;
}

bool is_terminal(int descriptor) { return ::isatty(descriptor) != 0; }

bool wants_color() {
  const char* refused = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return (refused == nullptr || *refused == '\0') && terminal != nullptr && std::string_view(terminal) != "dumb";
}

// Files and the web are this machine's owner's own.
media::MediaOptions own_media(const RunOptions& options) {
  media::MediaOptions media = options.media.finish();
  media.sources.local_root = "/";
  return media;
}

std::vector<chat::Conversation::Attachment> attachments(const RunOptions& options) {
  std::vector<chat::Conversation::Attachment> out;
  for (const std::string& file : options.images) out.push_back({false, media::file_url(file)});
  for (const std::string& file : options.videos) out.push_back({true, media::file_url(file)});
  return out;
}

int answer_once(const RunOptions& options, const ChatModel& model, const chat::Conversation& conversation, Request base,
                const std::string& built_in) {
  const chat::ChatRequest chat = conversation.request();
  if (!built_in.empty() && !base.max_tokens) base.max_tokens = sample_answer_tokens;
  Request request = model.request(conversation, chat, base);
  const LoadedEngine loaded = load_engine(options);
  Engine& engine = *loaded.engine;
  static_cast<void>(interrupted());  // from here Ctrl-C ends the reply, not the program
  model.add_pictures(engine.info(), conversation, chat, request, interrupted);
  if (!built_in.empty() && !options.json) {
    write_error(fmt::format("No question given; asking \"{}\" (m3 run --help tells more).\n\n", built_in));
  }
  ChatView view(write_output,
                {.terminal = false, .color = false, .reasoning = options.show_reasoning || request.samples > 1});
  std::map<int, ReplyReader> readers;
  std::map<int, Json> logprobs;
  std::string error;
  double first_token_seconds = -1;
  const auto submitted = std::chrono::steady_clock::now();
  generate(
      engine, request,
      [&](const Event& event) {
        if (first_token_seconds < 0)
          first_token_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - submitted).count();
        ReplyReader& reader = readers.try_emplace(event.sample, chat).first->second;
        add_logprobs(engine, event, logprobs.try_emplace(event.sample, Json::array()).first->second);
        if (event.finish == FinishReason::error && error.empty()) error = event.error;
        for (const chat::ParseEvent& part : reader.take(event)) {
          if (!options.json) view.show(part);
        }
      },
      interrupted);
  if (!options.json) view.end_reply();
  if (!error.empty()) fail("{}", error);
  if (options.json) {
    Json samples = Json::array();
    for (const auto& [index, reader] : readers) {
      samples.push_back(sample_json(reader.reply(), logprobs[index], request.logprobs >= 0));
    }
    write_output(reply_json(std::move(samples), engine, loaded.load_seconds, first_token_seconds));
  }
  if (options.stats) print_stats(engine, request.samples, loaded.load_seconds, options.model.engine.threads);
  if (interrupted()) return 130;
  const ChatReply& reply = readers.at(0).reply();
  if (!options.json && reply.finish == FinishReason::length && reply.output.content.empty() &&
      reply.output.calls.empty()) {
    fail("the token limit ended the reply within its reasoning; raise --max-tokens or add --thinking disabled");
  }
  return 0;
}

// Reads lines until the person has had enough.
int chat_at_terminal(const RunOptions& options, const ChatModel& model, chat::Conversation conversation,
                     const Request& base, const std::vector<chat::Conversation::Attachment>& shown) {
  const LoadedEngine loaded = load_engine(options);
  Engine& engine = *loaded.engine;
  ChatView view(write_output, {.terminal = true, .color = wants_color(), .reasoning = true});
  ChatSession session(
      std::move(conversation),
      [&](const chat::Conversation& asked) {
        clear_interrupt();
        return model.reply(
            engine, asked, base, [&](const chat::ParseEvent& part) { view.show(part); }, interrupted);
      },
      [&](const chat::Conversation::Attachment& attached) {
        clear_interrupt();
        model.look_at(engine.info(), attached, interrupted);
      },
      view, shown);
  for (const chat::Conversation::Attachment& attached : shown) model.look_at(engine.info(), attached, interrupted);
  LineEditor editor;
  view.note(fmt::format("{} on {}; /help lists commands", engine.info().name, engine.info().backend));
  int code = 0;
  for (bool warned = false;;) {
    const InputLine line = editor.read(session.prompt());
    if (line.kind == InputLine::Kind::end) break;
    if (line.kind == InputLine::Kind::interrupted) {
      if (warned && line.was_empty) {
        code = 130;
        break;
      }
      warned = line.was_empty;
      if (warned) view.note("(Ctrl-C again, Ctrl-D or /quit ends)");
      continue;
    }
    warned = false;
    if (!session.handle(line.text)) break;
  }
  if (options.stats) print_stats(engine, 1, loaded.load_seconds, options.model.engine.threads);
  return code;
}

}  // namespace

int run_chat(const CLI::App& command, const RunOptions& options) {
  const Request base = options.sampling.finish();
  const ChatModel model(options.model.path(), own_media(options));
  chat::Conversation conversation = begin(command, options);
  const bool asked = command.count("--prompt") > 0 || command.count("--prompt-file") > 0;
  const std::vector<chat::Conversation::Attachment> shown = attachments(options);
  // A request file that ends with a question needs no other.
  const bool complete = conversation.awaits_reply();
  if (complete && !asked && !shown.empty())
    fail_usage("--image and --video go with a question of their own: add --prompt TEXT");
  if (!asked && is_terminal(STDIN_FILENO) && is_terminal(STDOUT_FILENO) && !options.json && !complete)
    return chat_at_terminal(options, model, std::move(conversation), base, shown);
  std::string built_in;
  const bool input_taken = options.request == "-" || options.tools == "-" || options.json_schema == "-";
  if (!complete || asked) {
    std::optional<std::string> question;
    if (asked || !input_taken) question = given_prompt(command, options);
    if (!question && command.count("--request") > 0) {
      fail_usage("--request {}: its messages end with no question; add --prompt TEXT", options.request);
    }
    if (!question) question = built_in = sample_question(shown);
    if (question->empty())
      fail_usage("the prompt is empty: give --prompt TEXT, --prompt-file FILE, or text on standard input");
    while ((command.count("--prompt") == 0 || options.prompt == "-") && question->ends_with('\n')) question->pop_back();
    conversation.add_user(*question, shown);
  }
  return answer_once(options, model, conversation, base, built_in);
}

}  // namespace m3::cli
