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

// The number of bytes and the SHA-256 of a block, as the model's format states them, computed here by a plain loop.
std::string sha256(const std::string& text) {
  static constexpr auto constants = [] {
    // Fractional parts of the cube roots of the first 64 primes.
    return std::array<std::uint32_t, 64>{
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  }();
  std::array<std::uint32_t, 8> h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string padded = text;
  padded += '\x80';
  while (padded.size() % 64 != 56) padded += '\0';
  for (int i = 7; i >= 0; --i) padded += static_cast<char>(static_cast<std::uint64_t>(text.size()) * 8 >> (8 * i));
  const auto turn = [](std::uint32_t x, int n) { return x >> n | x << (32 - n); };
  for (std::size_t block = 0; block < padded.size(); block += 64) {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t i = 0; i < 64; ++i) w[i / 4] = w[i / 4] << 8 | static_cast<unsigned char>(padded[block + i]);
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t a = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3;
      const std::uint32_t b = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    auto s = h;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t one = s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) +
                                ((s[4] & s[5]) ^ (~s[4] & s[6])) + constants[i] + w[i];
      const std::uint32_t two =
          (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {one + two, s[0], s[1], s[2], s[3] + one, s[4], s[5], s[6]};
    }
    for (std::size_t i = 0; i < 8; ++i) h[i] += s[i];
  }
  std::string out;
  for (const std::uint32_t word : h) out += fmt::format("{:08x}", word);
  return out;
}

TEST(PublicTemplate, DigestsHold) {
  const char* path = std::getenv("M3_PUBLIC_TEMPLATE");
  if (path == nullptr) GTEST_SKIP() << "M3_PUBLIC_TEMPLATE names no file";
  ASSERT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
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
  EXPECT_EQ(sha256(identity), "476e8e637968115fe28849c4dc2ffa20bc00413827a1c3c9c2bd645fc5af0a72");
  const std::array<std::array<std::string, 2>, 3> blocks = {
      {{"enabled", "f9dda5e65ba1c3a9d37c74409e00ed14a250fd9f16e5ad985f6fb6719ca452cc"},
       {"disabled", "0c25f917f717d5d0e24d7fb48b87d99c7e09a022a60f0f38c038025dabf6a5ef"},
       {"adaptive", "b8bbd8d02f31b7fb9be3c4d1563567c7e496875017b74032089431aa82b95045"}}};
  for (const auto& [mode, digest] : blocks) {
    EXPECT_EQ(sha256(between(render(mode), "\n\n<thinking_instructions>", "[e~[")), digest) << mode;
  }
  const std::string tools = between(enabled, "\n\n# Tools", "<tool>{");
  EXPECT_EQ(tools.size(), 132u);
  EXPECT_EQ(sha256(tools), "ac48849593b343fb7224e7d5dc57ab0f98ffedf1024f5604261460296491225f");
  const std::string suffix = between(enabled, "</tools>", "[e~[");
  EXPECT_EQ(suffix.size(), 678u);
  EXPECT_EQ(sha256(suffix), "24fdd6c5fc16e679ac942680867cb47cde20ec7d7280c44360904c1fbb09cb81");
}

}  // namespace
}  // namespace m3::chat
