/* The loops of _images.pyx, for one floating-point type (see loops_types.h). */
#include "loops_boxes.h"
#include "loops_pooling.h"
#include "loops_columns.h"
#include "loops_channels.h"
