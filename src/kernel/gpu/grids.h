/* The grids of the IQ types as tables of a GPU program, packed as in format/grids.inc: 16 bits for a point, two points to
 * a word (lower index in the lower half). */
#ifndef ST_GRIDS_H
#define ST_GRIDS_H

#include "dialect.h"

#define ST_G(v) v,
ST_TABLE ushort grid_iq1s[2048] = {
#define ST_GRID_IQ1S
#include "../../format/grids.inc"
#undef ST_GRID_IQ1S
};
ST_TABLE ushort grid_iq2xxs[256] = {
#define ST_GRID_IQ2XXS
#include "../../format/grids.inc"
#undef ST_GRID_IQ2XXS
};
ST_TABLE ushort grid_iq2xs[512] = {
#define ST_GRID_IQ2XS
#include "../../format/grids.inc"
#undef ST_GRID_IQ2XS
};
ST_TABLE ushort grid_iq2s[1024] = {
#define ST_GRID_IQ2S
#include "../../format/grids.inc"
#undef ST_GRID_IQ2S
};
ST_TABLE ushort grid_iq3xxs[256] = {
#define ST_GRID_IQ3XXS
#include "../../format/grids.inc"
#undef ST_GRID_IQ3XXS
};
ST_TABLE ushort grid_iq3s[512] = {
#define ST_GRID_IQ3S
#include "../../format/grids.inc"
#undef ST_GRID_IQ3S
};
#undef ST_G

#endif
