// The operators on the CPU in one translation unit: reading PyTorch's headers takes most of the time of compiling one
// of them. Each has a namespace of its own in its file.

#include "about.cpp"
#include "aggregated_attention.cpp"
#include "cosine_attention.cpp"
#include "gated_convolution.cpp"
#include "gelu_pool.cpp"
#include "log_cpb.cpp"
#include "peripheral_attention.cpp"
#include "relative_bias_attention.cpp"
#include "schemas.cpp"
#include "sliding_window.cpp"
