#include "src/tokenizer/tokenizer_file.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>

#include <spdlog/spdlog.h>

#include "src/base/error.h"
#include "src/tokenizer/tokenizer_json.h"
#include "src/tokenizer/utf8.h"

namespace m3 {

namespace {

using nlohmann::json;

// A component of the file, for error lines: "tokenizer.json: pre_tokenizer: ...".
class Component {
 public:
  Component(const json& value, std::string where) : value_(value), where_(std::move(where)) {
    if (!value_.is_object()) fail("{}: not an object", where_);
  }

  const std::string& where() const { return where_; }

  void allow_only(std::initializer_list<std::string_view> keys) const {
    for (const auto& [key, unused] : value_.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        fail("{}: the key {} is not known", where_, in_quotes(key));
    }
  }

  // Null where the key is absent.
  const json& at(const char* key) const {
    static const json nothing;
    const auto found = value_.find(key);
    return found == value_.end() ? nothing : *found;
  }

  bool boolean(const char* key, bool otherwise) const {
    const json& value = at(key);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) fail("{}: {} is not true or false", where_, key);
    return value.get<bool>();
  }

  std::string string(const char* key) const {
    const json& value = at(key);
    if (!value.is_string()) fail("{}: {} is not a string", where_, key);
    return value.get<std::string>();
  }

  const json& array(const char* key) const {
    const json& value = at(key);
    if (!value.is_array()) fail("{}: {} is not a list", where_, key);
    return value;
  }

 private:
  const json& value_;
  std::string where_;
};

SplitStep read_split(const Component& split) {
  split.allow_only({"type", "pattern", "behavior", "invert"});
  const bool invert = split.boolean("invert", false);
  SplitStep step;
  const std::string behavior = split.string("behavior");
  if (behavior == "Isolated") {
    step.keep = SplitStep::Keep::all;
  } else if (behavior == "Removed") {
    step.keep = invert ? SplitStep::Keep::matches : SplitStep::Keep::between;
  } else {
    fail("{}: the behavior {} is not implemented (Isolated and Removed are)", split.where(), in_quotes(behavior));
  }
  const Component pattern(split.at("pattern"), split.where() + ": pattern");
  pattern.allow_only({"Regex", "String"});
  if (pattern.at("String").is_string()) {
    if (pattern.at("Regex").is_string()) fail("{}: both Regex and String", pattern.where());
    step.pattern = pattern.string("String");
    if (std::get<std::string>(step.pattern).empty()) fail("{}: the String is empty", pattern.where());
    return step;
  }
  const std::string regex = pattern.string("Regex");
  if (regex.empty()) fail("{}: the Regex is empty", pattern.where());
  if (const KnownPattern known = recognise_pattern(regex); known != KnownPattern::none) {
    step.pattern = known;
    return step;
  }
  step.pattern = RegexPattern(regex, pattern.where());
  spdlog::warn("{}: not one of the known patterns; it runs under PCRE2, which may know an older Unicode and is slower",
               pattern.where());
  return step;
}

void read_byte_level(const Component& byte_level, PreTokenizer& result) {
  byte_level.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  result.add_prefix_space = byte_level.boolean("add_prefix_space", true);
  result.gpt2_split = byte_level.boolean("use_regex", true);
}

PreTokenizer read_pre_tokenizer(const json& value, const std::string& where) {
  if (value.is_null()) fail("{}: there is none; byte-level BPE needs ByteLevel", where);
  std::vector<Component> steps;
  const Component whole(value, where);
  if (whole.string("type") == "Sequence") {
    whole.allow_only({"type", "pretokenizers"});
    for (const json& step : whole.array("pretokenizers")) {
      steps.emplace_back(step, fmt::format("{}[{}]", where, steps.size()));
    }
  } else {
    steps.push_back(whole);
  }
  PreTokenizer result;
  bool byte_level = false;
  for (const Component& step : steps) {
    const std::string type = step.string("type");
    if (byte_level) fail("{}: {} after ByteLevel is not implemented", step.where(), in_quotes(type));
    if (type == "Split") {
      result.splits.push_back(read_split(step));
    } else if (type == "ByteLevel") {
      read_byte_level(step, result);
      byte_level = true;
    } else {
      fail("{}: the pre-tokeniser {} is not implemented (Sequence, Split and ByteLevel are)", step.where(),
           in_quotes(type));
    }
  }
  if (!byte_level) fail("{}: no ByteLevel step; only byte-level BPE is implemented", where);
  return result;
}

void check_normalizer(const json& value, const std::string& where) {
  if (value.is_null()) return;
  const Component normalizer(value, where);
  const std::string type = normalizer.string("type");
  if (type == "Sequence") {
    for (const json& step : normalizer.array("normalizers")) check_normalizer(step, where);
    return;
  }
  fail("{}: the normaliser {} is not implemented", where, in_quotes(type));
}

// Only what post-processors add at the ends would matter, and nothing is ever added; their type must be one
// that does no more than that.
void check_post_processor(const json& value, const std::string& where) {
  if (value.is_null()) return;
  const Component processor(value, where);
  const std::string type = processor.string("type");
  if (type == "ByteLevel" || type == "TemplateProcessing") return;
  if (type != "Sequence") fail("{}: the post-processor {} is not implemented", where, in_quotes(type));
  for (const json& step : processor.array("processors")) {
    const std::string inner = Component(step, where).string("type");
    if (inner != "ByteLevel" && inner != "TemplateProcessing") {
      fail("{}: the post-processor {} is not implemented", where, in_quotes(inner));
    }
  }
}

void check_decoder(const json& value, const std::string& where) {
  if (value.is_null()) fail("{}: there is none; byte-level BPE needs ByteLevel", where);
  const std::string type = Component(value, where).string("type");
  if (type != "ByteLevel") fail("{}: the decoder {} is not implemented (ByteLevel is)", where, in_quotes(type));
}

void check_model(const Component& model) {
  if (!model.at("type").is_null() && model.string("type") != "BPE") {
    fail("{}: the model type {} is not implemented (BPE is)", model.where(), in_quotes(model.string("type")));
  }
  model.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                    "byte_fallback", "ignore_merges", "vocab", "merges"});
  const json& dropout = model.at("dropout");
  if (!dropout.is_null() && !(dropout.is_number() && dropout.get<double>() == 0)) {
    fail("{}: dropout {} is not implemented", model.where(), in_quotes(dropout.dump()));
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.at(key).is_null() && !model.string(key).empty()) fail("{}: {} is not implemented", model.where(), key);
  }
  if (model.boolean("byte_fallback", false)) fail("{}: byte_fallback is not implemented", model.where());
  if (!model.at("unk_token").is_null()) model.string("unk_token");  // unused: every byte has a token
  model.boolean("fuse_unk", false);
  if (!model.at("vocab").is_null()) fail("{}: vocab is not an object", model.where());
  if (!model.at("merges").is_null()) fail("{}: merges is not a list", model.where());
}

void read_vocab(const TokenizerJson& file, const std::string& where, Vocabulary& vocabulary) {
  if (!file.has_vocab) fail("{}: model.vocab is missing", where);
  vocabulary.reserve(file.vocab.size());
  for (const auto& [range, id] : file.vocab) {
    const std::string_view content = file.text(range);
    if (id >= MergeTable::id_limit) {
      fail("{}: token {} has the id {}; the limit is {}", where, in_quotes(content), id, MergeTable::id_limit - 1);
    }
    if (vocabulary.add(static_cast<std::uint32_t>(id), content, false)) continue;
    if (vocabulary.id_of(content) >= 0) fail("{}: token {} stands twice in model.vocab", where, in_quotes(content));
    fail("{}: tokens {} and {} have the same id {}", where,
         in_quotes(vocabulary.content(static_cast<std::uint32_t>(id))), in_quotes(content), id);
  }
}

std::vector<Merge> read_merges(const TokenizerJson& file, const std::string& where, const Vocabulary& vocabulary) {
  if (!file.has_merges) fail("{}: model.merges is missing", where);
  if (file.merges.size() > MergeTable::merge_limit) {
    fail("{}: {} merges; the limit is {}", where, file.merges.size(), MergeTable::merge_limit);
  }
  std::vector<Merge> merges;
  merges.reserve(file.merges.size());
  std::string joined;
  const auto id_of = [&](std::string_view token) {
    const std::int32_t id = vocabulary.id_of(token);
    if (id < 0)
      fail("{}: merge {} needs the token {}, which model.vocab lacks", where, merges.size(), in_quotes(token));
    return static_cast<std::uint32_t>(id);
  };
  for (const auto& [left_range, right_range] : file.merges) {
    const std::string_view left = file.text(left_range);
    const std::string_view right = file.text(right_range);
    if (left.empty() || right.empty()) fail("{}: merge {} has an empty side", where, merges.size());
    joined.assign(left).append(right);
    merges.push_back({id_of(left), id_of(right), id_of(joined)});
  }
  return merges;
}

AddedToken read_added_token(const Component& entry) {
  entry.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token;
  token.content = entry.string("content");
  // The longest in published files have some 40 bytes; searching costs at most this much for each byte of
  // text.
  constexpr std::size_t longest = 1024;
  if (token.content.empty() || token.content.size() > longest) {
    fail("{}: the content has {} bytes, expected 1 to {}", entry.where(), token.content.size(), longest);
  }
  const json& id = entry.at("id");
  if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= MergeTable::id_limit) {
    fail("{}: the id {} of {} is not a whole number below {}", entry.where(), in_quotes(id.dump()),
         in_quotes(token.content), MergeTable::id_limit);
  }
  token.id = static_cast<std::int32_t>(id.get<std::uint64_t>());
  token.special = entry.boolean("special", false);
  token.single_word = entry.boolean("single_word", false);
  token.lstrip = entry.boolean("lstrip", false);
  token.rstrip = entry.boolean("rstrip", false);
  token.normalized = entry.boolean("normalized", !token.special);
  return token;
}

// An added token may stand in model.vocab too, under the same id.
std::vector<AddedToken> read_added_tokens(const Component& root, Vocabulary& vocabulary) {
  std::vector<AddedToken> tokens;
  if (root.at("added_tokens").is_null()) return tokens;
  std::vector<bool> seen;
  for (const json& value : root.array("added_tokens")) {
    const Component entry(value, fmt::format("{}: added_tokens[{}]", root.where(), tokens.size()));
    AddedToken token = read_added_token(entry);
    const auto id = static_cast<std::uint32_t>(token.id);
    if (id >= seen.size()) seen.resize(std::size_t{id} + 1);
    if (seen[id]) fail("{}: the id {} stands twice", entry.where(), id);
    seen[id] = true;
    const std::int32_t known = vocabulary.id_of(token.content);
    if (known >= 0 && known != token.id) {
      fail("{}: {} has the id {} here and {} elsewhere", entry.where(), in_quotes(token.content), token.id, known);
    }
    if (known == token.id) {
      vocabulary.make_literal(id);
    } else if (!vocabulary.add(id, token.content, true)) {
      fail("{}: {} and {} have the same id {}", entry.where(), in_quotes(vocabulary.content(id)),
           in_quotes(token.content), id);
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view text, const std::string& where) {
  const TokenizerJson file = parse_tokenizer_json(text, where);
  const Component root(file.document, where);
  // truncation and padding are left to the caller, as the transformers package does.
  root.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                   "decoder", "model"});
  const Component model(root.at("model"), where + ": model");
  check_model(model);
  check_normalizer(root.at("normalizer"), where + ": normalizer");
  check_post_processor(root.at("post_processor"), where + ": post_processor");
  check_decoder(root.at("decoder"), where + ": decoder");
  TokenizerFile result;
  result.pre_tokenizer = read_pre_tokenizer(root.at("pre_tokenizer"), where + ": pre_tokenizer");
  result.ignore_merges = model.boolean("ignore_merges", false);
  read_vocab(file, where, result.vocabulary);
  result.merges = read_merges(file, where, result.vocabulary);
  result.added_tokens = read_added_tokens(root, result.vocabulary);
  return result;
}

}  // namespace m3
