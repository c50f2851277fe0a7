/* The encoders behind st_type_info.encode. */
#ifndef ST_FORMAT_QUANT_ENCODE_H
#define ST_FORMAT_QUANT_ENCODE_H

#include <stddef.h>

void st_encode_f32(const float *src, void *dst, size_t n, const float *importance);
void st_encode_f16(const float *src, void *dst, size_t n, const float *importance);
void st_encode_bf16(const float *src, void *dst, size_t n, const float *importance);
void st_encode_q8_0(const float *src, void *dst, size_t n, const float *importance);
void st_encode_q4_0(const float *src, void *dst, size_t n, const float *importance);
void st_encode_q4_1(const float *src, void *dst, size_t n, const float *importance);
void st_encode_q5_0(const float *src, void *dst, size_t n, const float *importance);
void st_encode_q5_1(const float *src, void *dst, size_t n, const float *importance);
void st_encode_iq4_nl(const float *src, void *dst, size_t n, const float *importance);
void st_encode_mxfp4(const float *src, void *dst, size_t n, const float *importance);
void st_encode_q2_0(const float *src, void *dst, size_t n, const float *importance);
void st_encode_q3_k(const float *src, void *dst, size_t n, const float *importance);
void st_encode_q4_k(const float *src, void *dst, size_t n, const float *importance);
void st_encode_q5_k(const float *src, void *dst, size_t n, const float *importance);
void st_encode_q6_k(const float *src, void *dst, size_t n, const float *importance);
void st_encode_iq4_xs(const float *src, void *dst, size_t n, const float *importance);
void st_encode_iq3_xxs(const float *src, void *dst, size_t n, const float *importance);

#endif
