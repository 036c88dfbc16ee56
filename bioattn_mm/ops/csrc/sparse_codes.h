// Sparse codes by proximal gradient steps: bioattn_mm/ops/sparse_codes.py says what it computes.
#pragma once

#include "boxed.h"
#include "check.h"

namespace bioattn_mm {

// A step from the codes u to the threshold of u + length * residual, with residual = target - G u. In the first, from
// u = 0, `codes` and `residual` are undefined, its length is 1, and the residual the target.
struct SparseCodesStep {
  Tensor target, length, penalty;  // (N, m, d), (N), (1)
  Tensor codes, residual;          // (N, m, d), with any stride from row to row; no residual where nothing is kept
};

// The kernels of a device, for float32 and float64. `product` is G u, undefined in the first step.
using SparseCodesForward = void(const SparseCodesStep& step, const Tensor& product, const Tensor& next);
// The gradient `grad + product` of the step's result becomes `of_sum`, that of u + length * residual, which may be
// `grad`; `scaled` is -length * of_sum, and the others the gradients of length and penalty, of which each row has a
// part, (N, m). In the first step `scaled` has those of all others, (N, m, steps, d), and of_sum is the target's
// gradient.
using SparseCodesBackward = void(
    const SparseCodesStep& step, const Tensor& grad, const Tensor& product, const Tensor& of_sum,
    const Tensor& scaled, const Tensor& of_length, const Tensor& of_penalty);

// Rows of a tensor (N, m, d), or none. PyTorch allows any stride where m = 1.
template <typename T>
struct RowsOf {
  RowsOf(const Tensor& tensor)
      : data(DataOf{tensor}), stride(tensor.defined() ? tensor.stride(tensor.size(1) == 1 ? 0 : 1) : 0) {}

  T* data;
  int64_t stride;
};

// The kernels of both devices read these in a step; SparseCodesGradients has what a backward pass needs besides.
template <typename T>
struct SparseCodesPointers {
  explicit SparseCodesPointers(const SparseCodesStep& step)
      : rows(step.target.size(0) * step.target.size(1)),
        states(static_cast<int>(step.target.size(1))),
        channels(static_cast<int>(step.target.size(2))),
        target(step.target),
        codes(step.codes),
        lengths(DataOf{step.length}),
        penalty(DataOf{step.penalty}) {}

  int64_t rows;
  int states, channels;
  RowsOf<const T> target, codes;
  const T *lengths, *penalty;
};

template <typename T>
struct SparseCodesGradients {
  SparseCodesGradients(
      const SparseCodesStep& step, const Tensor& grad, const Tensor& product, const Tensor& of_sum,
      const Tensor& scaled, const Tensor& of_length, const Tensor& of_penalty)
      : grad(grad),
        product(product),
        residual(step.residual),
        of_sum(of_sum),
        scaled(scaled),
        of_length(DataOf{of_length}),
        of_penalty(DataOf{of_penalty}),
        num_steps(scaled.dim() == 4 ? static_cast<int>(scaled.size(2)) : 0) {}

  RowsOf<const T> grad, product, residual;
  RowsOf<T> of_sum, scaled;
  T *of_length, *of_penalty;
  int num_steps;  // of `scaled` in the first step
};

SparseCodesForward sparse_codes_forward_cuda;
SparseCodesBackward sparse_codes_backward_cuda;

// The operator: matrix products of PyTorch, and `forward` and `backward` of a device.
template <auto forward_kernel, auto backward_kernel>
struct SparseCodes {
  // The codes, and for the backward pass those before each step after the first, and its residual.
  static std::tuple<Tensor, Tensor, Tensor> forward(
      const Tensor& gram, const Tensor& any_target, const Tensor& length, const Tensor& penalty, int64_t num_steps,
      bool for_backward) {
    const ArgumentChecks arguments = check(gram, any_target, length, penalty, num_steps);
    const Tensor target = dense(any_target), output = empty_like(target);
    const std::vector<int64_t> sizes = {target.size(0), target.size(1), num_steps, target.size(2)};
    const Tensor kept = empty(for_backward ? Span(sizes) : Span({0}), target.options()), residuals = empty_like(kept);
    SparseCodesStep step{target, dense(length), dense(penalty), {}, {}};
    Tensor product;
    for (int64_t index = 0; index <= num_steps; ++index) {
      if (index > 0) product = call("aten::bmm", "", gram, step.codes);
      if (index > 0 && for_backward) step.residual = residuals.select(2, index - 1);
      const Tensor next = index < num_steps && for_backward ? kept.select(2, index) : output;
      forward_kernel(step, product, next);
      step.codes = next;
    }
    return {output, kept, residuals};
  }

  // The gradients of G, target, length and penalty.
  static std::tuple<Tensor, Tensor, Tensor, Tensor> backward(
      const Tensor& grad_output, const Tensor& gram, const Tensor& any_target, const Tensor& length,
      const Tensor& penalty, int64_t num_steps, const Tensor& any_kept, const Tensor& any_residuals) {
    if (any_kept.dim() == 1) {  // of a graph that was made without gradients
      const auto [output, kept, residuals] = forward(gram, any_target, length, penalty, num_steps, true);
      return backward(grad_output, gram, any_target, length, penalty, num_steps, kept, residuals);
    }
    const ArgumentChecks arguments = check(gram, any_target, length, penalty, num_steps);
    const int64_t number = any_target.size(0), rows = any_target.size(1), channels = any_target.size(2);
    arguments.check("grad_output", grad_output, any_target.sizes());
    arguments.check("kept", any_kept, {number, rows, num_steps, channels});
    arguments.check("residuals", any_residuals, any_kept.sizes());
    const Tensor target = dense(any_target), kept = dense(any_kept), residuals = dense(any_residuals);
    const Tensor of_sum = empty_like(target), scaled = empty_like(kept);
    const Tensor of_length = empty({num_steps + 1, number, rows}, target.options()),
                 of_penalty = empty_like(of_length);
    SparseCodesStep step{target, dense(length), dense(penalty), {}, {}};
    Tensor grad = dense(grad_output), product;
    for (int64_t index = num_steps; index >= 0; --index) {
      step.codes = index > 0 ? kept.select(2, index - 1) : Tensor();
      step.residual = index > 0 ? residuals.select(2, index - 1) : Tensor();
      const Tensor own = index > 0 ? scaled.select(2, index - 1) : scaled;
      backward_kernel(step, grad, product, of_sum, own, of_length.select(0, index), of_penalty.select(0, index));
      if (index > 0) product = call("aten::bmm", "", gram.permute({0, 2, 1}), own);
      grad = of_sum;
    }
    const std::vector<int64_t> joint = {number, rows, num_steps * channels};
    const Tensor of_gram = call("aten::bmm", "", scaled.view(joint), kept.view(joint).permute({0, 2, 1}));
    return {of_gram, of_sum, of_length.sum({0, 2}), of_penalty.sum({0, 1, 2}).view({1})};
  }

  static void add_to(torch::stable::detail::StableLibrary& library) {
    library.impl("sparse_codes", boxed<forward>);
    library.impl("sparse_codes_backward", boxed<backward>);
  }

 private:
  static ArgumentChecks check(
      const Tensor& gram, const Tensor& target, const Tensor& length, const Tensor& penalty, int64_t num_steps) {
    const ArgumentChecks arguments("sparse_codes", "target", target, 3, "(N, m, d)", {kFloat, kDouble});
    arguments.check("gram", gram, {target.size(0), target.size(1), target.size(1)});
    arguments.check("length", length, {target.size(0)});
    arguments.check("penalty", penalty, {1});
    check_value(num_steps >= 0, "sparse_codes: num_steps must not be negative, got ", num_steps);
    return arguments;
  }
};

}  // namespace bioattn_mm
