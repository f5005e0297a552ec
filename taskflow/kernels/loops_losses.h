/* The loops of _losses.pyx, for one floating-point type (see loops_types.h). */
#include "loops_softmax.h"
#include "loops_classes.h"
