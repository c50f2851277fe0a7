/* The converters and generators of the model families that this build knows. */
#ifndef ST_MODEL_FAMILIES_H
#define ST_MODEL_FAMILIES_H

struct st_convert_family;
struct st_synth_family;

extern const struct st_convert_family st_qwen4exp_convert, st_llama_convert;
extern const struct st_synth_family st_qwen4exp_synth;

#endif
