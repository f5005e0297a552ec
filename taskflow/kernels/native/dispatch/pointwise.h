/* The compiled loops of _pointwise.pyx: layer normalisation and activations, for float and for double. */
#ifndef TASKFLOW_POINTWISE_LOOPS_H
#define TASKFLOW_POINTWISE_LOOPS_H

#define LOOPS "native/loops/pointwise.h"
#include "native/loops/types.h"

#define any_layer_norm(...) EITHER(layer_norm, __VA_ARGS__)
#define any_layer_norm_backward(...) EITHER(layer_norm_backward, __VA_ARGS__)
#define any_relu(...) EITHER(relu, __VA_ARGS__)
#define any_relu_backward(...) EITHER(relu_backward, __VA_ARGS__)
#define any_sigmoid(...) EITHER(sigmoid_all, __VA_ARGS__)
#define any_sigmoid_backward(...) EITHER(sigmoid_backward, __VA_ARGS__)
#define any_tanh(...) EITHER(tanh_all, __VA_ARGS__)
#define any_tanh_backward(...) EITHER(tanh_backward, __VA_ARGS__)
#define any_gelu(...) EITHER(gelu, __VA_ARGS__)
#define any_gelu_backward(...) EITHER(gelu_backward, __VA_ARGS__)

#endif
