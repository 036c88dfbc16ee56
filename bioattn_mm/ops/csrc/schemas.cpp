// The schemas of the operators, in C++ for exported models in processes without Python. Their names connect them
// (bioattn_mm/ops/registration.py): `X_backward` takes the gradients of the first results of X, of which all but one
// may be missing, and arguments and results of X; its results have the names of the arguments they are gradients of.

#include <torch/csrc/stable/library.h>

#include <string>

namespace {

const std::string kAttention =
    "Tensor query, Tensor key, Tensor value, Tensor pooled_key, Tensor pooled_value, Tensor window_bias, "
    "Tensor pooled_bias, Tensor pooled_bias_rows, Tensor token_weights";
const std::string kOfAttention =
    "Tensor scale, Tensor query_embedding, Tensor window_bias, Tensor pooled_bias, Tensor pooled_bias_rows, "
    "Tensor pooled_bias_weights, Tensor pooled_bias_columns, Tensor tokens, Tensor token_bias";
const std::string kGradOfAttention =
    "Tensor scale, Tensor query_embedding, Tensor window_bias, Tensor pooled_bias, Tensor tokens, Tensor token_bias";
const std::string kCosine = "Tensor query, Tensor key_value, Tensor pooled_key_value, " + kOfAttention;
const std::string kAggregate =
    "Tensor x, Tensor q_weight, Tensor q_bias, Tensor kv_weight, Tensor kv_bias, Tensor pool_weight, "
    "Tensor pool_bias, Tensor norm_weight, Tensor norm_bias, ";
const std::string kAggregated =
    "Tensor output, Tensor joint_weight, Tensor projected, Tensor pooled, Tensor mean, Tensor rstd, Tensor normed, "
    "Tensor pooled_key_value, Tensor logsumexp, Tensor rounding";
const std::string kBlock =
    "Tensor attended, Tensor proj_weight, Tensor proj_bias, Tensor norm_weight, Tensor norm_bias, Tensor fc1_weight, "
    "Tensor fc1_bias, Tensor conv_weight, Tensor conv_bias, Tensor fc2_weight, Tensor fc2_bias, Tensor next_weight, "
    "Tensor next_bias";
const std::string kFactors = ", Tensor? attention_factor, Tensor? mlp_factor, ";
const std::string kOfBlock =
    "Tensor next, Tensor output, Tensor sum, Tensor normed, Tensor mean, Tensor rstd, Tensor to_gate, Tensor gated, "
    "Tensor next_mean, Tensor next_rstd";
const std::string kPeripheral =
    "Tensor query, Tensor key, Tensor value, Tensor plane, Tensor scale, Tensor shift, Tensor conv_weight, "
    "Tensor conv_bias, Tensor norm_weight, Tensor norm_bias";
const std::string kLogCPB =
    "Tensor vertical, Tensor horizontal, Tensor hidden_weight, Tensor hidden_bias, Tensor weight";
const std::string kDeformable = "Tensor value, Tensor shapes, Tensor locations, Tensor weights";
const std::string kRelativeBias = "Tensor query, Tensor key, Tensor value, Tensor bias";
const std::string kOfRelativeBias = kRelativeBias + ", Tensor rows, Tensor weights, Tensor columns";
const std::string kSparseCodes = "Tensor gram, Tensor target, Tensor length, Tensor penalty";
const std::string kRounded = "Tensor output, Tensor logsumexp, Tensor rounding";

STABLE_TORCH_LIBRARY(bioattn_mm, library) {
  const auto define = [&](const std::string& schema) { library.def(schema.c_str()); };
  define(
      "add_norm(Tensor x, Tensor branch, Tensor? branch_bias, Tensor? factor, Tensor weight, Tensor bias, float eps) "
      "-> (Tensor output, Tensor sum, Tensor mean, Tensor rstd)");
  define(
      "add_norm_backward(Tensor grad_output, Tensor? grad_sum, Tensor sum, Tensor mean, Tensor rstd, Tensor? factor, "
      "Tensor weight) -> (Tensor x, Tensor branch, Tensor branch_bias, Tensor weight, Tensor bias)");
  define("after_attention(Tensor x, " + kBlock + kFactors + "float eps, bool for_backward) -> (" + kOfBlock + ")");
  define(
      "after_attention_backward(Tensor grad_next, Tensor? grad_output, " + kBlock + kFactors + kOfBlock +
      ") -> (Tensor x, " + kBlock + ")");
  define("aggregate(" + kAggregate + kOfAttention + ", float eps, bool for_backward) -> (" + kAggregated + ")");
  define(
      "aggregate_backward(Tensor grad_output, " + kAggregate + kOfAttention + ", " + kAggregated + ") -> (" +
      kAggregate + kGradOfAttention + ")");
  define("aggregated_attention(" + kAttention + ", bool for_backward) -> (" + kRounded + ")");
  define(
      "aggregated_attention_backward(Tensor grad_output, " + kAttention + ", " + kRounded +
      ") -> (Tensor query, Tensor key, Tensor value, Tensor pooled_key, Tensor pooled_value, Tensor window_bias, "
      "Tensor pooled_bias, Tensor token_weights)");
  define("cosine_attention(" + kCosine + ", bool for_backward) -> (" + kRounded + ")");
  define(
      "cosine_attention_backward(Tensor grad_output, " + kCosine + ", " + kRounded +
      ") -> (Tensor query, Tensor key_value, Tensor pooled_key_value, " + kGradOfAttention + ")");
  define("deformable_attention(" + kDeformable + ") -> Tensor output");
  define(
      "deformable_attention_backward(Tensor grad_output, " + kDeformable +
      ") -> (Tensor value, Tensor locations, Tensor weights)");
  define("gated_convolution(Tensor x, Tensor? x_bias, Tensor weight, Tensor bias) -> Tensor output");
  define(
      "gated_convolution_backward(Tensor grad_output, Tensor x, Tensor? x_bias, Tensor weight, Tensor bias) -> "
      "(Tensor x, Tensor x_bias, Tensor weight, Tensor bias)");
  define("gelu_pool(Tensor x, SymInt height, SymInt width) -> Tensor output");
  define("gelu_pool_backward(Tensor grad_output, Tensor x) -> Tensor x");
  define(
      "gelu_pool_norm(Tensor x, Tensor weight, Tensor bias, SymInt height, SymInt width, float eps) -> "
      "(Tensor output, Tensor pooled, Tensor mean, Tensor rstd)");
  define(
      "gelu_pool_norm_backward(Tensor grad_output, Tensor x, Tensor pooled, Tensor mean, Tensor rstd, Tensor weight) "
      "-> (Tensor x, Tensor weight, Tensor bias)");
  define("log_cpb_table(" + kLogCPB + ", Tensor bias) -> Tensor table");
  define(
      "log_cpb_table_backward(Tensor grad_table, " + kLogCPB +
      ") -> (Tensor hidden_weight, Tensor hidden_bias, Tensor weight, Tensor bias)");
  define("peripheral_attention(" + kPeripheral + ", float eps) -> (Tensor output, Tensor logsumexp)");
  define(
      "peripheral_attention_backward(Tensor grad_output, " + kPeripheral + ", float eps, Tensor logsumexp) -> (" +
      kPeripheral + ")");
  define("relative_bias_attention(" + kOfRelativeBias + ", float scale) -> (Tensor output, Tensor logsumexp)");
  define(
      "relative_bias_attention_backward(Tensor grad_output, " + kOfRelativeBias +
      ", Tensor output, Tensor logsumexp, float scale) -> (" + kRelativeBias + ")");
  define("sliding_window_qk(Tensor query, Tensor key, Tensor bias) -> Tensor logits");
  define(
      "sliding_window_qk_backward(Tensor grad_logits, Tensor query, Tensor key) -> "
      "(Tensor query, Tensor key, Tensor bias)");
  define("sliding_window_av(Tensor weights, Tensor value) -> Tensor output");
  define(
      "sliding_window_av_backward(Tensor grad_output, Tensor weights, Tensor value) -> (Tensor weights, Tensor "
      "value)");
  define(
      "sparse_codes(" + kSparseCodes +
      ", int num_steps, bool for_backward) -> (Tensor output, Tensor kept, Tensor residuals)");
  define(
      "sparse_codes_backward(Tensor grad_output, " + kSparseCodes +
      ", int num_steps, Tensor kept, Tensor residuals) -> (" + kSparseCodes + ")");
  define("version() -> str");
  define("cpu_capability() -> str");
  define("cpu_capabilities() -> str[]");
  define("set_cpu_capability(str name) -> ()");
}

}  // namespace
