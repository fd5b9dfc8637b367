#include "src/checkpoint/drafts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "src/checkpoint/names.h"
#include "src/checkpoint/problems.h"

namespace m3 {

namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : static_cast<char>(c);
  });
  return result;
}

}  // namespace

std::string draft_description(const std::vector<std::string>& architectures, std::string_view model_type) {
  std::vector<std::string> names = architectures;
  names.emplace_back(model_type);
  for (const std::string& name : names) {
    const std::string plain = lower(name);
    const auto holds = [&](std::string_view word) { return plain.find(word) != std::string::npos; };
    const char* kind = holds("eagle")    ? "an EAGLE3 draft checkpoint"
                       : holds("dspark") ? "a DSpark draft checkpoint"
                       : holds("mtp")    ? "a multi-token-prediction draft checkpoint"
                                         : nullptr;
    if (kind != nullptr) return fmt::format("{} ({})", kind, printable(name));
  }
  return "";
}

std::string draft_tensor(std::string_view name) {
  auto parts = split_name(name);
  if (!parts.empty() && parts.front() == "language_model") parts.erase(parts.begin());
  if (!parts.empty() && parts.front() == "model") parts.erase(parts.begin());
  if (parts.empty()) return "";
  if (parts.front() == "dspark") return "a DSpark draft's tensor";
  constexpr std::array eagle = {"fc", "fc_norm", "midlayer", "d2t", "t2d"};
  if (std::find(eagle.begin(), eagle.end(), parts.front()) != eagle.end()) return "an EAGLE3 draft's tensor";
  constexpr std::array dspark = {"markov_head", "confidence_head", "hidden_norm", "final_norm"};
  if (std::find(dspark.begin(), dspark.end(), parts.front()) != dspark.end()) return "a DSpark draft's tensor";
  return "";
}

}  // namespace m3
