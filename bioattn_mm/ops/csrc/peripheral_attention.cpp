// The operator peripheral_attention on the CPU.

#include "peripheral_attention.h"

#include "check.h"
#include "cpu/isa.h"

namespace bioattn_mm {
namespace {
namespace of_peripheral_attention {

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

ArgumentChecks check_inputs(const PeripheralInputs& inputs) {
  const Tensor& query = inputs.query;
  const ArgumentChecks arguments("peripheral_attention", "query", query, 4, "(B, heads, H * W, d)");
  const auto dtype = full_precision(query.scalar_type());
  arguments.check("scale", inputs.scale, {-1, -1, -1}, dtype);
  const auto heads = query.size(1), tokens = query.size(2);
  const auto channels = inputs.scale.size(0), height = inputs.scale.size(1), width = inputs.scale.size(2);
  check_value(
      heads >= 1 && tokens >= 1 && channels >= 1 && tokens == height * width,
      "peripheral_attention: query (B, heads, H * W, d) and scale (channels, H, W) must be of one grid, with heads, "
      "tokens and channels, got ",
      text_of_sizes(query.sizes()), " and ", text_of_sizes(inputs.scale.sizes()));
  arguments.check("key", inputs.key, query.sizes());
  arguments.check("value", inputs.value, query.sizes());
  arguments.check("plane", inputs.plane, {channels, 2 * height + 1, 2 * width + 1}, dtype);
  arguments.check("shift", inputs.shift, {channels, height, width}, dtype);
  arguments.check("conv_weight", inputs.conv_weight, {heads, channels, 3, 3}, dtype);
  arguments.check("conv_bias", inputs.conv_bias, {heads}, dtype);
  arguments.check("norm_weight", inputs.norm_weight, {heads}, dtype);
  arguments.check("norm_bias", inputs.norm_bias, {heads}, dtype);
  return arguments;
}

void check_forward(const PeripheralInputs& inputs, double) { check_inputs(inputs); }

void check_backward(const Tensor& grad_output, const PeripheralInputs& inputs, double, const Tensor& logsumexp) {
  const ArgumentChecks arguments = check_inputs(inputs);
  arguments.check("grad_output", grad_output, inputs.query.sizes());
  arguments.check("logsumexp", logsumexp, inputs.query.sizes().slice(0, 3), inputs.plane.scalar_type());
}

Tensor dense_floats(const Tensor& tensor) { return dense(at_least_float(tensor)); }

PeripheralForward forward(const PeripheralInputs& inputs, double eps) {
  auto [output, logsumexp] = cpu_kernels(kFloat).peripheral_attention_forward(map(inputs, dense_floats), eps);
  return {output.to(inputs.query.scalar_type()), logsumexp};
}

Gradients backward(const Tensor& grad_output, const PeripheralInputs& inputs, double eps, const Tensor& logsumexp) {
  PeripheralInputs gradients = cpu_kernels(kFloat).peripheral_attention_backward(
      dense_floats(grad_output), map(inputs, dense_floats), eps, logsumexp.contiguous());
  for (Tensor* gradient : {&gradients.query, &gradients.key, &gradients.value})
    *gradient = gradient->to(inputs.query.scalar_type());
  return gradients.apply([](const auto&... tensors) { return Gradients{tensors...}; });
}

}  // namespace of_peripheral_attention
}  // namespace
}  // namespace bioattn_mm
