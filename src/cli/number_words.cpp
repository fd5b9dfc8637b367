#include "src/cli/number_words.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string>

namespace m3::cli {
namespace {

// Nothing: no unit.
std::optional<double> unit(std::string_view word) {
  if (word.empty()) return 1;
  constexpr std::string_view small = "kmgt", capitals = "KMGT";
  const std::size_t letter = small.find(word[0]);
  const std::size_t power = (letter != std::string_view::npos ? letter : capitals.find(word[0])) + 1;
  if (power == 0) return std::nullopt;  // npos + 1
  const std::string_view rest = word.substr(1);
  const bool capital = letter == std::string_view::npos;
  const double exponent = static_cast<double>(power);
  if (rest == "iB" && capital) return std::pow(1024.0, exponent);
  if (rest == "B" && (capital || power == 1)) return std::pow(1000.0, exponent);
  if (!rest.empty()) return std::nullopt;
  return std::pow(capital ? 1024.0 : 1000.0, exponent);
}

CLI::Validator words(const char* what, const char* examples, bool automatic) {
  return CLI::Validator(
      [=](std::string& text) {
        if (automatic && text == "auto") text = "0";
        const auto number = parse_number_words(text);
        if (!number) return fmt::format("{} is not a number of {}; write {}", text, what, examples);
        text = std::to_string(*number);
        return std::string();
      },
      "", "");
}

}  // namespace

std::optional<std::int64_t> parse_number_words(std::string_view text) {
  constexpr double most = 4611686018427387904.0;  // 2^62
  const char* end = text.data() + text.size();
  std::int64_t whole = 0;
  if (const auto read = std::from_chars(text.data(), end, whole); read.ec == std::errc() && read.ptr == end) {
    return whole;
  }
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  double value = 0;
  const auto read = std::from_chars(text.data(), text.data() + digits, value, std::chars_format::fixed);
  const std::optional<double> factor = unit(text.substr(digits));
  if (digits == 0 || digits == text.size() || read.ec != std::errc() || read.ptr != text.data() + digits || !factor) {
    return std::nullopt;
  }
  const double product = value * *factor;
  if (!(product <= most)) return std::nullopt;
  return static_cast<std::int64_t>(product);
}

const CLI::Validator byte_words = words("bytes", "digits, 512M, 4G (powers of 1024) or 4g (of 1000)", false);
const CLI::Validator token_words = words("tokens", "digits, 32k (32,000) or 32K (32,768)", true);

}  // namespace m3::cli
