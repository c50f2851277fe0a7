/* What the kernels of the gated delta network share: gdn.cl and gdn_blocks.cl. */
#ifndef ST_GPU_GDN_H
#define ST_GPU_GDN_H

#include "exchange.h"

/* Prepared gates of a (value head, row): sigmoid(b), exp(g), and two words that nobody reads, so that they are copied
 * as one. */
#define GDN_GATES 4
#define GDN_COLUMNS 16 /* of a head's state that a group has */

#endif
