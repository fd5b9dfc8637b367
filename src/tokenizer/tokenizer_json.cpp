#include "src/tokenizer/tokenizer_json.h"

#include "src/base/error.h"
#include "src/tokenizer/utf8.h"

namespace m3 {

namespace {

using nlohmann::json;

constexpr std::size_t max_depth = 64;

class Reader {
 public:
  Reader(TokenizerJson& result, const std::string& where) : result_(result), where_(where) {}

  // The events of nlohmann's parser.
  using number_integer_t = json::number_integer_t;
  using number_unsigned_t = json::number_unsigned_t;
  using number_float_t = json::number_float_t;
  using string_t = json::string_t;
  using binary_t = json::binary_t;

  bool null() { return value(nullptr); }
  bool boolean(bool item) { return value(item); }
  bool number_integer(number_integer_t item) { return value(item); }
  bool number_float(number_float_t item, const string_t&) { return value(item); }
  bool binary(binary_t&) { return false; }

  bool number_unsigned(number_unsigned_t item) {
    if (mode_ != Mode::vocab) return value(item);
    result_.vocab.emplace_back(token_, item);
    return true;
  }

  bool string(string_t& item) {
    if (mode_ == Mode::merges) return merge(item);
    if (mode_ != Mode::pair) return value(item);
    if (pair_size_ < 2) pair_[pair_size_] = store(item);
    ++pair_size_;
    return true;
  }

  bool start_object(std::size_t) {
    if (mode_ == Mode::document && at_model("vocab")) {
      if (result_.has_vocab) fail("{}: model.vocab stands twice", where_);
      result_.has_vocab = true;
      mode_ = Mode::vocab;
      return true;
    }
    return open(json::object());
  }

  bool start_array(std::size_t) {
    if (mode_ == Mode::merges) {
      mode_ = Mode::pair;
      pair_size_ = 0;
      return true;
    }
    if (mode_ == Mode::document && at_model("merges")) {
      if (result_.has_merges) fail("{}: model.merges stands twice", where_);
      result_.has_merges = true;
      mode_ = Mode::merges;
      return true;
    }
    return open(json::array());
  }

  bool key(string_t& name) {
    if (mode_ == Mode::vocab) {
      token_ = store(name);
      return true;
    }
    if (stack_.back()->contains(name)) fail("{}: the key {} stands twice in one object", where_, in_quotes(name));
    key_ = name;
    return true;
  }

  bool end_object() {
    if (mode_ == Mode::vocab) {
      mode_ = Mode::document;
    } else {
      close();
    }
    return true;
  }

  bool end_array() {
    if (mode_ == Mode::pair) {
      if (pair_size_ != 2) fail("{}: merge {} has {} parts, expected 2", where_, result_.merges.size(), pair_size_);
      result_.merges.emplace_back(pair_[0], pair_[1]);
      mode_ = Mode::merges;
    } else if (mode_ == Mode::merges) {
      mode_ = Mode::document;
    } else {
      close();
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) {
    fail("{}: not valid JSON at byte {}", where_, position);
  }

 private:
  enum class Mode { document, vocab, merges, pair };

  TokenizerJson::Text store(std::string_view text) {
    const TokenizerJson::Text range{result_.pool.size(), text.size()};
    result_.pool.append(text);
    return range;
  }

  bool at_model(std::string_view name) const {
    return stack_.size() == 2 && key_ == name && stack_[1]->is_object() && model_open_;
  }

  // "left right", neither of which holds a space.
  bool merge(const std::string& text) {
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      fail("{}: merge {} is not two tokens with a space between", where_, result_.merges.size());
    }
    const TokenizerJson::Text range = store(text);
    result_.merges.emplace_back(TokenizerJson::Text{range.offset, space},
                                TokenizerJson::Text{range.offset + space + 1, range.length - space - 1});
    return true;
  }

  json* insert(json item) {
    if (mode_ == Mode::vocab)
      fail("{}: the id of token {} is not an unsigned integer", where_, in_quotes(result_.text(token_)));
    if (mode_ != Mode::document) fail("{}: merge {} is not made of strings", where_, result_.merges.size());
    if (stack_.empty()) {
      result_.document = std::move(item);
      return &result_.document;
    }
    if (stack_.back()->is_array()) {
      stack_.back()->push_back(std::move(item));
      return &stack_.back()->back();
    }
    return &((*stack_.back())[key_] = std::move(item));
  }

  bool value(json item) {
    insert(std::move(item));
    return true;
  }

  bool open(json item) {
    if (stack_.size() >= max_depth) fail("{}: nested deeper than {} levels", where_, max_depth);
    const bool is_model = stack_.size() == 1 && item.is_object() && stack_[0]->is_object() && key_ == "model";
    stack_.push_back(insert(std::move(item)));
    if (is_model) model_open_ = true;
    return true;
  }

  void close() {
    stack_.pop_back();
    if (stack_.size() < 2) model_open_ = false;
  }

  TokenizerJson& result_;
  const std::string& where_;
  std::vector<json*> stack_;  // open containers; a parent does not move while a child is open
  std::string key_;
  Mode mode_ = Mode::document;
  bool model_open_ = false;
  TokenizerJson::Text token_;
  TokenizerJson::Text pair_[2];
  std::size_t pair_size_ = 0;
};

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where) {
  TokenizerJson result;
  Reader reader(result, where);
  json::sax_parse(text.begin(), text.end(), &reader);
  if (!result.document.is_object()) fail("{}: not a JSON object", where);
  return result;
}

}  // namespace m3
