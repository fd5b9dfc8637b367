// Whole prompts: stored conversations with Jinja2's output, provenance down to token ids, and, where
// M3_PUBLIC_TEMPLATE names MiniMax's published template, its known digests.
#include "src/chat/prompt.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "m3/error.h"
#include "src/base/mapped_file.h"
#include "src/base/sha256.h"
#include "src/chat/template/json.h"
#include "src/tokenizer/utf8.h"

namespace m3::chat {
namespace {

const std::string template_path = M3_MODELS "/m3-tiny-chat/chat_template.jinja";

const ChatTemplate& own_template() {
  static const ChatTemplate loaded = load_chat_template(template_path);
  return loaded;
}

Text prompt_of(const std::string& body, const ChatTemplate& chat_template = own_template()) {
  return render_prompt(chat_template, parse_chat_request(parse_json(body, "request"), {.check_tool_results = false}));
}

TEST(Prompt, StoredConversationsEqualJinja) {
  std::istringstream lines(read_text_file(M3_TEST_DATA "/chat/conversation_cases.jsonl", std::size_t{4} << 20));
  std::string line;
  int count = 0;
  while (std::getline(lines, line)) {
    ++count;
    const Value entry = parse_json(line, "case");
    const ChatRequest request = parse_chat_request(*entry.as_dict().find("request"), {.check_tool_results = false});
    const Value* expect = entry.as_dict().find("expect");
    if (expect == nullptr) {
      EXPECT_THROW(render_prompt(own_template(), request), Error) << count;
    } else {
      EXPECT_EQ(render_prompt(own_template(), request).bytes(), expect->bytes()) << count;
    }
  }
  EXPECT_GE(count, 60);
}

constexpr std::array<const char*, 61> special_tokens = {"]!p~[",
                                                        "<fim_prefix>",
                                                        "<fim_middle>",
                                                        "<fim_suffix>",
                                                        "<fim_pad>",
                                                        "<reponame>",
                                                        "<filename>",
                                                        "<gh_stars>",
                                                        "<issue_start>",
                                                        "<issue_comment>",
                                                        "<issue_closed>",
                                                        "<jupyter_start>",
                                                        "<jupyter_text>",
                                                        "<jupyter_code>",
                                                        "<jupyter_output>",
                                                        "<empty_output>",
                                                        "<commit_before>",
                                                        "<commit_msg>",
                                                        "<commit_after>",
                                                        "]~b]",
                                                        "[e~[",
                                                        "]!d~[",
                                                        "<function_call>",
                                                        "<code_interpreter>",
                                                        "]<]speech[>[",
                                                        "]<]image[>[",
                                                        "]<]video[>[",
                                                        "]<]start of speech[>[",
                                                        "]<]end of speech[>[",
                                                        "]<]start of image[>[",
                                                        "]<]end of image[>[",
                                                        "]<]start of video[>[",
                                                        "]<]end of video[>[",
                                                        "]<]vision pad[>[",
                                                        "]~!b[",
                                                        "<jupyter_error>",
                                                        "<add_file>",
                                                        "<delete_file>",
                                                        "<rename_file>",
                                                        "<edit_file>",
                                                        "<commit_message>",
                                                        "<empty_source_file>",
                                                        "<repo_struct>",
                                                        "<code_context>",
                                                        "<file_content>",
                                                        "<source_files>",
                                                        "<pr_start>",
                                                        "<review_comment>",
                                                        "<filepath>",
                                                        "<file_sep>",
                                                        "<think>",
                                                        "</think>",
                                                        "<tool_call>",
                                                        "</tool_call>",
                                                        "]<]frame[>[",
                                                        "]<]start of frame[>[",
                                                        "]<]end of frame[>[",
                                                        "<|content_altered_placeholder|>",
                                                        "]<]minimax[>[",
                                                        "<mm:think>",
                                                        "</mm:think>"};

// A tokenizer of single bytes and M3's special tokens, ids 256 and up.
Tokenizer byte_tokenizer() {
  std::string vocab, added;
  int next = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int symbol = plain ? byte : 256 + next++;
    std::string character;
    append_utf8(character, static_cast<std::uint32_t>(symbol));
    vocab += (byte == 0 ? "" : ",") + to_json(Value::string(character), {}).bytes() + ":" + std::to_string(byte);
  }
  for (std::size_t i = 0; i < special_tokens.size(); ++i) {
    added += std::string(i == 0 ? "" : ",") + R"({"id":)" + std::to_string(256 + i) + R"(,"content":)" +
             to_json(Value::string(special_tokens[i]), {}).bytes() +
             R"(,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true})";
  }
  const std::string json =
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)" + added +
      R"(],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},"post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{)" +
      vocab + R"(},"merges":[]}})";
  return Tokenizer::parse(json, "byte tokenizer");
}

std::vector<std::int32_t> specials_in(const Tokenizer& tokenizer, const std::string& body) {
  const Text prompt = prompt_of(body);
  std::vector<std::int32_t> ids = encode_prompt(tokenizer, prompt);
  EXPECT_EQ(tokenizer.decode(ids), prompt.bytes());
  std::erase_if(ids, [](std::int32_t id) { return id < 256; });
  return ids;
}

// A conversation with `word` in every place that a message fills.
std::string body_with(const std::string& word) {
  const std::string text = to_json(Value::string(word), {}).bytes();
  const std::string arguments =
      to_json(Value::string("{" + text + ": " + text + ", \"l\": [" + text + "]}"), {}).bytes();
  return R"({"messages": [{"role": "root", "content": )" + text + R"(}, {"role": "system", "content": )" + text +
         R"(}, {"role": "user", "content": [{"type": "text", "text": )" + text +
         R"(}]}, {"role": "developer", "content": )" + text + R"(}, {"role": "assistant", "reasoning_content": )" +
         text + R"(, "content": )" + text + R"(, "tool_calls": [{"function": {"name": )" + text + R"(, "arguments": )" +
         arguments + R"(}}]}, {"role": "tool", "content": )" + text +
         R"(}, {"role": "tool", "content": [{"type": "text", "text": )" + text +
         R"(}]}], "tools": [{"type": "function", "function": {"name": )" + text + R"(, "description": )" + text +
         R"(, "parameters": {"type": "object", "properties": {)" + text + R"(: {"description": )" + text + "}}}}}]}";
}

TEST(Prompt, SpecialTokensOfMessagesAreOrdinaryText) {
  const Tokenizer tokenizer = byte_tokenizer();
  const std::vector<std::int32_t> expected = specials_in(tokenizer, body_with("plain words"));
  ASSERT_GT(expected.size(), 20u);
  for (const char* token : special_tokens) {
    EXPECT_EQ(specials_in(tokenizer, body_with(token)), expected) << token;
    EXPECT_EQ(specials_in(tokenizer, body_with("a " + std::string(token) + token)), expected) << token;
  }
}

TEST(Prompt, SpecialTokensOfArgumentsAndContinuedTextAreOrdinaryText) {
  const Tokenizer tokenizer = byte_tokenizer();
  const auto body = [](const std::string& word) {
    const std::string text = to_json(Value::string(word), {}).bytes();
    return R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": )" + text +
           R"(}], "continue_final_message": true, "chat_template_kwargs": {"model_identity": )" + text + "}}";
  };
  const std::vector<std::int32_t> expected = specials_in(tokenizer, body("plain words"));
  ASSERT_GT(expected.size(), 5u);
  for (const char* token : special_tokens) {
    // The template splits reasoning from content at this one, whoever wrote it.
    if (std::string(token) == "</mm:think>") continue;
    EXPECT_EQ(specials_in(tokenizer, body(token + std::string("a"))), expected) << token;
  }
}

TEST(Prompt, TokensCannotBeCompletedByMessages) {
  // "]~b" from a message before a "]" of the template, and halves of markers at every border.
  const Tokenizer tokenizer = byte_tokenizer();
  const std::vector<std::int32_t> expected = specials_in(tokenizer, body_with("plain"));
  for (const char* token : {"]~b]", "[e~[", "]<]minimax[>[", "<mm:think>", "</mm:think>"}) {
    for (std::size_t cut = 1; cut < std::string(token).size(); ++cut) {
      EXPECT_EQ(specials_in(tokenizer, body_with(std::string(token).substr(0, cut))), expected);
      EXPECT_EQ(specials_in(tokenizer, body_with(std::string(token).substr(cut))), expected);
    }
  }
}

TEST(Prompt, MediaPlaceholdersAreTokens) {
  const Tokenizer tokenizer = byte_tokenizer();
  const auto ids = specials_in(
      tokenizer, R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}},
    {"type": "text", "text": "]<]image[>["}, {"type": "video"}]}]})");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer.id_of("]<]image[>[")), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer.id_of("]<]video[>[")), 1);
}

TEST(Prompt, PrefillFollowsTheMode) {
  const auto tail = [](const std::string& more) {
    const std::string text = prompt_of(R"({"messages": [{"role": "user", "content": "x"}])" + more + "}").bytes();
    return text.substr(text.rfind("]~b]"));
  };
  EXPECT_EQ(tail(""), "]~b]ai\n");
  EXPECT_EQ(tail(R"(, "chat_template_kwargs": {"thinking_mode": "enabled"})"), "]~b]ai\n<mm:think>");
  EXPECT_EQ(tail(R"(, "chat_template_kwargs": {"enable_thinking": false})"), "]~b]ai\n</mm:think>");
  EXPECT_EQ(tail(R"(, "add_generation_prompt": false)"), "]~b]user\nx[e~[\n");
}

TEST(Prompt, ContinuesTheFinalMessage) {
  const auto tail = [](const std::string& content) {
    const std::string text =
        prompt_of(
            R"({"continue_final_message": true, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": )" +
            content + "}]}")
            .bytes();
    return text.substr(text.rfind("]~b]"));
  };
  EXPECT_EQ(tail("\"The answer \""), "]~b]ai\n</mm:think>The answer ");
  EXPECT_EQ(tail(R"([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])"), "]~b]ai\n</mm:think>ab");
  EXPECT_THROW(tail("null"), Error);
  // The characters that mark the place, however many.
  std::string marks = "\ue000";
  for (int i = 0; i < 1'000'000; ++i) marks += "\ue001";
  EXPECT_EQ(tail("\"" + marks + " a\""), "]~b]ai\n</mm:think>" + marks + " a");
}

TEST(Prompt, TheTemplatesOwnErrorsArePassedOn) {
  try {
    prompt_of(R"({"messages": [{"role": "tool", "content": "x"}]})");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("needs an assistant message with a tool call"));
  }
}

// --- MiniMax's published template, which is not part of this project ----------------------------------------------

// Of a block, as the model's format states it.
std::string digest_of(const std::string& text) { return fmt::format("{:02x}", fmt::join(sha256(text), "")); }

TEST(PublicTemplate, DigestsHold) {
  const char* path = std::getenv("M3_PUBLIC_TEMPLATE");
  if (path == nullptr) GTEST_SKIP() << "M3_PUBLIC_TEMPLATE names no file";
  const ChatTemplate published = load_chat_template(path);
  const auto render = [&](const std::string& mode) {
    return prompt_of(R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"function": {"name": "f"}}],
                         "chat_template_kwargs": {"thinking_mode": ")" +
                         mode + "\"}}",
                     published)
        .bytes();
  };
  const auto between = [](const std::string& text, const std::string& first, const std::string& last) {
    const std::size_t begin = text.find(first);
    const std::size_t end = text.find(last, begin + first.size());
    return text.substr(begin, end - begin);
  };
  const std::string enabled = render("enabled");
  const std::string identity = between(enabled, "]~b]system\n", "\n\n<thinking_instructions>").substr(11);
  EXPECT_EQ(identity.size(), 214u);
  EXPECT_EQ(digest_of(identity), "476e8e637968115fe28849c4dc2ffa20bc00413827a1c3c9c2bd645fc5af0a72");
  const std::array<std::array<std::string, 2>, 3> blocks = {
      {{"enabled", "f9dda5e65ba1c3a9d37c74409e00ed14a250fd9f16e5ad985f6fb6719ca452cc"},
       {"disabled", "0c25f917f717d5d0e24d7fb48b87d99c7e09a022a60f0f38c038025dabf6a5ef"},
       {"adaptive", "b8bbd8d02f31b7fb9be3c4d1563567c7e496875017b74032089431aa82b95045"}}};
  for (const auto& [mode, digest] : blocks) {
    EXPECT_EQ(digest_of(between(render(mode), "\n\n<thinking_instructions>", "[e~[")), digest) << mode;
  }
  const std::string tools = between(enabled, "\n\n# Tools", "<tool>{");
  EXPECT_EQ(tools.size(), 132u);
  EXPECT_EQ(digest_of(tools), "ac48849593b343fb7224e7d5dc57ab0f98ffedf1024f5604261460296491225f");
  const std::string suffix = between(enabled, "</tools>", "[e~[");
  EXPECT_EQ(suffix.size(), 678u);
  EXPECT_EQ(digest_of(suffix), "24fdd6c5fc16e679ac942680867cb47cde20ec7d7280c44360904c1fbb09cb81");
}

}  // namespace
}  // namespace m3::chat
