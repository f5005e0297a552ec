/* The loops of _native.pyx, for one floating-point type (see native/loops/types.h). */
#include "native/loops/rows.h"
#include "native/loops/updates.h"
#include "native/loops/random.h"
