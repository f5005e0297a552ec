/* The loops of _native.pyx, for one floating-point type (see loops_types.h). */
#include "loops_rows.h"
#include "loops_updates.h"
#include "loops_random.h"
