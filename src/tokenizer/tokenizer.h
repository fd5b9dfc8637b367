// Text to token ids and back, as a checkpoint's tokenizer.json defines it (byte-level BPE, spec §5.1). Ids
// equal those of the `tokenizers` package.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace m3 {

struct EncodeOptions {
  // true: the added tokens of the file (special or not) become their ids wherever they stand, as in the
  // `tokenizers` package with add_special_tokens=False. false: none does, not even the markers that are not
  // "special" such as <mm:think>; all text is ordinary, so that what a user writes cannot forge a marker.
  bool parse_special = false;
};

// A part of a text to encode as one: with parse_special for what a template wrote, without for what a message
// holds.
struct TextSegment {
  std::string_view text;
  bool parse_special = false;
};

// Cheap to copy; all functions may be called from any thread.
class Tokenizer {
 public:
  // `path`: a tokenizer.json, or the directory that holds one. At most 256 MiB. Errors: one line that names
  // the file and the component, key, token or merge that is missing, wrong or not implemented.
  static Tokenizer load(const std::filesystem::path& path);
  // From the text of a tokenizer.json; `where` begins every error line.
  static Tokenizer parse(std::string_view json, const std::string& where);

  // Any bytes: broken UTF-8 is split as if each broken part were U+FFFD, but its own bytes are encoded, so
  // that decode_bytes(encode(text)) == text (unless added tokens strip spaces or the pre-tokeniser removes
  // text). Nothing is added at either end. Errors: a text of 4 GiB or more.
  std::vector<std::int32_t> encode(std::string_view text, EncodeOptions options = {}) const;
  // The segments joined and encoded as one text. An added token is recognised only where it lies wholly
  // inside neighbouring segments with parse_special; pieces and merges cross the borders. Where no plain
  // segment holds or completes an added token, the ids are those of encode(joined text, parse_special).
  std::vector<std::int32_t> encode(std::span<const TextSegment> segments) const;

  // Valid UTF-8: the tokens' bytes joined, each broken part as U+FFFD (Python's errors="replace").
  // `skip_special` leaves out the tokens that the file calls special. Errors: an id without a token.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;
  // The tokens' bytes joined.
  std::string decode_bytes(std::span<const std::int32_t> ids, bool skip_special = false) const;

  // The bytes a token stands for; an added token stands for its content. Errors: an id without a token.
  std::string_view token_bytes(std::int32_t id) const;
  // A token as the file spells it (byte symbols: "Ġthe"). Errors: an id without a token.
  std::string_view token_text(std::int32_t id) const;
  // The id of a token as the file spells it; −1 where there is none.
  std::int32_t id_of(std::string_view content) const;
  bool is_special(std::int32_t id) const;
  // One of the file's added tokens, special or not: its text is its own content, and no ordinary text makes it.
  bool is_added(std::int32_t id) const;
  // One more than the highest id; a model's vocabulary may be larger. Some ids below may be without a token.
  std::int64_t vocab_size() const;
  bool has_token(std::int64_t id) const;

 private:
  struct Data;
  explicit Tokenizer(std::shared_ptr<Data> data) : data_(std::move(data)) {}
  std::shared_ptr<Data> data_;
};

// Turns ids into text as they come, never half a character.
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(Tokenizer tokenizer, bool skip_special = false);

  // The text that became certain with this token, possibly none. Errors: an id without a token.
  std::string push(std::int32_t id);
  // What is still held back, as U+FFFD; the decoder is then as new. All texts joined equal decode() of all
  // ids.
  std::string flush();

 private:
  Tokenizer tokenizer_;
  bool skip_special_ = false;
  std::string pending_;  // at most 3 bytes that begin a character
};

}  // namespace m3
