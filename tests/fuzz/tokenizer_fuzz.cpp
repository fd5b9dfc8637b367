// A tokenizer.json of any bytes loads or fails with one line; any text survives encode and decode. The first byte says
// which: odd, the rest is a text for a fixed tokenizer; even, the rest is a tokenizer.json.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <spdlog/spdlog.h>

#include "m3/error.h"
#include "src/tokenizer/byte_symbols.h"
#include "src/tokenizer/tokenizer.h"
#include "src/tokenizer/utf8.h"

namespace {

using m3::Tokenizer;

void require(bool holds) {
  if (!holds) std::abort();
}

// All bytes, some merges, and added tokens that touch words and spaces without stripping any.
Tokenizer fixed_tokenizer() {
  nlohmann::json vocab;
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string symbol;
    m3::append_utf8(symbol, m3::byte_symbol(static_cast<std::uint8_t>(byte)));
    vocab[symbol] = byte;
  }
  nlohmann::json merges;
  for (const auto& [left, right] :
       {std::pair{"a", "a"}, {"aa", "a"}, {"Ġ", "a"}, {"t", "h"}, {"th", "e"}, {"Ã", "©"}, {"aa", "aa"}}) {
    merges.push_back({left, right});
    vocab[std::string(left) + right] = vocab.size();
  }
  const nlohmann::json added = {{{"id", 1000}, {"content", "<s>"}, {"special", true}},
                                {{"id", 1001}, {"content", "<s><t>"}, {"special", false}},
                                {{"id", 1002}, {"content", "thethe"}, {"special", false}, {"single_word", true}}};
  const char* pattern =
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const nlohmann::json split = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
  const nlohmann::json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const nlohmann::json file = {{"added_tokens", added},
                               {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
                               {"decoder", {{"type", "ByteLevel"}}},
                               {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
  return Tokenizer::parse(file.dump(), "fixed");
}

void check_text(std::string_view text) {
  static const Tokenizer tokenizer = fixed_tokenizer();
  for (const bool parse_special : {false, true}) {
    const auto ids = tokenizer.encode(text, {.parse_special = parse_special});
    require(tokenizer.decode_bytes(ids) == text);
    require(tokenizer.decode(ids) == m3::to_valid_utf8(text));
    m3::IncrementalDecoder decoder(tokenizer);
    std::string joined;
    for (const std::int32_t id : ids) {
      const std::string part = decoder.push(id);
      require(m3::is_valid_utf8(part));
      joined += part;
    }
    require(joined + decoder.flush() == m3::to_valid_utf8(text));
    const m3::TextSegment halves[] = {{text.substr(0, text.size() / 2), parse_special},
                                      {text.substr(text.size() / 2), parse_special}};
    require(tokenizer.encode(halves) == ids);
  }
}

void check_file(std::string_view json) {
  try {
    const Tokenizer tokenizer = Tokenizer::parse(json, "fuzz");
    const auto ids = tokenizer.encode("The  quick\nbrown <s> fox's 12345 \xC3\xA9\xFF", {.parse_special = true});
    tokenizer.decode(ids);
  } catch (const m3::Error& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool quiet = (spdlog::set_level(spdlog::level::err), true);
  if (!quiet || size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) {
    check_text(rest);
  } else {
    check_file(rest);
  }
  return 0;
}
