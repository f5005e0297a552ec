/* The loops of _losses.pyx, for one floating-point type (see native/loops/types.h). */
#include "native/loops/softmax.h"
#include "native/loops/classes.h"
