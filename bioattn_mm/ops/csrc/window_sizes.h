// The sizes of a map of tokens and of the sliding window around each token.
#pragma once

#include "tensor.h"

namespace bioattn_mm {

// The sizes of tokens (B, H, W, heads, d) and of windows of k x k tokens: window = k, offsets = k * k.
template <typename Integer>
struct WindowSizes {
  WindowSizes(const Tensor& tokens, int64_t offsets)
      : batch(tokens.size(0)),
        height(tokens.size(1)),
        width(tokens.size(2)),
        heads(tokens.size(3)),
        channels(tokens.size(4)),
        window(std::lround(std::sqrt(static_cast<double>(offsets)))),
        offsets(offsets) {}

  Integer batch, height, width, heads, channels, window, offsets;
};

}  // namespace bioattn_mm
