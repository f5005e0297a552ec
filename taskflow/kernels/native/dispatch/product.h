/* The compiled loops of _products.pyx: matrix products, for float and for double. */
#ifndef TASKFLOW_PRODUCT_LOOPS_H
#define TASKFLOW_PRODUCT_LOOPS_H

#define LOOPS "native/loops/products.h"
#include "native/loops/types.h"

#define any_skinny_nt(...) EITHER(skinny_nt, __VA_ARGS__)
#define any_skinny_nn(...) EITHER(skinny_nn, __VA_ARGS__)
#define any_gemm(...) EITHER(gemm, __VA_ARGS__)

#endif
