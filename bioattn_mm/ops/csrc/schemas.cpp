// The schemas of the operators, in C++ for exported models in processes without Python. Their names connect them
// (bioattn_mm/ops/registration.py): `X_backward` takes the gradients of the first results of X, of which all but one
// may be missing, and arguments and results of X; its results have the names of the arguments they are gradients of.

#include <torch/csrc/stable/library.h>

#include <string>

namespace {

const std::string kAttention =
    "Tensor query, Tensor key, Tensor value, Tensor pooled_key, Tensor pooled_value, Tensor window_bias, "
    "Tensor pooled_bias, Tensor pooled_bias_rows, Tensor token_weights";
const std::string kCosine =
    "Tensor query, Tensor key_value, Tensor pooled_key_value, Tensor scale, Tensor query_embedding, "
    "Tensor window_bias, Tensor pooled_bias, Tensor pooled_bias_rows, Tensor pooled_bias_columns, Tensor tokens, "
    "Tensor token_bias";
const std::string kPeripheral =
    "Tensor query, Tensor key, Tensor value, Tensor plane, Tensor scale, Tensor shift, Tensor conv_weight, "
    "Tensor conv_bias, Tensor norm_weight, Tensor norm_bias";
const std::string kLogCPB =
    "Tensor vertical, Tensor horizontal, Tensor hidden_weight, Tensor hidden_bias, Tensor weight";
const std::string kRelativeBias = "Tensor query, Tensor key, Tensor value, Tensor bias";
const std::string kRounded = "Tensor output, Tensor logsumexp, Tensor rounding";

STABLE_TORCH_LIBRARY(bioattn_mm, library) {
  const auto define = [&](const std::string& schema) { library.def(schema.c_str()); };
  define(
      "add_norm(Tensor x, Tensor branch, Tensor? branch_bias, Tensor? factor, Tensor weight, Tensor bias, float eps) "
      "-> (Tensor output, Tensor sum, Tensor mean, Tensor rstd)");
  define(
      "add_norm_backward(Tensor grad_output, Tensor? grad_sum, Tensor sum, Tensor mean, Tensor rstd, Tensor? factor, "
      "Tensor weight) -> (Tensor x, Tensor branch, Tensor branch_bias, Tensor weight, Tensor bias)");
  define("aggregated_attention(" + kAttention + ", bool for_backward) -> (" + kRounded + ")");
  define(
      "aggregated_attention_backward(Tensor grad_output, " + kAttention + ", " + kRounded +
      ") -> (Tensor query, Tensor key, Tensor value, Tensor pooled_key, Tensor pooled_value, Tensor window_bias, "
      "Tensor pooled_bias, Tensor token_weights)");
  define("cosine_attention(" + kCosine + ", bool for_backward) -> (" + kRounded + ")");
  define(
      "cosine_attention_backward(Tensor grad_output, " + kCosine + ", " + kRounded +
      ") -> (Tensor query, Tensor key_value, Tensor pooled_key_value, Tensor scale, Tensor query_embedding, "
      "Tensor window_bias, Tensor pooled_bias, Tensor tokens, Tensor token_bias)");
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
  define("relative_bias_attention(" + kRelativeBias + ", float scale) -> (Tensor output, Tensor logsumexp)");
  define(
      "relative_bias_attention_backward(Tensor grad_output, " + kRelativeBias +
      ", Tensor output, Tensor logsumexp, float scale) -> (" + kRelativeBias + ")");
  define("sliding_window_qk(Tensor query, Tensor key, Tensor bias) -> Tensor logits");
  define(
      "sliding_window_qk_backward(Tensor grad_logits, Tensor query, Tensor key) -> "
      "(Tensor query, Tensor key, Tensor bias)");
  define("sliding_window_av(Tensor weights, Tensor value) -> Tensor output");
  define(
      "sliding_window_av_backward(Tensor grad_output, Tensor weights, Tensor value) -> (Tensor weights, Tensor "
      "value)");
  define("version() -> str");
  define("cpu_capability() -> str");
  define("cpu_capabilities() -> str[]");
  define("set_cpu_capability(str name) -> ()");
}

}  // namespace
