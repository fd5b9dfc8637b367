#include "src/tokenizer/tokenizer.h"

#include <mutex>
#include <utility>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/tokenizer/byte_symbols.h"
#include "src/tokenizer/piece_encoder.h"
#include "src/tokenizer/tokenizer_file.h"
#include "src/tokenizer/utf8.h"

namespace m3 {

namespace {

constexpr std::size_t file_limit = std::size_t{256} << 20;
constexpr std::size_t text_limit = (std::size_t{1} << 32) - 1;

// The token of each byte. All 256 are needed, so that any bytes can be encoded.
std::array<std::uint32_t, 256> byte_tokens(const Vocabulary& vocabulary, const std::string& where) {
  std::array<std::uint32_t, 256> ids{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string symbol;
    append_utf8(symbol, byte_symbol(static_cast<std::uint8_t>(byte)));
    const std::int32_t id = vocabulary.id_of(symbol);
    if (id < 0) fail("{}: model.vocab lacks {}, the token of the byte {}", where, in_quotes(symbol), byte);
    ids[byte] = static_cast<std::uint32_t>(id);
  }
  return ids;
}

}  // namespace

struct Tokenizer::Data {
  std::string where;
  Vocabulary vocabulary;
  BpeModel model;
  AddedTokenFinder added_tokens;
  PreTokenizer pre_tokenizer;
  bool ignore_merges = false;
  std::vector<bool> special;  // by id
  std::vector<bool> added;    // likewise

  // Encoders not in use, one for each thread that ever encoded at the same time.
  std::mutex mutex;
  std::vector<std::unique_ptr<PieceEncoder>> encoders;

  void encode(std::string_view text, const ByteRanges& markers, std::vector<std::int32_t>& ids);
  void encode_section(std::string_view text, PieceEncoder& encoder, std::vector<std::int32_t>& ids) const;
  const Vocabulary& vocabulary_with(std::int64_t id) const;
};

namespace {

// Takes an encoder out of the pool and puts it back.
template <typename Data>
class Lease {
 public:
  explicit Lease(Data& data) : data_(data) {
    {
      const std::lock_guard lock(data_.mutex);
      if (!data_.encoders.empty()) {
        encoder_ = std::move(data_.encoders.back());
        data_.encoders.pop_back();
      }
    }
    if (encoder_ == nullptr) encoder_ = std::make_unique<PieceEncoder>(data_.model);
  }
  ~Lease() {
    const std::lock_guard lock(data_.mutex);
    data_.encoders.push_back(std::move(encoder_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  PieceEncoder& encoder() { return *encoder_; }

 private:
  Data& data_;
  std::unique_ptr<PieceEncoder> encoder_;
};

}  // namespace

void Tokenizer::Data::encode(std::string_view text, const ByteRanges& markers, std::vector<std::int32_t>& ids) {
  if (text.size() >= text_limit)
    fail("a text of {} bytes is too long to encode; the limit is {}", text.size(), text_limit);
  ids.reserve(text.size() / 3 + 1);
  Lease lease(*this);
  if (markers.empty()) return encode_section(text, lease.encoder(), ids);
  for (const TextSection& section : added_tokens.find(text, markers)) {
    if (section.id >= 0) {
      ids.push_back(section.id);
    } else {
      encode_section(text.substr(section.begin, section.end - section.begin), lease.encoder(), ids);
    }
  }
}

void Tokenizer::Data::encode_section(std::string_view text, PieceEncoder& encoder,
                                     std::vector<std::int32_t>& ids) const {
  if (!ignore_merges) {
    pre_tokenizer.for_each_piece(text, [&](std::string_view piece) { encoder.encode(piece, ids); });
    return;
  }
  std::string spelling;
  pre_tokenizer.for_each_piece(text, [&](std::string_view piece) {
    spelling.clear();
    for (const char byte : piece) append_utf8(spelling, byte_symbol(static_cast<std::uint8_t>(byte)));
    const std::int32_t whole = vocabulary.id_of(spelling);
    if (whole >= 0) {
      ids.push_back(whole);
    } else {
      encoder.encode(piece, ids);
    }
  });
}

const Vocabulary& Tokenizer::Data::vocabulary_with(std::int64_t id) const {
  if (!vocabulary.has(id)) fail("{}: there is no token with the id {}", where, id);
  return vocabulary;
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  const std::filesystem::path file = std::filesystem::is_directory(path) ? path / "tokenizer.json" : path;
  return parse(read_text_file(file, file_limit), file.string());
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& where) {
  TokenizerFile file = parse_tokenizer_file(json, where);
  auto data = std::make_shared<Data>();
  data->where = where;
  data->model.byte_ids = byte_tokens(file.vocabulary, where);
  data->model.merges = MergeTable(file.merges);
  if (const auto& twice = data->model.merges.duplicate()) {
    fail("{}: merge {} repeats merge {}", where, twice->later, twice->earlier);
  }
  data->model.index_byte_pairs(file.merges);
  data->special.resize(static_cast<std::size_t>(file.vocabulary.size()));
  data->added.resize(data->special.size());
  for (const AddedToken& token : file.added_tokens) {
    data->special[static_cast<std::size_t>(token.id)] = token.special;
    data->added[static_cast<std::size_t>(token.id)] = true;
  }
  data->vocabulary = std::move(file.vocabulary);
  data->added_tokens = AddedTokenFinder(std::move(file.added_tokens));
  data->pre_tokenizer = std::move(file.pre_tokenizer);
  data->ignore_merges = file.ignore_merges;
  return Tokenizer(std::move(data));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  const TextSegment segment{text, options.parse_special};
  return encode(std::span(&segment, 1));
}

std::vector<std::int32_t> Tokenizer::encode(std::span<const TextSegment> segments) const {
  std::vector<std::int32_t> ids;
  std::string joined;
  ByteRanges markers;
  std::size_t position = 0;
  for (const TextSegment& segment : segments) {
    const std::size_t end = position + segment.text.size();
    if (segment.parse_special && position != end) {
      if (!markers.empty() && markers.back().second == position) {
        markers.back().second = end;
      } else {
        markers.emplace_back(position, end);
      }
    }
    position = end;
  }
  if (segments.size() == 1) {
    data_->encode(segments[0].text, markers, ids);
    return ids;
  }
  joined.reserve(position);
  for (const TextSegment& segment : segments) joined.append(segment.text);
  data_->encode(joined, markers, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  return to_valid_utf8(decode_bytes(ids, skip_special));
}

std::string Tokenizer::decode_bytes(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    const std::string_view token = token_bytes(id);
    if (!skip_special || !is_special(id)) bytes.append(token);
  }
  return bytes;
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  return data_->vocabulary_with(id).bytes(static_cast<std::uint32_t>(id));
}

std::string_view Tokenizer::token_text(std::int32_t id) const {
  return data_->vocabulary_with(id).content(static_cast<std::uint32_t>(id));
}

std::int32_t Tokenizer::id_of(std::string_view content) const { return data_->vocabulary.id_of(content); }

bool Tokenizer::is_added(std::int32_t id) const {
  const auto index = static_cast<std::size_t>(id);
  return id >= 0 && index < data_->added.size() && data_->added[index];
}

bool Tokenizer::is_special(std::int32_t id) const {
  return id >= 0 && static_cast<std::size_t>(id) < data_->special.size() &&
         data_->special[static_cast<std::size_t>(id)];
}

std::int64_t Tokenizer::vocab_size() const { return data_->vocabulary.size(); }
bool Tokenizer::has_token(std::int64_t id) const { return data_->vocabulary.has(id); }

IncrementalDecoder::IncrementalDecoder(Tokenizer tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

std::string IncrementalDecoder::push(std::int32_t id) {
  const std::string_view token = tokenizer_.token_bytes(id);
  if (skip_special_ && tokenizer_.is_special(id)) return {};
  pending_.append(token);
  const std::size_t certain = pending_.size() - incomplete_suffix(pending_);
  std::string text = to_valid_utf8(std::string_view(pending_).substr(0, certain));
  pending_.erase(0, certain);
  return text;
}

std::string IncrementalDecoder::flush() {
  std::string text = to_valid_utf8(pending_);
  pending_.clear();
  return text;
}

}  // namespace m3
