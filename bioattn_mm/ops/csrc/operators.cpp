// The registrations of all operators in one translation unit: reading PyTorch's headers takes most of the time of
// compiling one of them. Each has a namespace of its own in its file.

#include "aggregated_attention.cpp"
#include "build.cpp"
#include "cosine_attention.cpp"
#include "gated_convolution.cpp"
#include "gelu_pool.cpp"
#include "layer_norm.cpp"
#include "linear.cpp"
#include "log_cpb.cpp"
#include "peripheral_attention.cpp"
#include "relative_bias_attention.cpp"
#include "sliding_window.cpp"
