"""Evidence: what a verification showed, as a certificate that others can check.

`statement` produces certificates, `check` checks them with the standard library alone, `render` makes them readable.
They are apart on purpose: a checker that shared code with the producer would share its mistakes.
"""
