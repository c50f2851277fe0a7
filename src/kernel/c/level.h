/* One source, several instruction sets: the files of this folder are compiled once as the plain C reference and again by
 * other folders with other target flags and another ST_LEVEL. Nothing in them depends on the width of a vector, fused
 * multiply-adds are written out and contraction is off, so every level computes the same bits. */
#ifndef ST_KERNEL_C_LEVEL_H
#define ST_KERNEL_C_LEVEL_H

#ifndef ST_LEVEL
#define ST_LEVEL c
#endif

#define ST_PASTE_(a, b) a##_##b
#define ST_PASTE(a, b) ST_PASTE_(a, b)
/* The name of a function of this level: ST_K(st_gdn) is st_gdn_c in the reference. */
#define ST_K(name) ST_PASTE(name, ST_LEVEL)

#endif
