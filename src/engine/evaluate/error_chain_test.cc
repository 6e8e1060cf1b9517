// The error chain of a tiny model against sums in double precision: the first layer's rows are encoded by the slow judge, and its
// scores and outputs made from the definition.
#include "src/engine/evaluate/error_chain.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "oscar/kernels.h"
#include "oscar/reference.h"
#include "src/base/float_bits.h"
#include "src/testing/temporary_folder.h"
#include "src/testing/tiny_model.h"

namespace oscar::engine {
namespace {

using oscar::testing::TinyLayerRows;
using oscar::testing::TinyModel;

constexpr int kSink = 64, kRecent = 64;
constexpr PassExtent kExtent = {400, 8};

class ErrorChainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const oscar::testing::TemporaryFolder folder;
    tiny_.WriteTo(folder.path() / "tiny.gguf");
    auto model = Model::Load(folder.path() / "tiny.gguf", 1);  // the mapping stays
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = std::move(model).value();
    std::mt19937_64 rng(3);
    for (int i = 0; i < kExtent.positions; ++i) tokens_.push_back(static_cast<int32_t>(rng() % 97));
  }
  std::unique_ptr<KvCache> NewCache(const std::string& method) {
    KvCacheConfig config{.shape = tiny_.shape(), .sink = kSink, .recent = kRecent, .max_tokens = 512, .max_sequences = 1, .max_step_tokens = 512};
    return KvCache::Create(ParseKvMethod(method).value(), DataFreeProfile(method, tiny_.shape()).value(), config, model_->executor()).value();
  }
  CapturedPass Pass(KvCache& cache) {
    auto pass = CapturePass(*model_, cache, tokens_, kExtent, {});
    EXPECT_TRUE(pass.ok()) << pass.status().message();
    return std::move(pass).value();
  }
  ErrorChain ChainOf(const std::string& method) {
    const auto exact_cache = NewCache("bf16"), cache = NewCache(method);
    const CapturedPass exact = Pass(*exact_cache), pass = Pass(*cache);
    ErrorChain chain;
    chain.layers.resize(static_cast<size_t>(tiny_.shape().num_layers));
    const Status added = AddErrors(*model_, exact, pass, *cache, chain);
    EXPECT_TRUE(added.ok()) << added.message();
    return chain;
  }

  const TinyModel tiny_{{.context_length = 1024}};
  std::unique_ptr<Model> model_;
  std::vector<int32_t> tokens_;
};

TEST_F(ErrorChainTest, TheExactCacheAgainstItselfHasNoError) {
  const ErrorChain chain = ChainOf("bf16");
  for (const LayerErrors& layer : chain.layers) {
    for (const RelativeError& error : {layer.key, layer.value, layer.score, layer.output, layer.hidden}) EXPECT_EQ(error.value(), 0);
    EXPECT_NEAR(layer.mean_attention_kl(), 0, 1e-12);
    EXPECT_EQ(layer.num_attention, kExtent.sampled * tiny_.shape().num_query_heads);
  }
  EXPECT_EQ(chain.logits.value(), 0);
  EXPECT_EQ(chain.top1_agreement, kExtent.sampled);
}

TEST_F(ErrorChainTest, FewerBitsMakeLargerErrorsAtEveryLinkOfTheChain) {
  const ErrorChain coarse = ChainOf("int2:naive"), fine = ChainOf("q8_0");
  for (size_t i = 0; i < coarse.layers.size(); ++i) {
    const LayerErrors &more = coarse.layers[i], &less = fine.layers[i];
    EXPECT_GT(more.key_codec.value(), 10 * less.key_codec.value());
    EXPECT_GT(more.value_codec.value(), 10 * less.value_codec.value());
    EXPECT_GT(more.score.value(), 10 * less.score.value());
    EXPECT_GT(more.mean_attention_kl(), 10 * less.mean_attention_kl());
    EXPECT_GT(more.output.value(), 10 * less.output.value());
    EXPECT_GT(more.hidden.value(), 10 * less.hidden.value());
  }
  EXPECT_GT(coarse.logits.value(), 10 * fine.logits.value());
  EXPECT_GT(coarse.kl, 10 * fine.kl);
  // The first layer is given what the exact pass gives it; the second is not.
  EXPECT_DOUBLE_EQ(coarse.layers[0].key.value(), coarse.layers[0].key_codec.value());
  EXPECT_GT(coarse.layers[1].key.value(), coarse.layers[1].key_codec.value());
}

// Rows of the first layer in double, encoded by the judge.
class FirstLayerJudge {
 public:
  FirstLayerJudge(const TinyModel& tiny, const std::vector<int32_t>& tokens) : shape_(tiny.shape()) {
    std::vector<TinyLayerRows> layers;
    tiny.Logits(tokens, &layers);
    const CodecProfile profile = DataFreeProfile("int2:naive", shape_).value();
    queries_ = layers[0].queries;
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      for (const std::vector<double>& row : side == KvSide::kKey ? layers[0].keys : layers[0].values) {
        std::vector<double> exact, encoded;
        for (int head = 0; head < shape_.num_kv_heads; ++head) {
          std::vector<float> y;
          for (int c = 0; c < shape_.head_dim; ++c) y.push_back(base::RoundToBf16(static_cast<float>(row[static_cast<size_t>(head * shape_.head_dim + c)])));
          exact.insert(exact.end(), y.begin(), y.end());
          const std::vector<double> decoded = reference::DecodeRow(reference::EncodeRow(y, 2, profile.row(0, head, side)).value());
          encoded.insert(encoded.end(), decoded.begin(), decoded.end());
        }
        (side == KvSide::kKey ? exact_keys_ : exact_values_).push_back(std::move(exact));
        (side == KvSide::kKey ? encoded_keys_ : encoded_values_).push_back(std::move(encoded));
      }
    }
  }

  double RowError(KvSide side) const {
    const auto& exact = side == KvSide::kKey ? exact_keys_ : exact_values_;
    const auto& encoded = side == KvSide::kKey ? encoded_keys_ : encoded_values_;
    RelativeError error;
    for (int token = kSink; token < EncodedEnd(kExtent.positions, kSink, kRecent, kPageTokens); ++token) {
      const auto t = static_cast<size_t>(token);
      for (size_t i = 0; i < exact[t].size(); ++i) error.Add(encoded[t][i] - exact[t][i], exact[t][i]);
    }
    return error.value();
  }

  struct Attention {
    double score_error = 0, kl = 0;
    std::vector<std::vector<double>> exact, method;  // [sampled][Hq d], before the output projection
  };
  Attention Run() const {
    Attention result;
    RelativeError scores;
    for (int position = kExtent.first_sampled(); position < kExtent.positions; ++position) {
      result.exact.emplace_back();
      result.method.emplace_back();
      for (int head = 0; head < shape_.num_query_heads; ++head) {
        const Softmax exact = Weigh(position, head, false), method = Weigh(position, head, true);
        for (size_t t = 0; t < exact.scores.size(); ++t) {
          scores.Add(method.scores[t] - exact.scores[t], exact.scores[t]);
          result.kl += exact.weights[t] * std::log(exact.weights[t] / method.weights[t]);
        }
        result.exact.back().insert(result.exact.back().end(), exact.output.begin(), exact.output.end());
        result.method.back().insert(result.method.back().end(), method.output.begin(), method.output.end());
      }
    }
    result.score_error = scores.value();
    result.kl /= kExtent.sampled * shape_.num_query_heads;
    return result;
  }

 private:
  struct Softmax {
    std::vector<double> scores, weights, output;  // scores less their mean
  };
  Softmax Weigh(int position, int head, bool encoded) const {
    Softmax softmax;
    const int d = shape_.head_dim, kv_head = head / shape_.group();
    const auto sees_encoded = [&](int token) { return encoded && IsEncoded(token, position, kSink, kRecent); };
    const auto element = [&](const std::vector<std::vector<double>>& rows, int token, int c) {
      return rows[static_cast<size_t>(token)][static_cast<size_t>(kv_head * d + c)];
    };
    double mean = 0, total = 0;
    for (int token = 0; token <= position; ++token) {
      double dot = 0;
      for (int c = 0; c < d; ++c) {
        dot += queries_[static_cast<size_t>(position)][static_cast<size_t>(head * d + c)] * element(sees_encoded(token) ? encoded_keys_ : exact_keys_, token, c);
      }
      softmax.scores.push_back(dot / std::sqrt(d));
      mean += softmax.scores.back() / (position + 1);
    }
    for (double& score : softmax.scores) {
      score -= mean;
      softmax.weights.push_back(std::exp(score));
      total += softmax.weights.back();
    }
    softmax.output.assign(static_cast<size_t>(d), 0);
    for (int token = 0; token <= position; ++token) {
      double& weight = softmax.weights[static_cast<size_t>(token)];
      weight /= total;
      for (int c = 0; c < d; ++c) softmax.output[static_cast<size_t>(c)] += weight * element(sees_encoded(token) ? encoded_values_ : exact_values_, token, c);
    }
    return softmax;
  }

  const KvShape shape_;
  std::vector<std::vector<double>> queries_, exact_keys_, exact_values_, encoded_keys_, encoded_values_;
};

TEST_F(ErrorChainTest, TheFirstLayerIsThatOfTheDefinitionInDouble) {
  const ErrorChain chain = ChainOf("int2:naive");
  const FirstLayerJudge judge(tiny_, tokens_);
  const LayerErrors& first = chain.layers[0];
  // A row in f32 that differs in the last bf16 bit may choose another code.
  const auto near = [](double actual, double expected) { EXPECT_NEAR(actual / expected, 1, 0.02) << actual << " for " << expected; };
  near(first.key.value(), judge.RowError(KvSide::kKey));
  near(first.value.value(), judge.RowError(KvSide::kValue));
  const FirstLayerJudge::Attention attention = judge.Run();
  near(first.score.value(), attention.score_error);
  near(first.mean_attention_kl(), attention.kl);
  TinyModel tiny = tiny_;
  const TinyModel::Values& projection = tiny.tensors().at("blk.0.attn_output.weight");
  const auto width = static_cast<size_t>(projection.dims[0]);
  RelativeError output;
  for (size_t sample = 0; sample < attention.exact.size(); ++sample) {
    for (size_t row = 0; row < static_cast<size_t>(projection.dims[1]); ++row) {
      double exact = 0, difference = 0;
      for (size_t i = 0; i < width; ++i) {
        const double weight = static_cast<double>(projection.data[row * width + i]);
        exact += weight * attention.exact[sample][i];
        difference += weight * (attention.method[sample][i] - attention.exact[sample][i]);
      }
      output.Add(difference, exact);
    }
  }
  near(first.output.value(), output.value());
}

// The last layer's residual stream, normed and multiplied by the output matrix, gives the logits.
TEST_F(ErrorChainTest, TheCapturedResidualStreamIsTheOneThatLogitsAreMadeOf) {
  const auto cache = NewCache("int2:naive");
  const CapturedPass pass = Pass(*cache);
  TinyModel tiny = tiny_;
  const std::vector<float>&gain = tiny.tensors().at("output_norm.weight").data, &embedding = tiny.tensors().at("token_embd.weight").data;
  const std::vector<float>& hidden = pass.layers.back().hidden;
  const size_t width = gain.size(), vocab = embedding.size() / width;
  ASSERT_EQ(hidden.size(), width * static_cast<size_t>(kExtent.sampled));
  ASSERT_EQ(pass.logits.size(), vocab * static_cast<size_t>(kExtent.sampled));
  for (size_t sample = 0; sample < static_cast<size_t>(kExtent.sampled); ++sample) {
    double squares = 0;
    for (size_t i = 0; i < width; ++i) squares += std::pow(static_cast<double>(hidden[sample * width + i]), 2) / static_cast<double>(width);
    for (size_t token = 0; token < vocab; ++token) {
      double logit = 0;
      for (size_t i = 0; i < width; ++i) {
        logit += static_cast<double>(hidden[sample * width + i]) / std::sqrt(squares + 1e-5) * static_cast<double>(gain[i]) *
                 static_cast<double>(embedding[token * width + i]);
      }
      EXPECT_NEAR(static_cast<double>(pass.logits[sample * vocab + token]), logit, 1e-3);
    }
  }
}

}  // namespace
}  // namespace oscar::engine
