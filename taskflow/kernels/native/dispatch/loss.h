/* The compiled loops of _losses.pyx: softmax and losses over classes, for float and for double. */
#ifndef TASKFLOW_LOSS_LOOPS_H
#define TASKFLOW_LOSS_LOOPS_H

#define LOOPS "native/loops/losses.h"
#include "native/loops/types.h"

#define any_softmax(...) EITHER(softmax, __VA_ARGS__)
#define any_softmax_backward(...) EITHER(softmax_backward, __VA_ARGS__)
#define any_cross_entropy(...) EITHER(cross_entropy, __VA_ARGS__)
#define any_cross_entropy_backward(...) EITHER(cross_entropy_backward, __VA_ARGS__)
#define any_class_blocks(...) EITHER(class_blocks, __VA_ARGS__)
#define any_class_blocks_backward(...) EITHER(class_blocks_backward, __VA_ARGS__)
#define any_cross_entropy_of_blocks(...) EITHER(cross_entropy_of_blocks, __VA_ARGS__)
#define any_cross_entropy_of_blocks_backward(...) EITHER(cross_entropy_of_blocks_backward, __VA_ARGS__)

#endif
