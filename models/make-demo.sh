#!/bin/sh
# make-demo.sh FOLDER [STRATA]: makes demo.gguf and demo-mtp.gguf beside this script from the trained model's folder
# (config.json, model.safetensors, mtp.safetensors, tokenizer.json, ...; README.md says what it is).
set -eu
source=$1
here=$(dirname "$0")
strata=${2:-$here/../build/strata}
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

"$strata" convert "$source" -o "$work/trunk.gguf" --mtp-out "$work/mtp.gguf" --name "Strata demo"

# Experts are three quarters of the weights and get three bits; those of layers 1 and 3, where an error costs most, partly
# four and a half. All other matrices get a type whose activations have a scale per 32 values: with one per 256 the
# greedy text changes with the last bit of a sum. Rows of 16 and 40 stay BF16, no block divides them.
"$strata" quantize "$work/trunk.gguf" "$here/demo.gguf" Q5_1 \
    --tensor-type 'token_embd=Q5_0' \
    --tensor-type 'blk\.1\.ffn_(gate|down)_exps=IQ4_NL' \
    --tensor-type 'blk\.3\.ffn_down_exps=IQ4_NL' \
    --tensor-type 'ffn_(gate|up|down)_exps=IQ3_XXS'
"$strata" quantize "$work/mtp.gguf" "$here/demo-mtp.gguf" Q5_0 --tensor-type 'ffn_(gate|up|down)_exps=IQ3_XXS'
