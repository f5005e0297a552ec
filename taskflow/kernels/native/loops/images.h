/* The loops of _images.pyx, for one floating-point type (see native/loops/types.h). */
#include "native/loops/boxes.h"
#include "native/loops/pooling.h"
#include "native/loops/columns.h"
#include "native/loops/channels.h"
