// A published checkpoint, opened: configuration, validated tensors, weights as views (spec §2).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/random_fill.h"
#include "src/checkpoint/config.h"
#include "src/checkpoint/text_weights.h"
#include "src/checkpoint/vision_weights.h"

namespace m3 {

struct OpenOptions {
  // "" keeps the stored formats; "ptpc_fp8" quantises linears at load (per-channel e4m3 weights, per-token e4m3
  // activations). Embedding, head, router and norms stay as stored, and so do 4-bit weights; MXFP8 ones are converted,
  // fp8 ones with a scale a row keep their codes.
  std::string quantization;
  // Tensor-name patterns ('*' matches any run of characters) that online quantisation leaves alone: whole published
  // names, from "layers." on, without ".weight"; a prefix of a name excludes all below it, a single component
  // ("o_proj") every name that has it. One that matches nothing is an error.
  std::vector<std::string> quantization_exclude;
  // Called between matrices with elements quantised and in all.
  std::function<void(std::int64_t done, std::int64_t total)> progress = nullptr;
};

class Checkpoint {
 public:
  // Validates everything before returning: each expected tensor present with its shape and type, nothing
  // unexplained left over. Errors list the first 20 problems and a count, each with name, expected, found.
  static Checkpoint open(const std::filesystem::path& directory, const OpenOptions& options = {});
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  const ModelConfig& config() const;
  const TextWeights& weights() const;
  const VisionWeights& vision() const;  // empty where the config has no vision_config
  const std::filesystem::path& directory() const;
  std::int64_t text_weight_bytes() const;    // stored bytes of the text model, scales included
  std::int64_t vision_weight_bytes() const;  // of the vision tower's files; 0 where it is random

  // Weights drawn from the seeded generator instead of files, in memory (see seeded_weights.h). `format` is
  // bf16, mxfp8, mxfp4 (routed experts, rest bf16), nvfp4 (routed experts, rest mxfp8) or fp8.
  static Checkpoint random(const ModelConfig& config, const std::string& format, std::uint64_t seed);
  // The same, but nothing is stored: matrices point at addresses that cannot be read, and made() says what would lie
  // there. For backends that make it in their own memory.
  static Checkpoint random_unmade(const ModelConfig& config, const std::string& format, std::uint64_t seed);
  std::span<const RandomPiece> made() const;  // empty where all weights are stored
  // The vision tower alone, in bf16 (patch embedding fp32), without a text model.
  static Checkpoint random_vision(const ModelConfig& config, std::uint64_t seed);

 private:
  struct Contents;
  static Checkpoint make_random(const ModelConfig& config, const std::string& format, std::uint64_t seed, bool stored);
  explicit Checkpoint(std::unique_ptr<Contents> contents);
  std::unique_ptr<Contents> contents_;
};

}  // namespace m3
